"""What happened to a folder since it was last indexed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Known(NamedTuple):
    """What the store remembers of a row."""

    size: int | None
    mtime_ns: int | None
    hash: str
    row: str
    content: str


@dataclass
class Changes:
    """Row numbers of the table, except `gone`, which are ids that the folder has no longer."""

    same: int = 0
    fresh: list[int] = field(default_factory=list)  # not seen before
    touched: list[int] = field(default_factory=list)  # size or time differ: the hash will tell
    relabeled: list[int] = field(default_factory=list)  # the same file, with another label or column
    gone: list[str] = field(default_factory=list)


def known_row(payload: Mapping[str, Any]) -> Known:
    names = ("_hash", "_row", "content_id")
    return Known(payload.get("_size"), payload.get("_mtime_ns"), *(payload.get(name, "") for name in names))


def compare(wanted: Iterable[tuple[str, Mapping[str, Any]]], known: Mapping[str, Known]) -> Changes:
    """Sort the rows of a table (id, payload) by what must be done for them; nothing is read from disk."""
    changes, seen = Changes(), set()
    for number, (name, payload) in enumerate(wanted):
        seen.add(name)
        old, new = known.get(name), known_row(payload)
        if old is None:
            changes.fresh.append(number)
        elif None in (new.size, new.mtime_ns) or (old.size, old.mtime_ns) != (new.size, new.mtime_ns):
            changes.touched.append(number)
        elif old.row != new.row:
            changes.relabeled.append(number)
        else:
            changes.same += 1
    changes.gone = [name for name in known if name not in seen]
    return changes
