"""What a user filters by, in words: `label=gull`, `path=sea/*`, `domain!=sketch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lookalike.core.errors import LookalikeError
from lookalike.store import Condition

Filters = Mapping[str, str | Iterable[str]] | Iterable[str] | str | None


def parse(filters: Filters) -> list[Condition]:
    """Several values of one column mean *or*, several columns *and*; a `*` at the end means "starts with"."""
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    for column, negate, value in _pairs(filters):
        prefix = value.endswith("*")
        groups.setdefault((column, prefix, negate), []).append(value[:-1] if prefix else value)
    both = {column for column, prefix, negate in groups if (column, not prefix, negate) in groups and not negate}
    if both:
        raise LookalikeError(f"The filter on `{min(both)}` mixes whole values and beginnings (`*`); use one kind.")
    return [
        Condition(column, tuple(dict.fromkeys(values)), prefix=prefix, negate=negate)
        for (column, prefix, negate), values in groups.items()
    ]


def _pairs(filters: Filters) -> Iterable[tuple[str, bool, str]]:
    if filters is None:
        return
    if isinstance(filters, Mapping):
        for column, values in filters.items():
            for value in [values] if isinstance(values, str) else values:
                yield column.removesuffix("!"), column.endswith("!"), str(value)
        return
    for text in [filters] if isinstance(filters, str) else filters:
        column, sign, value = text.partition("=")
        if not sign or not column.strip("! "):
            raise LookalikeError(f"`{text}` is not a filter: write COLUMN=VALUE, COLUMN=BEGINNING* or COLUMN!=VALUE.")
        yield column.rstrip("!").strip(), column.endswith("!"), value.strip()


def describe(conditions: Iterable[Condition]) -> str:
    """`label: gull` as a person reads it."""
    parts = []
    for c in conditions:
        if c.column == "content_id":  # named one by one: a part of the map
            parts.append("chosen on the map")
            continue
        values = " or ".join(value + "*" * c.prefix for value in c.values)
        parts.append(f"{c.column}: {'not ' * c.negate}{values}")
    return " and ".join(parts)


def meets(payload: Mapping[str, object], conditions: Iterable[Condition]) -> bool:
    """Whether a row meets all conditions, as a store would answer."""

    def holds(c: Condition) -> bool:
        value = payload.get(c.column)
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        found = any(t.startswith(c.values) if c.prefix else t in c.values for t in texts)
        return found != c.negate

    return all(map(holds, conditions))
