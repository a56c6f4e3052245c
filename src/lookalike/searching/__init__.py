"""From a folder to answers: making an index, keeping it up to date, and asking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.lazy import lazily

if TYPE_CHECKING:
    from lookalike.searching.archive import backup, restore
    from lookalike.searching.asking import search
    from lookalike.searching.copies import Duplicates, duplicates
    from lookalike.searching.folder import Index
    from lookalike.searching.generations import switch
    from lookalike.searching.hits import Hits
    from lookalike.searching.indexing import Indexed, index
    from lookalike.searching.places import indexes
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Duplicates": "copies",
        "Hits": "hits",
        "Index": "folder",
        "Indexed": "indexing",
        "backup": "archive",
        "duplicates": "copies",
        "index": "indexing",
        "indexes": "places",
        "purge": "removing",
        "restore": "archive",
        "search": "asking",
        "switch": "generations",
    },
)
