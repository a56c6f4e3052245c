"""``Shards``: a store on a server as a row of collections, of which the last one grows until it is full.

A graph of all rows in one collection would need the memory of one node, and be built again as a whole. The first
collection has the store's own folder, each later one a folder ``shard-N`` in it. A row that is written again stays
where it is; new rows go to the last collection.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.locks import hold
from lookalike.store.graph import MIN_RECALL, WIDTHS, K
from lookalike.store.protocol import Neighbors, Payload, Queries, Record, Rows, Vectors, Where, checked
from lookalike.store.registry import META
from lookalike.store.scan import merge_neighbors

SHARD_ROWS = 10_000_000  # of a collection before the next one is begun
BASE = 1 << 40  # row numbers of a collection
MARGIN = 2  # times the width that the probes of `build` need: other queries need more


class Collection:
    """One collection of a store on a server; its local folder holds its address, its name and the measured width.

    Args:
        place: The local folder.
        connection: The connection to the server.
        meta: Contents of ``store.json``.
    """

    kind: ClassVar[str]
    _named: ClassVar[Any]  # (dim): what else is recorded of a new one
    _connected: ClassVar[Any]  # (meta, beside): a connection, or that of another collection, until the end of a block
    _create: Callable[[], None]
    _check: Callable[[], None]  # raises if the server does not have it
    _drop: ClassVar[Any]  # (connection, meta)

    def __init__(self, place: str, connection: Any, meta: dict[str, Any]) -> None:
        self.place, self.dim, self._meta = Path(place), int(meta["dim"]), meta
        self.width: int | None = meta["ef"]  # candidates that a search keeps; chosen by `build`, None without a graph
        self._held = contextlib.ExitStack()  # closes the connection and releases the locks

    @classmethod
    def create_at(cls, address: str, place: str, dim: int, beside: Self | None = None) -> Self:
        """Create a collection on a server, or another one beside one, with its connection and its locks.

        It is recorded before it is created, so that whatever a kill leaves of it can be deleted.
        """
        meta = {"store": cls.kind, "format": 1, "dim": dim, "address": address, "ef": None, **cls._named(dim)}
        with cls._attached(place, meta, beside, write=True) as collection:
            write_json(collection.place / META, meta, private=True)
            collection._create()
        return collection

    @classmethod
    def open(cls, place: str, *, write: bool = False, beside: Self | None = None) -> Self:
        meta = read_json(Path(place) / META, "store", mend="Delete the index and make it again.")
        with cls._attached(place, meta, beside, write=write) as collection:
            collection._check()
        return collection

    @classmethod
    def drop(cls, place: str) -> None:
        meta = read_json(Path(place) / META, "store", mend="Delete that folder.")
        with cls._connected(meta, None) as connection:
            cls._drop(connection, meta)

    @classmethod
    @contextlib.contextmanager
    def _attached(cls, place: str, meta: dict[str, Any], beside: Self | None, *, write: bool) -> Iterator[Self]:
        """A collection with its connection and, for a writer, its locks, which are released if the block fails."""
        with contextlib.ExitStack() as held:
            collection = cls(place, held.enter_context(cls._connected(meta, beside)), meta)
            if write and beside is None:
                held.enter_context(collection._locked())
            yield collection
            collection._held = held.pop_all()

    def _locked(self) -> contextlib.AbstractContextManager[Any]:
        """The right to write."""
        return hold(self.place / ".lock", f"The store `{self.place}`")

    def close(self) -> None:
        self._held.close()

    def _record(self, **facts: Any) -> None:
        self._meta = {**self._meta, **facts}
        self.width = self._meta["ef"]
        write_json(self.place / META, self._meta, private=True)

    def _measured(self: Any, rows: int, sample: Callable[[], Vectors] | None, growth: float) -> dict[str, Any]:
        """Record the search width that some stored vectors need, if a fraction `growth` of the rows has changed.

        Queries are halfway between a vector and a near one. Without a `sample` there is no graph, and every row is
        compared.
        """
        if sample is None:
            self._record(ef=None, recall=1.0, measured=rows)
        elif self._meta["ef"] is None or abs(rows - self._meta["measured"]) > growth * self._meta["measured"]:
            vectors, recall = sample(), 0.0
            near = self.records(self.search(vectors, 6, exact=True).rows[:, -1], vectors=True)
            queries = np.stack([v + r.vector for v, r in zip(vectors, near, strict=True) if r])
            truth = self.search(queries, K, exact=True).rows
            for self.width in WIDTHS:
                hits = self.search(queries, K).rows
                recall = float(np.mean([np.isin(t, line).mean() for t, line in zip(truth, hits, strict=True)]))
                if recall >= MIN_RECALL:
                    break
            self._record(ef=MARGIN * self.width, recall=recall, measured=rows)
        return {"rows": rows, "recall": self._meta["recall"], "ef": self.width}


class Shards(Queries):
    """A store on a server; see :class:`ServerStore`.

    Any number of processes may read; one writes at a time. Open it with :meth:`open` or :meth:`create_at`.

    Args:
        place: The local folder.
        shards: The collections.
        write: Whether they are open for writing.
    """

    collection: ClassVar[Any]
    parse: ClassVar[Any]
    example: ClassVar[str]

    def __init__(self, place: str, shards: list[Any], *, write: bool) -> None:
        self.place, self.dim, self._write = Path(place), int(shards[0].dim), write
        self._shards, self._left = shards, 0  # new rows that the last collection still takes; counted when they are 0

    @classmethod
    def address(cls, text: str) -> str:
        return str(cls.parse(text))

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        raise LookalikeError(f"A store on a server needs an address: {cls.example}.")

    @classmethod
    def create_at(cls, address: str, place: str, dim: int) -> Self:
        if (Path(place) / META).exists():
            raise LookalikeError(f"`{place}` already holds a store.")
        return cls(place, [cls.collection.create_at(address, place, dim)], write=True)

    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self:
        with contextlib.ExitStack() as opened:
            first = cls.collection.open(place, write=write)
            opened.callback(first.close)
            store = cls(place, [first], write=write)
            store._open_shards()
            opened.pop_all()
        return store

    @classmethod
    def drop(cls, place: str) -> None:
        for meta in sorted(Path(place).rglob(META)):  # also of a collection that a kill left unfinished
            cls.collection.drop(str(meta.parent))

    @property
    def shards(self) -> list[Any]:
        """The collections; a writer may have begun another one since this store was opened."""
        self._open_shards()
        return self._shards

    def _open_shards(self) -> None:
        while (folder := self.place / f"shard-{len(self._shards)}").is_dir():
            self._shards.append(self.collection.open(str(folder), write=self._write, beside=self._shards[0]))

    def _begin_shard(self) -> None:
        """Create the next collection; it appears to readers once it is complete."""
        folder, part = (self.place / f"{kind}-{len(self._shards)}" for kind in ("shard", "new"))
        if (part / META).exists():
            self.collection.drop(str(part))
            (part / META).unlink()
        address = read_json(self.place / META, "store")["address"]
        self.collection.create_at(address, str(part), self.dim, self._shards[0]).close()
        part.rename(folder)

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, rows, lines = checked(ids, vectors, payloads, self.dim)
        if not names:
            return

        def write(number: int, part: list[int]) -> None:
            self.shards[number].upsert([names[i] for i in part], rows[part], [lines[i] for i in part])

        left = list(range(len(names)))
        for number, shard in enumerate(self.shards[:-1]):
            held = {i for i, record in enumerate(shard.get(names)) if record is not None}
            if held:
                write(number, sorted(held.intersection(left)))
                left = [i for i in left if i not in held]
        while left:
            self._left = self._left or max(0, SHARD_ROWS - self.shards[-1].count())
            if not self._left:
                self._begin_shard()
                self._left = SHARD_ROWS
            part, left = left[: self._left], left[self._left :]
            write(len(self.shards) - 1, part)
            self._left -= len(part)

    def delete(self, ids: Sequence[str]) -> None:
        for shard in self.shards:
            shard.delete(ids)

    def build(self) -> dict[str, Any]:
        facts = [shard.build() for shard in self.shards]
        widths = [one["ef"] for one in facts if one["ef"] is not None]
        recall = min(one["recall"] for one in facts)
        return {"rows": sum(one["rows"] for one in facts), "recall": recall, "ef": max(widths, default=None)}

    def close(self) -> None:
        self._shards[0].close()  # the others have its connections

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        answers = [shard.get(ids, vectors=vectors) for shard in self.shards]
        return [next(filter(None, records), None) for records in zip(*answers, strict=True)]

    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors:
        """Return row numbers and scores of the k nearest rows; see :class:`Store`."""
        parts = []
        for number, shard in enumerate(self.shards):
            rows, scores = shard.search(queries, k, where=where, exact=exact)
            parts.append((np.where(rows >= 0, rows + BASE * number, -1), scores))
        return Neighbors(*(parts[0] if len(parts) == 1 else merge_neighbors(parts, k)))

    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]:
        """Return rows by number, ``None`` for those that are gone."""
        numbers = np.asarray(rows, np.int64)
        out: list[Record | None] = [None] * len(numbers)
        for number in np.unique(numbers // BASE).tolist():
            places = np.flatnonzero(numbers // BASE == number)
            records = self.shards[number].records(numbers[places] - BASE * number, vectors=vectors)
            for place, record in zip(places.tolist(), records, strict=True):
                out[place] = record
        return out

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        for shard in self.shards:
            yield from shard.scan(where=where, vectors=vectors, batch=batch)

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        counts: Counter[str] = Counter()
        every = limit if len(self.shards) == 1 else 1 << 31  # what is rare in one may be frequent in another
        for shard in self.shards:
            counts.update(dict(shard.facets(column, where=where, limit=every)))
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]

    def count(self, where: Where = ()) -> int:
        return sum(shard.count(where) for shard in self.shards)
