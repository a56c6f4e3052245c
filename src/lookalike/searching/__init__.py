"""From a folder to answers: making an index, keeping it up to date, and asking it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, so that importing this room costs nothing.
_LAZY = {
    "Duplicates": "copies",
    "Hits": "hits",
    "Index": "folder",
    "Indexed": "indexing",
    "backup": "archive",
    "duplicates": "copies",
    "index": "indexing",
    "indexes": "folder",
    "purge": "removing",
    "restore": "archive",
    "search": "asking",
    "switch": "generations",
}

if TYPE_CHECKING:
    from lookalike.searching.archive import backup, restore
    from lookalike.searching.asking import search
    from lookalike.searching.copies import Duplicates, duplicates
    from lookalike.searching.folder import Index, indexes
    from lookalike.searching.generations import switch
    from lookalike.searching.hits import Hits
    from lookalike.searching.indexing import Indexed, index
    from lookalike.searching.removing import purge

__all__ = [
    "Duplicates",
    "Hits",
    "Index",
    "Indexed",
    "backup",
    "duplicates",
    "index",
    "indexes",
    "purge",
    "restore",
    "search",
    "switch",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
