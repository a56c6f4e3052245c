"""From a folder to answers: making an index, keeping it up to date, and asking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.searching.archive import backup, restore
    from lookalike.searching.find_duplicates import Duplicates, duplicates
    from lookalike.searching.generations import switch
    from lookalike.searching.hits import Hits
    from lookalike.searching.index_folder import Index
    from lookalike.searching.indexing import IndexResult, index
    from lookalike.searching.locate import indexes
    from lookalike.searching.query import search
    from lookalike.searching.removal import purge
    from lookalike.searching.verify_index import verify

__all__ = [
    "Duplicates", "Hits", "Index", "IndexResult", "backup", "duplicates", "index", "indexes", "purge", "restore",
    "search", "switch", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
