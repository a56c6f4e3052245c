"""The table an index keeps: what was indexed, for whatever works on the whole collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lookalike.data import Table


def finished(table: Table, contents: Mapping[str, str]) -> Table:
    """The rows that are in the store, with the content each shows."""
    names = table.column("row_id")
    kept = np.array([name in contents for name in names], dtype=bool)
    table = table if kept.all() else table.take(kept)
    return table.with_column("content_id", [contents[name] for name in names[kept]])
