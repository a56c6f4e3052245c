"""Build filter expressions and field names for Milvus; nothing here contacts a server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lookalike.store.protocol import ROW_ID, Condition, Payload, Where, is_text, point_id, points_of, prefix_end

KEY, VECTOR = "pk", "vector"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,60}")


def to_key(column: str) -> str:
    """Return the field name of a column in Milvus, which allows only letters, digits and ``_``.

    Args:
        column: Any name.

    Returns:
        The field name; :func:`from_key` is the inverse.

    Example:
        >>> to_key("label"), to_key("a b")
        ('c_label', 'x_612062')
    """
    return f"c_{column}" if PLAIN_NAME.fullmatch(column) else f"x_{column.encode('utf-8', 'surrogatepass').hex()}"


def from_key(key: str) -> str:
    """Return the column of a field name."""
    kind, name = key[:2], key[2:]
    return name if kind == "c_" else bytes.fromhex(name).decode("utf-8", "surrogatepass")


def to_fields(payload: Payload) -> dict[str, Any]:
    """Return the fields of a payload: its columns, and what ranges compare: their numbers and dates (seconds).

    Example:
        >>> to_fields({"width": "1200"})
        {'c_width': '1200', 'n_number_width': 1200.0}
    """
    fields: dict[str, Any] = {to_key(name): value for name, value in payload.items() if value is not None}
    for name, value in payload.items():
        for kind, point in () if name.startswith("_") else points_of(value):
            key = f"n_{kind}_{to_key(name)[2:]}"
            if isinstance(value, list):
                fields.setdefault(key, []).append(point)
            else:
                fields[key] = point
    return fields


def filter_expression(where: Where, lists: Mapping[str, int]) -> str:
    """Return the Milvus filter expression of conditions.

    A prefix is expressed as a range of text, because the wildcards of ``like`` differ between versions. Every
    comparison first asks whether the field exists, so that ``not`` is right in versions that treat missing ones
    differently.

    Args:
        where: The conditions, which must all hold.
        lists: The greatest length of the lists in a column; other columns hold plain text.

    Returns:
        The expression; empty for no conditions.

    Example:
        >>> from lookalike.store import Condition
        >>> filter_expression([Condition("label", ("gull",))], {})
        '(((exists $meta["c_label"]) and $meta["c_label"] in ["gull"]))'
    """
    return " and ".join(f"{'not ' * c.negate}({_condition(c, lists)})" for c in where)


def _condition(condition: Condition, lists: Mapping[str, int]) -> str:
    if condition.column == ROW_ID:
        return f"{KEY} in {list_literal([point_id(name) for name in condition.values])}"
    field = f'$meta["{to_key(condition.column)}"]'
    longest = lists.get(condition.column, 0)
    if condition.is_range:
        parts = []
        for kind, (low, high) in condition.intervals().items():
            name = f'$meta["n_{kind}_{to_key(condition.column)[2:]}"]'
            bounds = [f">= {low!r}"] * math.isfinite(low) + [f"<= {high!r}"] * math.isfinite(high)
            fields = [name, *(f"{name}[{place}]" for place in range(longest))]
            parts += [f"(exists {f}) and " + " and ".join(f"{f} {bound}" for bound in bounds) for f in fields]
        return " or ".join(f"({part})" for part in parts) or f'{KEY} == ""'
    values = [value for value in condition.values if is_text(value)]
    if condition.prefix:
        fields = [field, *(f"{field}[{place}]" for place in range(longest))]
        parts = [f"(exists {f}) and {_starts(f, start)}" for f in fields for start in values]
    elif values:
        parts = [f"(exists {field}) and {field} in {list_literal(values)}"]
        parts += [f"(exists {field}) and json_contains_any({field}, {list_literal(values)})"] * bool(longest)
    else:
        parts = []
    return " or ".join(f"({part})" for part in parts) or f'{KEY} == ""'  # no row has an empty key


def _starts(field: str, start: str) -> str:
    end = prefix_end(start)
    return f"{field} >= {literal(start)}" + (f" and {field} < {literal(end)}" if end else "")


def literal(value: str) -> str:
    """Return a text as a Milvus literal: Milvus reads JSON's escapes, so nothing ends the literal early."""
    return json.dumps(value, ensure_ascii=False)


def list_literal(values: Sequence[str]) -> str:
    """Return texts as a Milvus list."""
    return f"[{', '.join(map(literal, values))}]"
