"""``MilvusStore``: a collection on a Milvus server.

The store's local folder holds the address, the name of the collection and the measured search width; rows are on the
server only. What the server has acknowledged is in its log, and every read is strongly consistent: it sees all that was
acknowledged before.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from lookalike.store.graph import PROBES
from lookalike.store.milvus_client import STRONG, Client, connected, parse_address
from lookalike.store.milvus_filters import KEY, VECTOR, filter_expression, from_key, list_literal, to_fields, to_key
from lookalike.store.protocol import Neighbors, Payload, Record, Rows, Vectors, Where, checked, point_id, unit_rows
from lookalike.store.scan import merge_neighbors, nearest
from lookalike.store.shards import Collection, Shards

PAGE = 16_384  # the most rows that a server returns at once
BYTES = 16_000_000  # of vectors in one message; servers refuse 64 MB
GRAPH_FROM = 1000  # rows; below, a server builds no graph and compares with all
GROWTH = 0.1  # fraction of rows added or deleted after which the width is measured again
DEFAULT_WIDTH = 128  # before the first measurement
COMPARED = 20_000  # rows that a filter may leave to be fetched and compared here
# Times as many candidates with a filter that keeps all rows, and more the fewer it keeps: with few candidates a graph
# misses much where the query's own class is filtered out (docs/design).
FILTERED, MAX_WIDTH = 32, 32_768  # what a server takes


class MilvusCollection(Collection):
    """One collection; see :class:`Collection`."""

    kind = "milvus"

    def __init__(self, place: str, client: Client, meta: dict[str, Any]) -> None:
        super().__init__(place, client, meta)
        self._client = client
        self._keys: list[str] = []  # of row numbers, in the order in which this process met them
        self._numbers: dict[str, int] = {}
        self._guard = threading.Lock()
        self._page = min(PAGE, max(1, BYTES // (4 * self.dim)))

    @classmethod
    def _named(cls, dim: int) -> dict[str, Any]:
        return {"collection": f"lookalike_{secrets.token_hex(12)}", "lists": {}}

    @classmethod
    def _connected(cls, meta: dict[str, Any], beside: Self | None) -> contextlib.AbstractContextManager[Client]:
        return connected(parse_address(meta["address"]), meta["collection"], beside._client if beside else None)

    def _create(self) -> None:
        self._client.make(self.dim)

    def _check(self) -> None:
        self._client.ready(self.dim)

    @classmethod
    def _drop(cls, connection: Client, meta: dict[str, Any]) -> None:
        connection.call("drop_collection")

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, rows, lines = checked(ids, vectors, payloads, self.dim)
        self._record_list_lengths(lines)
        points = [
            {KEY: point_id(name), VECTOR: row, **to_fields(line), to_key("_id"): name}
            for name, row, line in zip(names, rows, lines, strict=True)
        ]
        for part in _parts(points, min(self._page, 1000)):
            self._client.call("upsert", part)

    def _record_list_lengths(self, payloads: Sequence[Payload]) -> None:
        """Record how long the lists of a column are, before they are stored: filters name every position."""
        longest: dict[str, int] = dict(self._meta["lists"])
        for name, value in (item for line in payloads for item in line.items()):
            if isinstance(value, list):
                longest[name] = max(longest.get(name, 0), len(value))
        if longest != self._meta["lists"]:
            self._record(lists=longest)

    def delete(self, ids: Sequence[str]) -> None:
        for part in _parts([point_id(name) for name in ids], 1000):
            self._client.call("delete", filter=f"{KEY} in {list_literal(part)}")

    def build(self) -> dict[str, Any]:
        """Let the server build its graph if there are enough rows, and measure how many candidates it must keep."""
        rows = self.count()
        if rows < GRAPH_FROM:
            return self._measured(rows, None, GROWTH)
        self._client.build()

        def sample() -> Vectors:
            """Rows by the order of their keys, which are hashes: at random."""
            return np.array([row[VECTOR] for row in next(self._pages((), [VECTOR], PROBES))], dtype=np.float32)

        return self._measured(rows, sample, GROWTH)

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        return self._fetch([point_id(name) for name in ids], vectors)

    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors:
        """Return row numbers and scores of the k nearest rows; see :class:`Store`.

        The server's graph loses hits under filters: rows are compared here if a filter leaves few enough of them.
        """
        unit = unit_rows(queries, self.dim)
        selected = self.count(where) if where and self.width else 0
        if exact or k > PAGE or (where and self.width and selected <= COMPARED):
            return self._exact(unit, k, where)
        width = max(self.width or DEFAULT_WIDTH, k)
        if where:  # the fewer rows are left, the more candidates lead to none of them
            width = min(width * FILTERED * max(1, self._meta.get("measured", 0) // max(selected, 1)), MAX_WIDTH)
        rows, scores = np.full((len(unit), k), -1, np.int64), np.full((len(unit), k), -np.inf, np.float32)
        for start in range(0, len(unit), max(1, PAGE // k)):
            part = list(unit[start : start + max(1, PAGE // k)])
            params = {"metric_type": "IP", "params": {"ef": width}}
            options: dict[str, Any] = {"search_params": params, "consistency_level": STRONG}
            answers = self._client.call("search", part, filter=self._expression(where), limit=k, **options)
            for line, hits in enumerate(answers, start):
                rows[line, : len(hits)] = self._number([str(hit["id"]) for hit in hits])
                scores[line, : len(hits)] = np.clip([hit["distance"] for hit in hits], -1, 1)
        return Neighbors(rows, scores)

    def _number(self, keys: list[str]) -> list[int]:
        """Row numbers of keys, given when this process first meets them."""
        with self._guard:
            for key in keys:
                if key not in self._numbers:
                    self._numbers[key] = len(self._keys)
                    self._keys.append(key)
            return [self._numbers[key] for key in keys]

    def _exact(self, queries: Vectors, k: int, where: Where) -> Neighbors:
        """Fetch every vector and compare it here: the server itself would use its graph."""
        best = [(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32))]
        for page in self._pages(where, [VECTOR], self._page):
            numbers = np.array(self._number([row[KEY] for row in page]), np.int64)
            places, scores = nearest(queries, np.array([row[VECTOR] for row in page], np.float32), k)
            best = [merge_neighbors([*best, (numbers[places], scores)], k)]
        return Neighbors(*best[0])

    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]:
        """Return rows by number, ``None`` for those that are gone."""
        return self._fetch([self._keys[row] for row in rows.tolist()], vectors)

    def _fetch(self, keys: list[str], vectors: bool) -> list[Record | None]:
        records: dict[str, Record] = {}
        for part in _parts(list(dict.fromkeys(keys)), min(self._page, 1000)):
            fields = ["$meta", *([VECTOR] * vectors)]
            rows = self._client.query(f"{KEY} in {list_literal(part)}", fields, len(part))
            records.update({row[KEY]: _record(row) for row in rows})
        return list(map(records.get, keys))

    def _expression(self, where: Where) -> str:
        return filter_expression(where, self._meta["lists"])

    def _pages(self, where: Where, fields: list[str], size: int) -> Iterator[list[dict[str, Any]]]:
        """All rows that meet a filter, in the order of their keys."""
        selection, last = self._expression(where), ""
        while True:
            beyond = f'{KEY} > "{last}"'
            rows = self._client.query(f"{beyond} and {selection}" if selection else beyond, fields, size)
            keys = [row[KEY] for row in rows]
            if keys != sorted(keys):
                raise RuntimeError("the server returned rows out of order: some would be missed")
            if rows:
                yield rows
            if len(rows) < size:
                return
            last = keys[-1]

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        for rows in self._pages(where, ["$meta", *([VECTOR] * vectors)], min(batch, self._page)):
            yield [_record(row) for row in rows]

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        """Count the values of a column, here and page by page: the server counts only rows."""
        counts: Counter[str] = Counter()
        key = to_key(column)
        for rows in self._pages(where, [key], PAGE) if not column.startswith("_") else ():
            for row in rows:
                value = row.get(key)
                counts.update(set(value) if isinstance(value, list) else [value] if isinstance(value, str) else [])
        del counts[""]
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]

    def count(self, where: Where = ()) -> int:
        return int(self._client.query(self._expression(where), ["count(*)"])[0]["count(*)"])


class MilvusStore(Shards):
    """A store on a Milvus server; see :class:`Shards`."""

    collection, parse, example = MilvusCollection, staticmethod(parse_address), "milvus://HOST:19530"


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _record(row: dict[str, Any]) -> Record:
    payload = {from_key(k): v for k, v in row.items() if k not in (KEY, VECTOR) and k[:2] != "n_" and v is not None}
    vector = np.array(row[VECTOR], dtype=np.float32) if VECTOR in row else None
    return Record(payload.pop("_id"), payload, vector)
