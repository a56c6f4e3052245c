"""The pool: different pictures of any number of folders, in the order of their content ids."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.data import Table, audit, read_table
from lookalike.data.table import BOX

POOL = "adapt-pool"


@dataclass(frozen=True)
class Pool:
    """Different pictures of all folders, in the order of their content ids."""

    tables: list[Table]
    ids: list[str]
    places: list[tuple[int, int]]
    """(folder, row in its table) of each picture."""
    names: list[str]
    """`folder/path` of each picture."""
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: set[str]) -> Pool:
        """The pictures of these ids."""
        kept = [i for i, id_ in enumerate(self.ids) if id_ in ids]
        places, names = [self.places[i] for i in kept], [self.names[i] for i in kept]
        return Pool(self.tables, [self.ids[i] for i in kept], places, names, self.left_out)

    def without(self, ids: set[str], why: str) -> Pool:
        """All but the pictures of these ids; `why` is how they are counted among those left out."""
        kept = self.only(set(self.ids) - ids)
        less = len(self) - len(kept)
        return replace(kept, left_out={**self.left_out, **({why: less} if less else {})})

    def pictures(self, i: int) -> tuple[Table, int]:
        folder, row = self.places[i]
        return self.tables[folder], row

    def table(self, rows: Sequence[int] | np.ndarray) -> Table:
        """Some pictures as one table of files, whatever folders they come from."""
        found = [self.pictures(int(i)) for i in rows]
        files = [table.file(row) for table, row in found]
        if None in files:
            raise LookalikeError("A pool must be a folder of pictures or a table of them; it cannot lie in tar files.")
        columns: dict[str, Any] = {
            "path": [os.fsencode(str(file)).decode(errors="replace") for file in files],
            "found": [os.fsencode(str(file)) for file in files],
            "content_id": [self.ids[int(i)] for i in rows],
            "row_id": [self.ids[int(i)] for i in rows],
        }
        for name in ("size", "mtime_ns", *BOX):
            if any(table.has(name) for table, _ in found):
                columns[name] = [table.row(row).get(name) for table, row in found]
        return Table.from_columns(columns, name=POOL)


def read_pool(
    folders_: Sequence[str | Path | Table],
    *,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    progress: bool = False,
) -> Pool:
    """Read the pool folders; equal pictures count once. Lists hold content ids, or patterns of `folder/path`.

    A folder without a single file is a pool without pictures: all of them may have been taken out.
    """
    tables, seen, names, left = [], {}, {}, {"copies": 0, "not allowed": 0, "denied": 0, "unreadable": 0}
    for number, source in enumerate(source for source in folders_ if not _bare(source)):
        table = source if isinstance(source, Table) else read_table(source, progress=progress)
        found = audit(table, near=False, progress=progress)
        left["unreadable"] += len(found.unreadable)
        tables.append(found.table)
        ids, paths = found.table.column("content_id"), found.table.column("path")
        for row, (id_, path) in enumerate(zip(ids, paths, strict=True)):
            name = f"{found.table.name}/{path}"
            if allow and not listed(id_, name, allow):
                left["not allowed"] += 1
            elif listed(id_, name, deny):
                left["denied"] += 1
            elif id_ in seen:
                left["copies"] += 1
            else:
                seen[str(id_)] = (number, row)
                names[str(id_)] = name
    ordered = sorted(seen)
    rows = [seen[id_] for id_ in ordered]
    return Pool(tables, ordered, rows, [names[id_] for id_ in ordered], {k: v for k, v in left.items() if v})


def _bare(source: str | Path | Table) -> bool:
    if isinstance(source, Table) or not Path(source).is_dir():
        return False
    return not any(files for _, _, files in os.walk(source))


def listed(id_: str, path: str, patterns: Sequence[str]) -> bool:
    """Whether a picture is named by its content id or by a pattern of `folder/path`."""
    return any(id_ == pattern or fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
