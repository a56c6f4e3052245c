"""``MilvusStore``: a collection on a Milvus server.

The store's local folder holds the address, the name of the collection and the measured search width; rows are on the
server only. What the server has acknowledged is in its log, and every read is strongly consistent: it sees all that was
acknowledged before.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.locks import hold
from lookalike.evaluation.neighbors import top_k_scores
from lookalike.store import graph_width
from lookalike.store.exact import nearest
from lookalike.store.milvus_client import Client, connected, parse_address
from lookalike.store.milvus_filters import KEY, VECTOR, filter_expression, from_key, list_literal, to_key
from lookalike.store.protocol import Hit, Payload, Record, Vectors, Where, checked, direction, point_id, unit_rows
from lookalike.store.registry import META

PAGE = 16_384  # the most rows that a server returns at once
BYTES = 16_000_000  # of vectors in one message; servers refuse 64 MB
GRAPH_FROM = 1000  # rows; below, a server builds no graph and compares with all
GROWTH = 0.1  # fraction of rows added or deleted after which the width is measured again
DEFAULT_WIDTH = 128  # before the first measurement


class MilvusStore:
    """A store on a Milvus server; see :class:`ServerStore`.

    Any number of processes may read; one writes at a time. Open it with :meth:`open` or :meth:`create_at`.

    Args:
        place: The local folder.
        client: The connection.
        meta: Contents of ``store.json``.
        held: Closes the connection and releases the lock.
    """

    def __init__(self, place: str, client: Client, meta: dict[str, Any], held: contextlib.ExitStack) -> None:
        self.place, self.dim = Path(place), int(meta["dim"])
        self._client, self._meta, self._held = client, meta, held
        self._page = min(PAGE, max(1, BYTES // (4 * self.dim)))

    @classmethod
    def address(cls, text: str) -> str:
        return str(parse_address(text))

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        raise LookalikeError("A Milvus store needs an address: milvus://HOST:19530.")

    @classmethod
    def create_at(cls, address: str, place: str, dim: int) -> Self:
        """Create a store on a server.

        The collection is recorded before it is created, so that whatever a kill leaves of it can be deleted.
        """
        meta_file = Path(place) / META
        if meta_file.exists():
            raise LookalikeError(f"`{place}` already holds a store.")
        meta: dict[str, Any] = {"store": "milvus", "format": 1, "dim": dim, "address": address, "ef": None, "lists": {}}
        meta["collection"] = f"lookalike_{secrets.token_hex(12)}"
        with contextlib.ExitStack() as held:
            client = held.enter_context(connected(parse_address(address), meta["collection"]))
            client.probe()
            held.enter_context(_lock(place))
            write_json(meta_file, meta, private=True)
            client.make(dim)
            return cls(place, client, meta, held.pop_all())

    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self:
        meta = read_json(Path(place) / META, "store", mend="Delete the index and make it again.")
        with contextlib.ExitStack() as held:
            if write:
                held.enter_context(_lock(place))
            client = held.enter_context(connected(parse_address(meta["address"]), meta["collection"]))
            client.ready(int(meta["dim"]))
            return cls(place, client, meta, held.pop_all())

    @classmethod
    def drop(cls, place: str) -> None:
        meta = read_json(Path(place) / META, "store", mend="Delete that folder.")
        with connected(parse_address(meta["address"]), meta["collection"]) as client:
            client.drop()

    # -- writing ---------------------------------------------------------------------------------------------

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, rows, lines = checked(ids, vectors, payloads, self.dim)
        self._record_list_lengths(lines)
        points = [
            {KEY: point_id(name), VECTOR: row, **_to_keys(line), to_key("_id"): name}
            for name, row, line in zip(names, rows, lines, strict=True)
        ]
        for part in _parts(points, min(self._page, 1000)):
            self._client.upsert(part)

    def _record_list_lengths(self, payloads: Sequence[Payload]) -> None:
        """Record how long the lists of a column are, before they are stored: filters name every position."""
        longest: dict[str, int] = dict(self._meta["lists"])
        for line in payloads:
            for name, value in line.items():
                if isinstance(value, list):
                    longest[name] = max(longest.get(name, 0), len(value))
        if longest != self._meta["lists"]:
            self._record(lists=longest)

    def _record(self, **facts: Any) -> None:
        self._meta = {**self._meta, **facts}
        write_json(self.place / META, self._meta, private=True)

    def delete(self, ids: Sequence[str]) -> None:
        for part in _parts([point_id(name) for name in ids], 1000):
            self._client.delete(f"{KEY} in {list_literal(part)}")

    def build(self) -> dict[str, Any]:
        """Let the server build its graph if there are enough rows, and measure how many candidates it must keep."""
        rows = self.count()
        if rows < GRAPH_FROM:
            self._record(ef=None, recall=1.0, measured=rows)
        else:
            self._client.build()
            if self._meta["ef"] is None or abs(rows - self._meta["measured"]) > GROWTH * self._meta["measured"]:
                width, recall = graph_width.measure_width(self, self._sample(graph_width.PROBES))
                self._record(ef=width, recall=recall, measured=rows)
        return {"rows": rows, "recall": self._meta["recall"], "ef": self._meta["ef"]}

    def _sample(self, count: int) -> Vectors:
        """Some stored vectors, by the order of keys, which are hashes: a random sample."""
        return np.array([row[VECTOR] for row in next(self._pages((), [VECTOR], count))], dtype=np.float32)

    @property
    def width(self) -> int | None:
        """Number of candidates that a search keeps (``ef``); chosen by ``build``, and can be set."""
        width: int | None = self._meta["ef"]
        return width

    @width.setter
    def width(self, width: int | None) -> None:
        self._meta = {**self._meta, "ef": width}

    def flush(self) -> None:
        """Do nothing: what the server has acknowledged is in its log."""

    def close(self) -> None:
        self._held.close()

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        fields = ["$meta", *([VECTOR] * vectors)]
        records: dict[str, Record] = {}
        for part in _parts([point_id(name) for name in dict.fromkeys(ids)], min(self._page, 1000)):
            rows = self._client.query(f"{KEY} in {list_literal(part)}", fields, len(part))
            records.update({record.id: record for record in map(_record, rows)})
        return [records.get(name) for name in ids]

    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]:
        return self.query_many(direction(positive, negative)[None], k, where=where, exact=exact)[0]

    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]:
        rows = unit_rows(queries, self.dim)
        if exact or k > PAGE:
            return self._exact(rows, k, where)
        width = max(self.width or DEFAULT_WIDTH, k)
        hits: list[list[Hit]] = []
        for part in _parts(list(rows), max(1, PAGE // k)):
            answers = self._client.search(part, self._expression(where), k, width)
            hits += [[_hit(row["entity"], row["distance"]) for row in answer] for answer in answers]
        return hits

    def _exact(self, queries: Vectors, k: int, where: Where) -> list[list[Hit]]:
        """Fetch every vector and compare it here: the server itself would use its graph."""
        keys: list[str] = []
        best = np.empty((len(queries), 0), dtype=np.int64)
        scores = np.empty((len(queries), 0), dtype=np.float32)
        for page in self._pages(where, [VECTOR], self._page):
            start = len(keys)
            keys += [row[KEY] for row in page]
            matrix = np.array([row[VECTOR] for row in page], dtype=np.float32)
            new, places = nearest(queries, matrix, np.arange(len(page)), k)
            scores, best = np.concatenate([scores, new], axis=1), np.concatenate([best, places + start], axis=1)
            scores, order = top_k_scores(scores, k)
            best = np.take_along_axis(best, order, 1)
        needed = sorted({keys[place] for place in best.flat})
        rows_by_key: dict[str, Any] = {}
        for part in _parts(needed, 1000):
            rows_by_key.update(
                {row[KEY]: row for row in self._client.query(f"{KEY} in {list_literal(part)}", ["$meta"], PAGE)}
            )
        return [
            [_hit(rows_by_key[keys[i]], score) for i, score in zip(line, near, strict=True) if keys[i] in rows_by_key]
            for line, near in zip(best, scores, strict=True)
        ]

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
        return sorted(((value, n) for value, n in counts.items() if value), key=lambda pair: (-pair[1], pair[0]))[
            :limit
        ]

    def count(self, where: Where = ()) -> int:
        return self._client.count(self._expression(where))


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _to_keys(payload: Payload) -> dict[str, Any]:
    return {to_key(name): value for name, value in payload.items() if value is not None}


def _payload(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    payload = {from_key(key): v for key, v in row.items() if key not in (KEY, VECTOR) and v is not None}
    return payload.pop("_id"), payload


def _record(row: dict[str, Any]) -> Record:
    name, payload = _payload(row)
    return Record(name, payload, np.array(row[VECTOR], dtype=np.float32) if VECTOR in row else None)


def _hit(row: dict[str, Any], score: float) -> Hit:
    name, payload = _payload(row)
    return Hit(name, min(max(float(score), -1.0), 1.0), payload)


def _lock(place: str) -> contextlib.AbstractContextManager[None]:
    return hold(Path(place) / ".lock", f"The store `{place}`")
