"""The pool of images from outside: reading and searching it, and the receipts of how its images were used."""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.data.table import BOX
from lookalike.evaluation.neighbors import top_k

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
        lists: Any = {name: [getattr(self, name)[i] for i in rows] for name in ("ids", "places", "names")}
        return replace(self, **lists)

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
    allowed, denied, left = Listed(allow), Listed(deny), Counter[str]()
    tables: list[Table] = []
    seen: dict[str, tuple[tuple[int, int], str]] = {}
    for number, source in enumerate(source for source in folders_ if not _bare(source)):
        table = source if isinstance(source, Table) else read_table(source, progress=progress)
        audited = audit(table, near=False, progress=progress)
        left["unreadable"] += len(audited.unreadable)
        tables.append(audited.table)
        for row, (id_, path) in enumerate(zip(content_ids(tables[-1]), tables[-1].column("path"), strict=True)):
            name = f"{audited.table.name}/{path}"
            named, refused = allowed.holds(id_, name), denied.holds(id_, name)
            reasons = {"not allowed": allow and not named, "denied": refused, "copies": id_ in seen}
            if why := next((why for why, holds in reasons.items() if holds), None):
                left[why] += 1
            else:
                seen[id_] = (number, row), name
    ids = sorted(seen)
    places, names = [seen[id_][0] for id_ in ids], [seen[id_][1] for id_ in ids]
    order = ("copies", "not allowed", "denied", "unreadable")
    left_out = {why: left[why] for why in order if left[why]}
    return Pool(tables, ids, places, names, left_out, [*allowed.idle, *denied.idle])


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


# ---- searching --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrieved:
    """Retrieved pool images of every target image, best first.

    Args:
        index: Pool rows, −1 for none.
        scores: Their similarities.
        copies: Number of pairs left out because the pool image is the target image, or nearly.
        own: Similarity of a target image and the nearest other one, the median; NaN if not known.

    Shape:
        - index, scores: ``(targets, k)``.
    """

    index: np.ndarray
    scores: np.ndarray
    copies: int = 0
    own: float = math.nan

    @property
    def used(self) -> np.ndarray:
        return np.unique(self.index[self.index >= 0])

    def describe(self, pool: int) -> str:
        """How many pool images are used, and how alike they are beside the target's own."""
        best = self.scores[self.index[:, 0] >= 0, 0]
        text = f"{len(self.used):,} of {pool:,} images retrieved for {len(self.index):,}"
        if not len(best):
            return text
        return f"{text}, similarity {np.median(best):.2f} (target images among themselves {self.own:.2f})"

    def among_used(self) -> np.ndarray:
        """`index` as places among the used ones."""
        return np.where(self.index >= 0, np.searchsorted(self.used, self.index), -1)


def no_retrievals(count: int, k: int) -> Retrieved:
    """Nothing retrieved for any target image."""
    shape = (count, max(k, 1))
    return Retrieved(np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32))


def nearest(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
) -> Retrieved:
    """The k most similar pool images of each target image; ties go to the lower id, copies are left out.

    Args:
        target: Unit vectors of the target images.
        pool: Unit vectors of the pool images.
        target_ids: Content ids of the target images.
        pool_ids: Content ids of the pool images.
        k: Number of images to retrieve.
        near_copy: Similarity from which a pool image counts as a copy.

    Example:
        >>> from lookalike.adaptation.pool import nearest
        >>> target, pool = np.eye(2, 3, dtype=np.float32), np.eye(3, dtype=np.float32)
        >>> nearest(target, pool, ["a", "b"], ["x", "y", "z"], 1, near_copy=2.0).index.ravel()
        array([0, 1])
    """
    out, copies, names = no_retrievals(len(target), k), 0, np.asarray(pool_ids)
    open_rows, wide = np.arange(len(target) if k and len(pool) else 0), min(len(pool), k + 4)
    while len(open_rows):
        result, places = top_k(target[open_rows], pool, wide)
        again = []
        for row, values, at in zip(open_rows, result, places, strict=True):
            copy = (at >= 0) & ((values >= near_copy) | (names[at] == target_ids[int(row)]))
            keep = np.flatnonzero(~copy & (at >= 0))[:k]
            if len(keep) < k and wide < len(pool):
                again.append(row)
                continue
            out.index[row, : len(keep)], out.scores[row, : len(keep)] = at[keep], values[keep]
            copies += int(copy.sum())
        open_rows, wide = np.asarray(again, np.int64), min(len(pool), 4 * wide)
    return replace(out, copies=copies)


def random_retrievals(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
    seed: int = 0,
) -> Retrieved:
    """Draw k random pool images for each target image, keyed by the ids of both.

    The draw of a pair does not depend on the other images of the pool. Copies are left out as in `nearest`.
    """
    out, copies, names = no_retrievals(len(target), k), 0, np.asarray(pool_ids)
    numbers = np.array([derive(seed, "pool", id_) for id_ in pool_ids], np.uint64)
    for row, id_ in enumerate(target_ids if k and len(pool) else ()):
        order = np.argsort(_scrambled(numbers ^ np.uint64(derive(seed, "target", id_))), kind="stable")
        values = pool[order] @ target[row]
        copy = (values >= near_copy) | (names[order] == id_)
        keep = np.flatnonzero(~copy)[:k]
        out.index[row, : len(keep)], out.scores[row, : len(keep)] = order[keep], values[keep]
        copies += int(copy[: keep[-1] + 1].sum() if len(keep) == k else copy.sum())
    return replace(out, copies=copies)


def _scrambled(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers without pattern (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# ---- receipts ---------------------------------------------------------------------------------------


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
    counts = {"steps_loaded": receipts.loaded, "times_negative": receipts.negatives, "last_step": receipts.last}
    return [
        {"id": pool.ids[i], "path": pool.names[i], "served": pairs, **{name: int(c[row]) for name, c in counts.items()}}
        for row, (i, pairs) in enumerate(served.items())
    ]
