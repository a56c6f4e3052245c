"""The table an index keeps: what was indexed, for whatever works on the whole collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lookalike.core.progress import warn
from lookalike.searching.filters import meets, parse
from lookalike.searching.payload import PROTOTYPE, column_names, to_payload

if TYPE_CHECKING:
    from lookalike.data import Table


def without(table: Table, rules: Sequence[Sequence[str]]) -> Table:
    """The rows that no rule removed."""
    columns = column_names(tuple(table.names)).values()
    parsed = [parse(rule, columns) for rule in rules]
    if not table.has(PROTOTYPE):  # earlier versions took rules on what no row has before it is embedded
        parsed = [rule for rule in parsed if all(condition.column != PROTOTYPE for condition in rule)]
    if not parsed:
        return table
    lines = (to_payload(row) for part in table.arrow.to_batches(max_chunksize=10_000) for row in part.to_pylist())
    return table.take(np.array([not any(meets(line, rule) for rule in parsed) for line in lines], dtype=bool))


def with_unseen(table: Table, place: Path) -> Table:
    """Add what the table kept at `place` has of folders that cannot be looked into now: unseen is not deleted."""
    unseen = set(table.notes.get("unreadable", ()))
    if not unseen or not place.exists():
        return table
    import pyarrow as pa

    old = type(table).load(place).without("content_id")
    here, below = set(table.column("row_id")), tuple(f"{name}/" if name else "" for name in unseen)
    rows = zip(old.column("row_id"), old.column("path"), strict=True)
    kept = np.array([i not in here and (path in unseen or path.startswith(below)) for i, path in rows], dtype=bool)
    if kept.any():
        warn(f"{kept.sum():,} images that cannot be looked at now stay in the index as they were.")
    both = [table.arrow, old.take(kept).arrow]
    return replace(table, arrow=pa.concat_tables(both, promote_options="permissive").combine_chunks())


def finished(table: Table, contents: Mapping[str, str]) -> Table:
    """The rows that are in the store, with the content each shows."""
    names = table.column("row_id")
    kept = np.array([name in contents for name in names], dtype=bool)
    table = table if kept.all() else table.take(kept)
    return table.with_column("content_id", [contents[name] for name in names[kept]])
