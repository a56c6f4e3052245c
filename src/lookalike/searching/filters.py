"""Filters as users write them: ``label=gull``, ``path=sea/*``, ``domain!=sketch``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lookalike.core.errors import LookalikeError
from lookalike.store import Condition

Filters = Mapping[str, str | Iterable[str]] | Iterable[str] | str | None


def parse(filters: Filters, columns: Collection[str] = (), *, sign: str = "=") -> list[Condition]:
    r"""Parse filters to conditions.

    Several values of one column are combined by *or*, several columns by *and*. A ``*`` at the end of a value means
    "starts with"; ``\*`` is a literal star.

    Args:
        filters: Texts such as ``label=gull`` or ``domain!=sketch``, or a mapping of columns to values.
        columns: Existing columns, whose names may contain anything, even ``=``.
        sign: What separates column and value.

    Returns:
        The conditions.

    Raises:
        LookalikeError: If a text is not a filter.

    Example:
        >>> parse(["label=gull", "label=tern", "path!=sea/*"])
        [Condition(column='label', values=('gull', 'tern'), prefix=False, negate=False),
         Condition(column='path', values=('sea/',), prefix=True, negate=True)]
    """
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    for column, negate, text in _pairs(filters, columns, sign):
        value, prefix = _read(text)
        groups.setdefault((column, prefix, negate), []).append(value)
    both = {column for column, prefix, negate in groups if (column, not prefix, negate) in groups and not negate}
    if both:
        raise LookalikeError(f"The filter on `{min(both)}` mixes whole values and prefixes (`*`): use one kind.")
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
        column, separator, value = text[len(known) :].partition(sign)
        if not separator or not known + column.strip("! "):
            raise LookalikeError(
                f"`{text}` is not a filter: write COLUMN{sign}VALUE, COLUMN{sign}PREFIX* or COLUMN!{sign}VALUE."
            )
        yield known or column.rstrip("!").strip(), column.endswith("!"), value


def _read(text: str) -> tuple[str, bool]:
    """Value, and whether it is a prefix; bytes that are not UTF-8 are spelled as in a store."""
    from lookalike.data.scan import readable_name

    if any("\ud800" <= c <= "\udfff" for c in text):
        text = readable_name(text)
    if text.endswith("\\*"):
        return f"{text[:-2]}*", False
    return text.removesuffix("*"), text.endswith("*")


def _written(value: str, prefix: bool) -> str:
    """The inverse of `_read`."""
    return f"{value}*" if prefix else f"{value[:-1]}\\*" if value.endswith("*") else value


def to_rule(conditions: Iterable[Condition]) -> list[str]:
    """Return conditions as texts that :func:`parse` reads."""
    return [f"{c.column}{'!' * c.negate}={_written(value, c.prefix)}" for c in conditions for value in c.values]


def describe(conditions: Iterable[Condition]) -> str:
    """Return conditions as a person reads them, such as ``label: gull``."""
    parts = []
    for c in conditions:
        if c.column == "content_id":  # a selection on the map
            parts.append("chosen on the map")
            continue
        values = " or ".join(_written(value, c.prefix) for value in c.values)
        parts.append(f"{c.column}: {'not ' * c.negate}{values}")
    return " and ".join(parts)


def meets(payload: Mapping[str, object], conditions: Iterable[Condition]) -> bool:
    """Return whether a payload meets all conditions, as a store would answer.

    Args:
        payload: The payload of a row.
        conditions: The conditions.

    Returns:
        Whether all hold; a missing column fails a plain condition and meets a negated one.
    """

    def holds(c: Condition) -> bool:
        value = payload.get(c.column)
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        return any(t.startswith(c.values) if c.prefix else t in c.values for t in texts) != c.negate

    return all(map(holds, conditions))
