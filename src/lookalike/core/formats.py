"""Every kind of file we write carries a `format` number; newer ones are refused."""

from __future__ import annotations

from typing import Any

from lookalike.core.errors import LookalikeError

# The number a kind is written with today. Raise it with every change that an older reader would
# misread, and keep a folder of the old one in tests/compat/.
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


def stamp(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document with the number of its format in front."""
    return {"format": CURRENT[kind], "kind": kind, **document}


def check_format(kind: str, document: Any, where: object) -> dict[str, Any]:
    """A document of `kind` that this version can read, or an error that says why not."""
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise LookalikeError(f"`{where}` is not a lookalike {kind}: it has no format number.")
    if document.get("kind", kind) != kind:
        raise LookalikeError(f"`{where}` is a lookalike {document['kind']}, not {_a(kind)}.")
    number = document["format"]
    if number > CURRENT[kind]:
        raise LookalikeError(
            f"`{where}` is {_a(kind)} of format {number}; this version reads up to {CURRENT[kind]}: update lookalike."
        )
    if number < CURRENT[kind]:
        raise LookalikeError(
            f"`{where}` is {_a(kind)} of format {number}, written before the first release: make it again."
        )
    return document


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
