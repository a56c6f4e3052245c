"""Every kind of file we write carries a `format` number; old ones are migrated, newer ones refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lookalike.core.errors import LookalikeError

# The number a kind is written with today. Raise it with every change that an older reader would
# misread, add a migration below, and keep a folder of the old one in tests/compat/.
CURRENT: dict[str, int] = {
    "model": 1,
    "run": 1,
    "index": 1,
    "checkpoint": 1,
    "cache": 1,
    "splits": 1,
    "curve": 2,
    "table": 1,
    "map": 1,
    "backup": 1,
    "adaptation": 1,
}

# Made anew from what lies beside them, where an older one cannot be read.
DERIVED = ("cache", "curve")

Migration = Callable[[dict[str, Any]], dict[str, Any]]
_MIGRATIONS: dict[tuple[str, int], Migration] = {}


def migration(kind: str, from_format: int) -> Callable[[Migration], Migration]:
    """Register how a document of `kind` goes from one format to the next."""

    def register(function: Migration) -> Migration:
        _MIGRATIONS[kind, from_format] = function
        return function

    return register


def stamp(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document with the number of its format in front."""
    return {"format": CURRENT[kind], "kind": kind, **document}


def upgrade(kind: str, document: Any, where: object) -> dict[str, Any]:
    """A document of `kind` in today's format, whatever older one it was written in."""
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise LookalikeError(f"`{where}` is not a lookalike {kind}: it has no format number.")
    if document.get("kind", kind) != kind:
        raise LookalikeError(f"`{where}` is a lookalike {document['kind']}, not {_a(kind)}.")
    number = document["format"]
    if number > CURRENT[kind]:
        raise LookalikeError(
            f"`{where}` is {_a(kind)} of format {number}; this version reads up to {CURRENT[kind]}: update lookalike."
        )
    while number < CURRENT[kind]:
        step = _MIGRATIONS.get((kind, number))
        if step is None:
            raise LookalikeError(f"`{where}` is {_a(kind)} of format {number}, which can no longer be read.")
        document = step(document)
        number += 1
        document["format"] = number
    return document


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
