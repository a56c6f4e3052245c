"""The table an index keeps: what was indexed, for whatever works on the whole collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookalike.searching.filters import meets, parse
from lookalike.searching.rows import payload_of

if TYPE_CHECKING:
    from lookalike.data import Table


def without(table: Table, rules: Sequence[Sequence[str]]) -> Table:
    """The rows that no rule removed."""
    if not rules:
        return table
    parsed = [parse(rule) for rule in rules]
    lines = (payload_of(row) for part in table.arrow.to_batches(max_chunksize=10_000) for row in part.to_pylist())
    return table.take(np.array([not any(meets(line, rule) for rule in parsed) for line in lines], dtype=bool))


def finished(table: Table, contents: Mapping[str, str]) -> Table:
    """The rows that are in the store, with the content each shows."""
    names = table.column("row_id")
    kept = np.array([name in contents for name in names], dtype=bool)
    table = table if kept.all() else table.take(kept)
    return table.with_column("content_id", [contents[name] for name in names[kept]])
