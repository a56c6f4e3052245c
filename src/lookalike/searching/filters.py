"""What a user filters by, in words: `label=gull`, `path=sea/*`, `domain!=sketch`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lookalike.core.errors import LookalikeError
from lookalike.store import Condition

Filters = Mapping[str, str | Iterable[str]] | Iterable[str] | str | None


def parse(filters: Filters, columns: Collection[str] = (), *, sign: str = "=") -> list[Condition]:
    r"""Several values of one column mean *or*, several columns *and*; `*` at the end means "starts with", `\*` a star.

    `columns` are those there are: their names may hold anything, a `=` too. `sign` stands between column and value.
    """
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    for column, negate, text in _pairs(filters, columns, sign):
        value, prefix = _read(text)
        groups.setdefault((column, prefix, negate), []).append(value)
    both = {column for column, prefix, negate in groups if (column, not prefix, negate) in groups and not negate}
    if both:
        raise LookalikeError(f"The filter on `{min(both)}` mixes whole values and beginnings (`*`); use one kind.")
    return [
        Condition(column, tuple(dict.fromkeys(values)), prefix=prefix, negate=negate)
        for (column, prefix, negate), values in groups.items()
    ]


def _pairs(filters: Filters, columns: Collection[str], sign: str) -> Iterable[tuple[str, bool, str]]:
    if filters is None:
        return
    if isinstance(filters, Mapping):
        for column, values in filters.items():
            negate = column not in columns and column.endswith("!")
            for value in [values] if isinstance(values, str) else values:
                yield column[: -1 if negate else None], negate, str(value)
        return
    for text in [filters] if isinstance(filters, str) else filters:
        known = max((name for name in columns if text.startswith((name + sign, f"{name}!{sign}"))), key=len, default="")
        column, found, value = text[len(known) :].partition(sign)
        if not found or not known + column.strip("! "):
            raise LookalikeError(
                f"`{text}` is not a filter: write COLUMN{sign}VALUE, COLUMN{sign}BEGINNING* or COLUMN!{sign}VALUE."
            )
        yield known or column.rstrip("!").strip(), column.endswith("!"), value


def _read(text: str) -> tuple[str, bool]:
    """(value, whether it is a beginning) as written; bytes that are no UTF-8 as they are in a store."""
    from lookalike.data.scan import readable_name

    if any("\ud800" <= c <= "\udfff" for c in text):
        text = readable_name(text)
    if text.endswith("\\*"):
        return f"{text[:-2]}*", False
    return text.removesuffix("*"), text.endswith("*")


def _written(value: str, prefix: bool) -> str:
    """What `_read` reads."""
    return f"{value}*" if prefix else f"{value[:-1]}\\*" if value.endswith("*") else value


def to_rule(conditions: Iterable[Condition]) -> list[str]:
    """What `parse` reads, as it is kept."""
    return [f"{c.column}{'!' * c.negate}={_written(value, c.prefix)}" for c in conditions for value in c.values]


def describe(conditions: Iterable[Condition]) -> str:
    """`label: gull` as a person reads it."""
    parts = []
    for c in conditions:
        if c.column == "content_id":  # named one by one: a part of the map
            parts.append("chosen on the map")
            continue
        values = " or ".join(_written(value, c.prefix) for value in c.values)
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
