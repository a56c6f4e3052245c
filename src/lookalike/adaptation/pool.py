"""The pool of images from outside, and the receipts of how they were used."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.adaptation.pool_search import Retrieved
from lookalike.core.errors import LookalikeError
from lookalike.data import Table, audit, read_table
from lookalike.data.table import BOX

POOL = "adapt-pool"


def content_ids(table: Table) -> list[str]:
    """Content ids of the images of a table."""
    return [str(id_) for id_ in table.column("content_id")]


@dataclass(frozen=True)
class Pool:
    """Distinct images of all pool folders, ordered by content id."""

    tables: list[Table]
    ids: list[str]
    places: list[tuple[int, int]]
    """(folder, row in its table) of each image."""
    names: list[str]
    """`folder/path` of each image."""
    left_out: dict[str, int] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    """What the lists name and no folder holds."""

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: set[str]) -> Pool:
        """The images of these ids."""
        rows = [i for i, id_ in enumerate(self.ids) if id_ in ids]
        places, names = [self.places[i] for i in rows], [self.names[i] for i in rows]
        return replace(self, ids=[self.ids[i] for i in rows], places=places, names=names)

    def without(self, ids: set[str], why: str) -> Pool:
        """All but the images of these ids; `why` is how they are counted among those left out."""
        rest = self.only(set(self.ids) - ids)
        less = len(self) - len(rest)
        return replace(rest, left_out={**self.left_out, **({why: less} if less else {})})

    def images(self, i: int) -> tuple[Table, int]:
        folder, row = self.places[i]
        return self.tables[folder], row

    def table(self, rows: Sequence[int] | np.ndarray) -> Table:
        """Some images as one table of files, whatever folders they come from."""
        result = [self.images(int(i)) for i in rows]
        files = [table.file(row) for table, row in result]
        if None in files:
            raise LookalikeError("A pool must be a folder of images or a table of them; it cannot lie in tar files.")
        columns: dict[str, Any] = {
            "path": [os.fsencode(str(file)).decode(errors="replace") for file in files],
            "raw_path": [os.fsencode(str(file)) for file in files],
            "content_id": [self.ids[int(i)] for i in rows],
            "row_id": [self.ids[int(i)] for i in rows],
        }
        for name in ("size", "mtime_ns", *BOX):
            if any(table.has(name) for table, _ in result):
                columns[name] = [table.row(row).get(name) for table, row in result]
        return Table.from_columns(columns, name=POOL)


def read_pool(
    folders_: Sequence[str | Path | Table],
    *,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    progress: bool = False,
) -> Pool:
    """Read the pool folders; equal images count once.

    A folder without files is an empty pool: all of its images may have been removed.

    Args:
        folders_: Folders or tables of images.
        allow: Content ids, or patterns of `folder/path`, to use only.
        deny: Content ids, or patterns of `folder/path`, to leave out.
        progress: Show progress bars.
    """
    allowed, denied = Listed(allow), Listed(deny)
    tables, seen, names, left = [], {}, {}, {"copies": 0, "not allowed": 0, "denied": 0, "unreadable": 0}
    for number, source in enumerate(source for source in folders_ if not _bare(source)):
        table = source if isinstance(source, Table) else read_table(source, progress=progress)
        audited = audit(table, near=False, progress=progress)
        left["unreadable"] += len(audited.unreadable)
        tables.append(audited.table)
        ids, paths = audited.table.column("content_id"), audited.table.column("path")
        for row, (id_, path) in enumerate(zip(ids, paths, strict=True)):
            id_, name = str(id_), f"{audited.table.name}/{path}"
            named, refused = allowed.holds(id_, name), denied.holds(id_, name)
            if allow and not named:
                left["not allowed"] += 1
            elif refused:
                left["denied"] += 1
            elif id_ in seen:
                left["copies"] += 1
            else:
                seen[id_] = (number, row)
                names[id_] = name
    ordered = sorted(seen)
    rows = [seen[id_] for id_ in ordered]
    idle = [*allowed.idle, *denied.idle]
    return Pool(tables, ordered, rows, [names[id_] for id_ in ordered], {k: v for k, v in left.items() if v}, idle)


def _bare(source: str | Path | Table) -> bool:
    if isinstance(source, Table) or not Path(source).is_dir():
        return False
    return not any(files for _, _, files in os.walk(source))


class Listed:
    """A list of images, each named by its content id, its `folder/path`, or a pattern of those paths."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = list(patterns)
        self.plain = set(patterns)
        self.wild = {p: re.compile(fnmatch.translate(p)) for p in self.plain if any(sign in p for sign in "*?[")}
        self.met: set[str] = set()

    def holds(self, id_: str, path: str) -> bool:
        matches = self.plain & {id_, path} | {pattern for pattern, sought in self.wild.items() if sought.match(path)}
        self.met |= matches
        return bool(matches)

    @property
    def idle(self) -> list[str]:
        """Those that have named nothing so far."""
        return [pattern for pattern in self.patterns if pattern not in self.met]


class Receipts:
    """Counts of how each pool image was used during an adaptation.

    Args:
        count: Number of used pool images.
    """

    def __init__(self, count: int) -> None:
        self.loaded = np.zeros(count, np.int64)
        self.negatives = np.zeros(count, np.int64)
        self.last = np.full(count, -1, np.int64)

    def load(self, rows: np.ndarray, step: int) -> None:
        self.loaded[rows] += 1
        self.last[rows] = step

    def count(self, rows: np.ndarray, times: np.ndarray) -> None:
        np.add.at(self.negatives, rows, times)

    def state(self) -> dict[str, Any]:
        return {name: values.tolist() for name, values in vars(self).items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, name, np.asarray(values, np.int64))


def receipt_rows(
    receipts: Receipts, retrieved: Retrieved, pool: Pool, target_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """One record for each used pool image: for which target images, at what score, and how often."""
    served: dict[int, list[dict[str, Any]]] = {int(i): [] for i in retrieved.used}
    for t, r in np.argwhere(retrieved.index >= 0).tolist():
        pair = {"target": target_ids[t], "score": float(retrieved.scores[t, r]), "rank": r + 1}
        served[int(retrieved.index[t, r])].append(pair)
    return [
        {
            "id": pool.ids[i],
            "path": pool.names[i],
            "served": pairs,
            "steps_loaded": int(receipts.loaded[row]),
            "times_negative": int(receipts.negatives[row]),
            "last_step": int(receipts.last[row]),
        }
        for row, (i, pairs) in enumerate(served.items())
    ]
