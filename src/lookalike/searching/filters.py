"""Filters as users write them: ``label=gull``, ``path=sea/*``, ``domain!=sketch``, ``width>=1000``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from lookalike.core.errors import LookalikeError
from lookalike.store import ROW_ID, Condition

Filters = Mapping[str, str | Iterable[str]] | Iterable[str] | str | None
_RANGE = re.compile(r"(>=|<=|>|<)(.+)|(.*?)\.\.(.*)", re.DOTALL)


def parse(filters: Filters, columns: Collection[str] = (), *, sign: str = "=") -> list[Condition]:
    r"""Parse filters to conditions.

    Several values of one column are combined by *or*, several columns and ranges by *and*. A ``*`` at the end of a
    value means "starts with"; ``\*`` is a literal star. Numbers and dates can be compared: ``width>=1000``,
    ``taken=2024-06..2024-08``.

    Args:
        filters: Texts such as ``label=gull`` or ``domain!=sketch``, or a mapping of columns to values.
        columns: Existing columns, whose names may contain anything, even ``=``.
        sign: What separates column and value.

    Returns:
        The conditions.

    Raises:
        LookalikeError: If a text is not a filter.

    Example:
        >>> parse(["label=gull", "label=tern", "path!=sea/*"])[0].values
        ('gull', 'tern')
        >>> [(c.low, c.high, c.strict) for c in parse(["width>1000", "taken=2024-06..2024-08"])]
        [('1000', '', True), ('2024-06', '2024-08', False)]
    """
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    ranges: list[Condition] = []
    for column, negate, text in _pairs(filters, columns, sign):
        condition = _read_range(column, negate, text)
        if condition is not None:
            ranges.append(condition)
            continue
        value, prefix = _read(text)
        groups.setdefault((column, prefix, negate), []).append(value)
    both = {column for column, prefix, negate in groups if (column, not prefix, negate) in groups and not negate}
    if both:
        raise LookalikeError(f"The filter on `{min(both)}` mixes whole values and prefixes (`*`): use one kind.")
    return ranges + [
        Condition(column, tuple(dict.fromkeys(values)), prefix=prefix, negate=negate)
        for (column, prefix, negate), values in groups.items()
    ]


def _pairs(filters: Filters, columns: Collection[str], sign: str) -> Iterable[tuple[str, bool, str]]:
    """Column, whether it is negated, and value; a comparison stays in front of the value, as in ``>=1000``."""
    if filters is None:
        return
    if isinstance(filters, Mapping):
        for column, values in filters.items():
            negate = column not in columns and column.endswith("!")
            for value in [values] if isinstance(values, str) else values:
                yield column[: -1 if negate else None], negate, str(value)
        return
    signs = (sign, f"!{sign}", ">", "<")
    for text in [filters] if isinstance(filters, str) else filters:
        known = max((n for n in columns if text.startswith(tuple(n + s for s in signs))), key=len, default="")
        match = re.match(rf"(.*?)(!?{re.escape(sign)}|(?=[<>]))(.*)", text[len(known) :], re.DOTALL)
        if not match or not known + match[1].strip():
            raise LookalikeError(
                f"`{text}` is not a filter: write COLUMN{sign}VALUE, COLUMN{sign}PREFIX*, COLUMN!{sign}VALUE or "
                "COLUMN>=NUMBER."
            )
        yield known or match[1].strip(), match[2].startswith("!"), match[3]


def _read_range(column: str, negate: bool, text: str) -> Condition | None:
    """The condition of ``>=1000`` or ``2024-06..2024-08``; other texts are values, even with such signs in them."""
    match = _RANGE.fullmatch(text)
    if not match:
        return None
    comparison, bound, low, high = match.groups()
    if comparison:
        low, high = (bound, "") if comparison[0] == ">" else ("", bound)
    condition = Condition(column, negate=negate, low=low.strip(), high=high.strip(), strict=comparison in ("<", ">"))
    return condition if condition.is_range and condition.intervals() else None


def _read(text: str) -> tuple[str, bool]:
    """Value, and whether it is a prefix; bytes that are not UTF-8 are spelled as in a store."""
    from lookalike.data.scan import readable_name

    if any("\ud800" <= c <= "\udfff" for c in text):
        text = readable_name(text)
    if text.endswith("\\*"):
        return f"{text[:-2]}*", False
    return text.removesuffix("*"), text.endswith("*")


def _written(condition: Condition) -> list[str]:
    """The values of a condition as `parse` reads them."""
    if condition.is_range:
        if condition.strict:
            return [f">{condition.low}" if condition.low else f"<{condition.high}"]
        return [f"{condition.low}..{condition.high}"]
    values = condition.values
    return [f"{v}*" if condition.prefix else f"{v[:-1]}\\*" if v.endswith("*") else v for v in values]


def to_rule(conditions: Iterable[Condition]) -> list[str]:
    """Return conditions as texts that :func:`parse` reads."""
    return [f"{c.column}{'!' * c.negate}={value}" for c in conditions for value in _written(c)]


def describe(conditions: Iterable[Condition]) -> str:
    """Return conditions as a person reads them, such as ``label: gull``."""
    parts = []
    for c in conditions:
        if c.column == "content_id":  # a selection on the map
            parts.append("chosen on the map")
            continue
        if c.column == ROW_ID:
            parts.append("without these tags" if c.negate else "with these tags")
            continue
        parts.append(f"{c.column}: {'not ' * c.negate}{' or '.join(_written(c))}")
    return " and ".join(parts)


def meets(payload: Mapping[str, object], conditions: Iterable[Condition]) -> bool:
    """Return whether a payload meets all conditions; a missing column meets only negated ones."""
    return all(condition.matches(payload.get(condition.column)) for condition in conditions)
