"""``QdrantStore``: Qdrant Edge, embedded; the default store, with a graph, filters and a write-ahead log."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, require_space, write_json
from lookalike.core.locks import Locked, hold
from lookalike.store import graph_width
from lookalike.store.protocol import (
    Condition,
    Hit,
    Payload,
    Record,
    Vectors,
    Where,
    checked,
    direction,
    point_id,
    unit_rows,
)
from lookalike.store.registry import META

OVERSAMPLING = 1.4  # candidates per hit, at least
QUERIES_PER_THREAD = 8  # at least
# Its files are sparse and memory-mapped: when the disk fills up, the process ends without an error.
MIN_FREE_BYTES = 160_000_000


class QdrantStore:
    """An embedded Qdrant Edge shard; see :class:`Store`. One process at a time can have it open, readers too.

    Open it with :meth:`open` or :meth:`create`.

    Args:
        place: Folder of the store.
        shard: The ``qdrant_edge.EdgeShard``.
        meta: Contents of ``store.json``.
        held: Releases the lock.
    """

    def __init__(self, place: str, shard: Any, meta: dict[str, Any], held: contextlib.ExitStack) -> None:
        self.place, self.dim = Path(place), int(meta["dim"])
        self._held = held
        self._meta = meta
        self._shard = shard
        self._columns = {_unquote(name) for name in shard.info().payload_schema}
        self._writes = 0
        self._counted: tuple[int, int] | None = None  # number of writes, and the count then
        self._threads = ThreadPoolExecutor(threads(), "lookalike-search")

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        import qdrant_edge as q

        if (Path(place) / META).exists():
            raise LookalikeError(f"`{place}` already holds a store.")
        meta = {"store": "qdrant", "format": 1, "dim": dim, "ef": None}
        shard = Path(place) / "shard"
        require_space(place, MIN_FREE_BYTES, "A store of the kind `qdrant` (`exact` takes less)")
        with contextlib.ExitStack() as held, _explained(place):
            held.enter_context(_lock(place))
            shard.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The graph is searched with int8 vectors, a quarter of the size; candidates are scored in full precision.
            bytes_ = q.ScalarQuantizationConfig(q.ScalarType.Int8, quantile=0.99, memory=q.Memory.Pinned)
            config = q.EdgeConfig(
                vectors=q.EdgeVectorParams(dim, q.Distance.Cosine, quantization_config=bytes_),
                hnsw_config=q.HnswIndexConfig(
                    m=16, ef_construct=100, full_scan_threshold=10_000, max_indexing_threads=threads()
                ),
            )
            opened = q.EdgeShard.create(str(shard), config)
            write_json(Path(place) / META, meta, private=True)
            return cls(place, opened, meta, held.pop_all())

    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self:
        import qdrant_edge as q

        meta = read_json(Path(place) / META, "store", mend="Delete the index and make it again.")
        with contextlib.ExitStack() as held, _explained(place, opening=True):
            held.enter_context(_lock(place))
            return cls(place, q.EdgeShard.load(str(Path(place) / "shard")), meta, held.pop_all())

    # -- writing ---------------------------------------------------------------------------------------------

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        import qdrant_edge as q

        names, rows, lines = checked(ids, vectors, payloads, self.dim)
        if not names:
            return
        require_space(self.place, MIN_FREE_BYTES + rows.nbytes, f"Storing {len(names):,} more images")
        points = [
            q.Point(point_id(name), row, {**{_key(n): v for n, v in line.items()}, "_id": name})
            for name, row, line in zip(names, rows.tolist(), lines, strict=True)
        ]
        with _explained(self.place):
            for name in sorted({n for line in lines for n, v in line.items() if isinstance(v, (str, list))}):
                if name not in self._columns and not name.startswith("_"):
                    keyword = q.KeywordIndexParams(prefix=True)
                    self._shard.update(q.UpdateOperation.create_field_index(_quote(name), keyword))
                    self._columns.add(name)
            self._shard.update(q.UpdateOperation.upsert_points(points))
            self._writes += 1
            self._shard.flush()

    def delete(self, ids: Sequence[str]) -> None:
        import qdrant_edge as q

        if ids:
            with _explained(self.place):
                self._shard.update(q.UpdateOperation.delete_points([point_id(name) for name in ids]))
                self._writes += 1
                self._shard.flush()

    def build(self) -> dict[str, Any]:
        """Build the graph if there are enough rows, and choose its search width by measurement."""
        require_space(self.place, MIN_FREE_BYTES + 8 * self.dim * self.count(), "Building the graph")
        with _explained(self.place):
            self._shard.optimize()
            self._shard.flush()
        indexed, rows = self._shard.info().indexed_vectors_count, self.count()
        facts: dict[str, Any] = {"rows": rows, "indexed": indexed, "recall": 1.0, "ef": None}
        if indexed:
            facts["ef"], facts["recall"] = graph_width.measure_width(self, self._sample(graph_width.PROBES))
        self._meta = {**self._meta, "ef": facts["ef"], "recall": facts["recall"]}
        write_json(self.place / META, self._meta, private=True)
        return facts

    def _sample(self, count: int) -> Vectors:
        """Some stored vectors, by the order of ids, which are hashes: a random sample."""
        return np.array([point.vector for point in self._scroll(None, count, (), True)[0]], dtype=np.float32)

    def flush(self) -> None:
        with _explained(self.place):
            self._shard.flush()

    def close(self) -> None:
        self._threads.shutdown()
        self._shard.close()
        self._held.close()

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        if not ids:
            return []
        points = self._shard.retrieve([point_id(name) for name in ids], with_payload=True, with_vector=vectors)
        records = {record.id: record for record in map(_record, points)}
        return [records.get(name) for name in ids]

    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]:
        import qdrant_edge as q

        request = q.SearchRequest(
            query=q.Query.Nearest(direction(positive, negative, dim=self.dim).tolist()),
            limit=k,
            filter=_filter(where),
            params=self._params(k, exact),
            with_payload=True,
        )
        with _explained(self.place):
            return [_hit(point) for point in self._shard.search(request)]

    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]:
        """Search a batch in threads: Qdrant itself runs a batch on one thread if there is one graph."""
        rows = unit_rows(queries, self.dim)
        parts = np.array_split(rows, min(threads(), max(len(rows) // QUERIES_PER_THREAD, 1)))
        search = partial(self._batch, k=k, filter_=_filter(where), params=self._params(k, exact))
        answers = map(search, parts) if len(parts) == 1 else self._threads.map(search, parts)
        return [hits for part in answers for hits in part]

    def _batch(self, rows: Vectors, *, k: int, filter_: Any, params: Any) -> list[list[Hit]]:
        import qdrant_edge as q

        if not len(rows):
            return []
        requests = [
            q.QueryRequest(limit=k, query=q.Query.Nearest(row), filter=filter_, params=params, with_payload=True)
            for row in rows.tolist()
        ]
        with _explained(self.place):
            answers = self._shard.query_batch(q.QueryBatchRequest(requests))
        return [[_hit(point) for point in answer] for answer in answers]

    @property
    def width(self) -> int | None:
        """Number of candidates that a search keeps (``ef``); chosen by ``build``, and can be set."""
        width: int | None = self._meta.get("ef")
        return width

    @width.setter
    def width(self, width: int | None) -> None:
        self._meta = {**self._meta, "ef": width}

    def _params(self, k: int, exact: bool) -> Any:
        """Rescore every candidate: int8 scores alone would swap the last hits."""
        import qdrant_edge as q

        if exact:
            return q.SearchParams(exact=True)
        candidates = max(self.width or 0, math.ceil(OVERSAMPLING * k))
        rescoring = q.QuantizationSearchParams(rescore=True, oversampling=candidates / k)
        return q.SearchParams(hnsw_ef=candidates, quantization=rescoring)

    def _scroll(self, start: Any, limit: int, where: Where, vectors: bool) -> tuple[list[Any], Any]:
        """Up to `limit` points from `start` on, in the order of ids, and the start of the next page."""
        import qdrant_edge as q

        points, after = self._shard.scroll(
            q.ScrollRequest(offset=start, limit=limit, filter=_filter(where), with_payload=True, with_vector=vectors)
        )
        return points, after

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        start: Any = None
        while True:
            points, start = self._scroll(start, batch, where, vectors)
            if points:
                yield [_record(point) for point in points]
            if start is None:
                return

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        import qdrant_edge as q

        if column not in self._columns:
            return []
        request = q.FacetRequest(_quote(column), limit=limit + 1, exact=True, filter=_filter(where))
        pairs = [(str(hit.value), int(hit.count)) for hit in self._shard.facet(request)]
        values = (pair for pair in pairs if pair[0] and pair[1])  # an empty text is not a value to choose
        return sorted(values, key=lambda pair: (-pair[1], pair[0]))[:limit]

    def count(self, where: Where = ()) -> int:
        """Count rows; the total, which every answer shows, is cached until the next write, as Qdrant is slow at it."""
        import qdrant_edge as q

        before = self._writes
        if not where and self._counted is not None and self._counted[0] == before:
            return self._counted[1]
        count = int(self._shard.count(q.CountRequest(exact=True, filter=_filter(where))))
        if not where:
            self._counted = (before, count)
        return count


_CODED = "\0"  # prefix of names that are written as hexadecimal digits


def _key(column: str) -> str:
    """The name of a column in Qdrant, which cannot address names with a quotation mark or a backslash."""
    coded = column.startswith(_CODED) or '"' in column or "\\" in column
    return f"{_CODED}{column.encode().hex()}" if coded else column


def _column(key: str) -> str:
    return bytes.fromhex(key[1:]).decode() if key.startswith(_CODED) else key


def _quote(column: str) -> str:
    """Qdrant reads `a.b` as a path; quoted, a column's name is only a name."""
    return f'"{_key(column)}"'


def _unquote(key: str) -> str:
    return _column(key[1:-1] if key.startswith('"') else key)


def _filter(where: Where) -> Any:
    import qdrant_edge as q

    if not where:
        return None

    def condition(c: Condition) -> Any:
        key = _quote(c.column)
        if not c.prefix:
            return q.FieldCondition(key, match=q.MatchAny(list(c.values)))
        return q.Filter(should=[q.FieldCondition(key, match=q.MatchPrefix(start)) for start in c.values])

    return q.Filter(
        must=[condition(c) for c in where if not c.negate], must_not=[condition(c) for c in where if c.negate]
    )


def _payload(point: Any) -> tuple[str, dict[str, Any]]:
    payload: dict[str, Any] = point.payload  # made anew at every access
    name = payload.pop("_id")
    return name, {_column(key): value for key, value in payload.items() if value is not None}


def _record(point: Any) -> Record:
    name, payload = _payload(point)
    return Record(name, payload, None if point.vector is None else np.array(point.vector, dtype=np.float32))


def _hit(point: Any) -> Hit:
    name, payload = _payload(point)
    return Hit(name, min(max(float(point.score), -1.0), 1.0), payload)


def _lock(place: str) -> contextlib.AbstractContextManager[None]:
    """Our own lock before Qdrant's, which refuses a second process only after truncating files of the first."""
    return hold(Path(place) / ".lock", f"The store `{place}`")


@contextlib.contextmanager
def _explained(place: str | Path, *, opening: bool = False) -> Iterator[None]:
    """Turn known errors into one-line errors: Qdrant Edge raises bare exceptions and panics."""
    try:
        yield
    except LookalikeError:
        raise
    except BaseException as error:
        text = str(error)
        if "WouldBlock" in text:
            raise Locked(
                f"Another process has the index `{Path(place).parent}` open: wait for it to end, or stop it."
            ) from error
        if "No space left" in text or "StorageFull" in text or "Disk quota" in text:
            raise LookalikeError(
                f"The disk that holds `{place}` is full; stored images are safe. Free some space and try again."
            ) from error
        if opening and (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            reason = text.splitlines()[0][:200] if text else type(error).__name__
            raise LookalikeError(
                f"The store `{place}` is damaged ({reason}): delete the index and make it again."
            ) from error
        raise
