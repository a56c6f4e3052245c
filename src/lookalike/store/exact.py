"""``ExactStore``: every query is compared with every vector. The reference for all other stores.

Two files only grow: the vectors (raw float32 rows, memory-mapped) and a log of checksummed Arrow frames with ids and
payloads. A frame is written after its vectors are on disk, so a kill leaves at most a tail without a frame, which the
next writer cuts off. ``build`` drops deleted rows by writing a new pair of files and switching to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.locks import hold
from lookalike.evaluation.neighbors import top_k_scores
from lookalike.store.frames import Frames, columns, unify
from lookalike.store.protocol import Condition, Hit, Payload, Record, Vectors, Where, checked, direction, unit_rows
from lookalike.store.registry import META

BLOCK = 32_768  # rows compared at a time, which bounds the memory of a query


class ExactStore:
    """Exact search in memory-mapped files; see :class:`Store`.

    Any number of processes may read and see the state at opening; one writes at a time.

    Args:
        place: Folder of the store.
        write: Whether to open it for writing.

    Example:
        >>> with contextlib.closing(ExactStore.create("vectors", 2)) as store:
        ...     store.upsert(["a", "b"], np.eye(2, dtype=np.float32), [{}, {}])
        ...     [(hit.id, round(hit.score, 2)) for hit in store.query(np.array([3.0, 4.0]), 2)]
        [('b', 0.8), ('a', 0.6)]
    """

    def __init__(self, place: str, *, write: bool) -> None:
        self.place = Path(place)
        meta = read_json(self.place / META, "store", mend="Delete the index and make it again.")
        self.dim, self._number = int(meta["dim"]), int(meta["number"])
        self._guard = threading.RLock()
        self._held = contextlib.ExitStack()
        if write:
            self._held.enter_context(hold(self.place / ".lock", f"The store `{self.place}`"))
        self._load(write)

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        if (Path(place) / META).exists():
            raise LookalikeError(f"`{place}` already holds a store.")
        write_json(Path(place) / META, {"store": "exact", "format": 1, "dim": dim, "number": 1}, private=True)
        return cls(place, write=True)

    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self:
        return cls(place, write=write)

    # -- state -----------------------------------------------------------------------------------------------

    def _load(self, write: bool) -> None:
        self._frames: Frames | None = Frames(self.place, self._number, self.dim, write=write)
        self._ids: list[str] = []
        self._row: dict[str, int] = {}
        self._tables: list[pa.Table] = []
        self._live = np.zeros(self._frames.rows, dtype=bool)
        for kind, table in self._frames.replay():
            names = table["_id"].to_pylist()
            if kind == "delete":
                self._remove_rows(names)
            else:
                self._add_rows(names, table)

    def _remove_rows(self, ids: Sequence[str]) -> None:
        for name in ids:
            row = self._row.pop(name, None)
            if row is not None:
                self._live[row] = False

    def _add_rows(self, ids: Sequence[str], table: pa.Table) -> None:
        self._remove_rows(ids)
        start = len(self._ids)
        if start + len(ids) > len(self._live):
            self._live = np.concatenate([self._live, np.zeros(max(len(ids), len(self._live)), dtype=bool)])
        self._live[start : start + len(ids)] = True
        self._row.update(zip(ids, range(start, start + len(ids)), strict=True))
        self._ids.extend(ids)
        self._tables.append(table)

    def _open_frames(self) -> Frames:
        if self._frames is None:
            raise ValueError("the store is closed")
        return self._frames

    def _payload(self) -> pa.Table:
        """The payloads of all rows, deleted ones too, as one table."""
        with self._guard:
            if len(self._tables) > 1:
                self._tables = [unify(self._tables)]
            return self._tables[0] if self._tables else pa.table({"_id": pa.array([], pa.string())})

    def _selected(self, where: Where) -> NDArray[np.int64]:
        """The rows that are not deleted and meet every condition."""
        table = self._payload()
        mask = self._live[: len(table)].copy()
        for condition in where:
            mask &= _meets(table, condition)
        return np.flatnonzero(mask)

    def _records(self, rows: NDArray[np.int64], vectors: bool) -> list[Record]:
        payload = self._payload().take(pa.array(rows)).to_pylist()
        matrix = self._open_frames().vectors()[rows] if vectors else [None] * len(rows)
        return [
            Record(line.pop("_id"), {k: v for k, v in line.items() if v is not None}, vector)
            for line, vector in zip(payload, matrix, strict=True)
        ]

    # -- writing ---------------------------------------------------------------------------------------------

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, rows, lines = checked(ids, vectors, payloads, self.dim)
        if not names:
            return
        table = columns(names, lines)
        with self._guard:
            self._open_frames().append(table, rows)
            self._add_rows(names, table)

    def delete(self, ids: Sequence[str]) -> None:
        with self._guard:
            known = [name for name in dict.fromkeys(ids) if name in self._row]
            if known:
                self._open_frames().append(columns(known, [{}] * len(known)), None)
                self._remove_rows(known)

    def build(self) -> dict[str, Any]:
        """Drop deleted rows if they are more than a fifth of the file."""
        with self._guard:
            frames = self._open_frames()
            rows = self._selected(())
            if len(rows) < 0.8 * len(self._ids):
                fresh = Frames(self.place, self._number + 1, self.dim, write=True, anew=True)
                table, matrix = self._payload().take(pa.array(rows)), frames.vectors()
                for start in range(0, len(rows), BLOCK):
                    fresh.append(table.slice(start, BLOCK), matrix[rows[start : start + BLOCK]])
                fresh.close()
                self._number += 1
                meta = {"store": "exact", "format": 1, "dim": self.dim, "number": self._number}
                write_json(self.place / META, meta, private=True)
                frames.remove()
                self._load(write=True)
        return {"rows": self.count(), "recall": 1.0}

    def flush(self) -> None:
        """Do nothing: every write is on disk when it returns."""

    def close(self) -> None:
        with self._guard, self._held:
            if self._frames is not None:
                self._frames.close()
                self._frames = None

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        with self._guard:
            known = [name for name in dict.fromkeys(ids) if name in self._row]
            rows = np.array([self._row[name] for name in known], dtype=np.int64)
            records = {record.id: record for record in self._records(rows, vectors)} if known else {}
        return [records.get(name) for name in ids]

    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]:
        return self.query_many(direction(positive, negative)[None], k, where=where)[0]

    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]:
        with self._guard:
            rows, matrix = self._selected(where), self._open_frames().vectors()
        unit_queries = unit_rows(queries, self.dim)
        scores, best = nearest(unit_queries, matrix, rows, k)
        if best.size == 0:
            return [[] for _ in unit_queries]
        unique, inverse = np.unique(best, return_inverse=True)
        records = self._records(unique, False)
        places = inverse.reshape(best.shape)
        return [
            [Hit(records[p].id, float(s), dict(records[p].payload)) for p, s in zip(line, near, strict=True)]
            for line, near in zip(places, scores, strict=True)
        ]

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        rows = self._selected(where)
        for start in range(0, len(rows), batch):
            yield self._records(rows[start : start + batch], vectors)

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        table = self._payload()
        if column not in table.column_names or column.startswith("_"):
            return []
        values = table[column].take(pa.array(self._selected(where)))
        if pa.types.is_list(values.type):
            each = {"row": pc.list_parent_indices(values), "value": pc.list_flatten(values)}
            values = pa.table(each).group_by(["row", "value"]).aggregate([])["value"]  # an image counts once
        if not pa.types.is_string(values.type):
            return []
        counts = [(row["values"], row["counts"]) for row in pc.value_counts(values).to_pylist() if row["values"]]
        return sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:limit]

    def count(self, where: Where = ()) -> int:
        return len(self._selected(where)) if where else len(self._row)


def _meets(table: pa.Table, condition: Condition) -> NDArray[np.bool_]:
    mask = np.zeros(len(table), dtype=bool)
    if condition.column in table.column_names:
        values = table[condition.column].combine_chunks()
        parents: NDArray[np.int64] | None = None
        if pa.types.is_list(values.type):
            parents = pc.list_parent_indices(values).to_numpy()
            values = pc.list_flatten(values)
        if pa.types.is_string(values.type):
            if condition.prefix:
                matches = np.zeros(len(values), dtype=bool)
                for start in condition.values:
                    matches |= pc.starts_with(values, start).fill_null(False).to_numpy(zero_copy_only=False)
            else:
                matches = pc.is_in(values, pa.array(condition.values, pa.string())).to_numpy(zero_copy_only=False)
            if parents is None:
                mask = matches
            else:
                mask[parents[matches]] = True
    return ~mask if condition.negate else mask


def nearest(
    queries: Vectors, matrix: Vectors, rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find the k nearest of some rows by cosine, block by block.

    Args:
        queries: Unit queries.
        matrix: All unit vectors.
        rows: Rows of ``matrix`` to compare with.
        k: Number of neighbors.

    Returns:
        Scores and row numbers, best first, ties by row.

    Shape:
        - queries: ``(Q, D)``; matrix: ``(N, D)``; rows: ``(R,)``; output: ``(Q, min(k, R))`` each.
    """
    k = min(k, len(rows))
    scores = np.empty((len(queries), 0), dtype=np.float32)
    best = np.empty((len(queries), 0), dtype=np.int64)
    all_rows = len(rows) == len(matrix)
    for start in range(0, len(rows) if k else 0, BLOCK):
        part = rows[start : start + BLOCK]
        block = matrix[start : start + BLOCK] if all_rows else matrix[part]
        scores = np.concatenate([scores, queries @ block.T], axis=1)
        best = np.concatenate([best, np.broadcast_to(part, (len(queries), len(part)))], axis=1)
        scores, order = top_k_scores(scores, k)
        best = np.take_along_axis(best, order, 1)
    return np.clip(scores, -1, 1), best
