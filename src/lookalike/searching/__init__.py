"""From a folder to answers: making an index, keeping it up to date, and asking it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, so that importing this room costs nothing.
_LAZY = {
    "Hits": "hits",
    "Index": "folder",
    "Indexed": "indexing",
    "index": "indexing",
    "indexes": "folder",
    "search": "asking",
}

if TYPE_CHECKING:
    from lookalike.searching.asking import search
    from lookalike.searching.folder import Index, indexes
    from lookalike.searching.hits import Hits
    from lookalike.searching.indexing import Indexed, index

__all__ = ["Hits", "Index", "Indexed", "index", "indexes", "search"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
