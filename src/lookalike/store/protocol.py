"""The ``Store`` protocol; one test suite (``tests/store/test_common.py``) checks every store."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lookalike.core.errors import LookalikeError

# Texts (or lists of texts) can be filtered by and counted; numbers and dates, also as texts, can be filtered by ranges.
Value = str | int | float | list[str] | None
Payload = Mapping[str, Value]
Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
ROW_ID = "row_id"  # in a condition: the row's id instead of a column


@dataclass(frozen=True)
class Condition:
    """A condition on a column; of several conditions all must hold.

    A row without the column fails a plain condition and meets a negated one.

    Args:
        column: Name of the column, or ``row_id`` for the id of the row.
        values: The column must have one of these values.
        prefix: The column must start with one of the values instead.
        negate: Invert the condition.
        low: Instead of values: the column must be at least this number or date.
        high: Instead of values: the column must be at most this number or date; ``2024-08`` is all of August.
        strict: Exclude the bounds themselves.

    Example:
        >>> Condition("path", ("sea/",), prefix=True).values
        ('sea/',)
        >>> Condition("width", low="1000").matches("1200"), Condition("taken", high="2024-08").matches("2024-08-31")
        (True, True)
    """

    column: str
    values: tuple[str, ...] = ()
    prefix: bool = False
    negate: bool = False
    low: str = ""
    high: str = ""
    strict: bool = False

    @property
    def is_range(self) -> bool:
        """Whether the column is compared with bounds."""
        return bool(self.low or self.high)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the closed interval of a range for numbers and for dates (seconds), where the bounds are such."""
        out = {}
        for kind, read in (("number", _number_bounds), ("date", date_bounds)):
            low, high = (read(text) if text else None for text in (self.low, self.high))
            if (low is None) == (not self.low) and (high is None) == (not self.high):
                start = -math.inf if low is None else math.nextafter(low[1], math.inf) if self.strict else low[0]
                end = math.inf if high is None else math.nextafter(high[0], -math.inf) if self.strict else high[1]
                out[kind] = (start, end)
        return out

    def matches(self, value: object) -> bool:
        """Return whether a value (``None`` if the row has none) meets the condition, as a store would answer."""
        if self.is_range:
            intervals = self.intervals()
            points = [point for point in points_of(value) if point[0] in intervals]
            return any(intervals[kind][0] <= x <= intervals[kind][1] for kind, x in points) != self.negate
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        return any(t.startswith(self.values) if self.prefix else t in self.values for t in texts) != self.negate


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)([T ]\d\d:\d\d.*)?)?)?", re.ASCII)


def _number_bounds(text: str) -> tuple[float, float] | None:
    return (float(text), float(text)) if _NUMBER.fullmatch(text) else None


def date_bounds(text: str) -> tuple[float, float] | None:
    """Return the first and last moment of a date in seconds; dates without a zone count as UTC.

    Args:
        text: A year, a month, a day or a time in ISO 8601.

    Returns:
        Start and end, or ``None`` if it is no date.

    Example:
        >>> date_bounds("1970-01-02"), date_bounds("gull")
        ((86400.0, 172799.999999), None)
    """
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day, time = match.groups()
    try:
        start = datetime.fromisoformat(text if time else f"{year}-{month or '01'}-{day or '01'}")
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        if time:
            end = start
        elif day:
            end = start + timedelta(days=1, microseconds=-1)
        else:
            following = start.replace(year=start.year + 1) if not month else start + timedelta(days=32)
            end = following.replace(day=1) - timedelta(microseconds=1)
        return start.timestamp(), end.timestamp()
    except (ValueError, OverflowError):
        return None


def points_of(value: object) -> list[tuple[str, float]]:
    """Return what ranges compare of a value: ``("number", x)`` and ``("date", seconds)`` for each of its entries."""
    points: list[tuple[str, float]] = []
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, (int, float)) and not isinstance(entry, bool) and entry == entry:  # NaN lies in no range
            points.append(("number", float(entry)))
        elif isinstance(entry, str):
            if _NUMBER.fullmatch(entry):
                points.append(("number", float(entry)))
            elif "-" in entry and (date := date_bounds(entry)):
                points.append(("date", date[0]))
    return points


Where = Sequence[Condition]


class Damaged(LookalikeError):
    """Files of a store are damaged; opening it for writing drops the lost rows, so that they are made again.

    Example:
        >>> issubclass(Damaged, LookalikeError)
        True
    """


@dataclass(frozen=True)
class Record:
    """One stored row.

    Args:
        id: Row id.
        payload: Columns.
        vector: Unit vector, if it was requested.

    Example:
        >>> Record("sea/gull.jpg", {"label": "gull"}).payload["label"]
        'gull'
    """

    id: str
    payload: dict[str, Any]
    vector: Vectors | None = field(default=None, compare=False)


class Hit(NamedTuple):
    """A row that answers a query.

    Args:
        id: Id of the row.
        score: Cosine similarity.
        payload: Its columns.

    Example:
        >>> store.query(vector, 1)  # doctest: +SKIP
        [Hit(id='sea/gull.jpg', score=0.93, payload={'label': 'gull'})]
    """

    id: str
    score: float
    payload: dict[str, Any]


class Neighbors(NamedTuple):
    """Nearest rows of several queries, best first.

    Args:
        rows: Row numbers, −1 where there are fewer than k; they hold while the store is open, see ``Store.records``.
        scores: Cosine similarities.

    Shape:
        - rows, scores: ``(Q, k)``.

    Example:
        >>> neighbors = Neighbors(np.array([[4, -1]]), np.array([[0.93, -np.inf]], np.float32))
        >>> neighbors.rows >= 0
        array([[ True, False]])
    """

    rows: Rows
    scores: Vectors


@runtime_checkable
class Store(Protocol):
    """Unit vectors with text ids and payloads.

    ``place`` is a folder: an embedded store keeps its data there, a store on a server its address. Columns that start
    with ``_`` are internal: stored, but not to filter by. Writes are durable when ``upsert`` or ``delete`` returns.

    - ``create(place, dim)``, ``open(place, write=False)``: make or open a store.
    - ``upsert(ids, vectors, payloads)``, ``delete(ids)``: write rows, replacing those with equal ids; delete rows.
    - ``get(ids, vectors=False)``: rows by id, ``None`` for missing ones.
    - ``search(queries, k, where=(), exact=False)``: row numbers and scores of the k nearest rows to each query.
    - ``records(rows, vectors=False)``: rows by number, ``None`` for those that are gone.
    - ``query(positive, k, negative=None, where=(), exact=False)``: the k nearest rows to examples, with payloads.
    - ``query_many(queries, k, where=(), exact=False)``: the same for many queries.
    - ``scan(where=(), vectors=False, batch=1000)``: all rows, in batches.
    - ``facets(column, where=(), limit=100)``: values of a column with counts, most frequent first.
    - ``count(where=())``: number of rows.
    - ``build()``: build or update the search graph; returns facts such as its recall.
    - ``close()``: close it.

    Example:
        >>> from lookalike.store import store_class
        >>> isinstance(store_class("local").create("vectors", 4), Store)
        True
    """

    dim: int

    @classmethod
    def create(cls, place: str, dim: int) -> Self: ...
    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self: ...
    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None: ...
    def delete(self, ids: Sequence[str]) -> None: ...
    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]: ...
    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors: ...
    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]: ...
    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]: ...
    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]: ...
    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]: ...
    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]: ...
    def count(self, where: Where = ()) -> int: ...
    def build(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Queries:
    """``query`` and ``query_many`` of a store by its ``search`` and ``records``."""

    dim: int
    search: Callable[..., Neighbors]
    records: Callable[..., list[Record | None]]

    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]:
        """Return the k nearest rows to examples, best first; see :class:`Store`."""
        return self.query_many(direction(positive, negative, dim=self.dim)[None], k, where=where, exact=exact)[0]

    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]:
        """Return the k nearest rows to each query, best first; payloads are fetched together."""
        near, lines = self._search_payloads(queries, k, where, exact)
        return [
            [
                Hit(lines[row][0], score, lines[row][1])
                for row, score in zip(rows, scores, strict=True)
                if row in lines  # else there is none, or it was deleted a moment ago
            ]
            for rows, scores in zip(near.rows.tolist(), near.scores.tolist(), strict=True)
        ]

    def _search_payloads(
        self, queries: Vectors, k: int, where: Where, exact: bool
    ) -> tuple[Neighbors, dict[int, tuple[str, dict[str, Any]]]]:
        """The nearest rows, and their ids and payloads by row number."""
        near = self.search(queries, k, where=where, exact=exact)
        rows = np.unique(near.rows[near.rows >= 0])
        records = zip(rows.tolist(), self.records(rows), strict=True)
        return near, {row: (record.id, record.payload) for row, record in records if record is not None}


@runtime_checkable
class ServerStore(Store, Protocol):
    """A store on a server, named by its address (``milvus://host:19530``)."""

    @classmethod
    def address(cls, text: str) -> str:
        """Return the canonical address, without secrets; raises if it is not an address."""

    @classmethod
    def create_at(cls, address: str, place: str, dim: int) -> Self: ...
    @classmethod
    def drop(cls, place: str) -> None:
        """Delete the rows of a store on its server; a missing collection is not an error."""


def point_id(name: str) -> str:
    """Return a UUID from a row id, so that a row that is written again replaces itself."""
    return str(uuid.UUID(bytes=hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest()))


def direction(positive: Vectors, negative: Vectors | None = None, *, dim: int | None = None) -> Vectors:
    """Combine positive and negative examples into one query vector (docs/design/index.md).

    The normalized mean of the positives minus half the mean of the negatives. Cosine similarity to it is linear in
    the examples, so every store answers with a plain nearest-neighbor search.

    Args:
        positive: Examples to look like.
        negative: Examples to look unlike.
        dim: Expected dimension.

    Returns:
        A unit vector.

    Shape:
        - positive: ``(P, D)`` or ``(D,)``; negative: ``(N, D)``; output: ``(D,)``.

    Raises:
        LookalikeError: If the result is zero or not finite, or has the wrong dimension.

    Example:
        >>> direction(np.array([[1.0, 0.0], [0.0, 1.0]])).round(3)
        array([0.707, 0.707], dtype=float32)
    """
    query = _mean(positive)
    if negative is not None and len(negative):
        query = query - 0.5 * _mean(negative)
    norm = math.sqrt(float(query @ query))
    if not math.isfinite(norm):
        raise LookalikeError("The query's vector is not finite: the model cannot embed this image.")
    if norm < 1e-6:
        raise LookalikeError("The examples cancel each other out: remove one of the negative examples.")
    if dim is not None:
        _check_dim(len(query), dim)
    return np.asarray(query / np.float32(norm), dtype=np.float32)


def _mean(examples: Vectors) -> Vectors:
    rows = np.asarray(examples, dtype=np.float32)
    return rows if rows.ndim == 1 else rows[0] if len(rows) == 1 else rows.mean(axis=0)


def _check_dim(query_dim: int, dim: int) -> None:
    if query_dim != dim:
        raise LookalikeError(f"The query has dimension {query_dim}, the store {dim}.")


def unit_rows(vectors: Vectors, dim: int) -> Vectors:
    """Return queries as finite float32 unit vectors.

    Args:
        vectors: Queries.
        dim: Expected dimension.

    Returns:
        Unit vectors.

    Shape:
        - vectors: ``(Q, D)`` or ``(D,)``; output: ``(Q, D)``.
    """
    rows = np.asarray(vectors, dtype=np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    _check_dim(rows.shape[1], dim)
    squares = [rows[0].dot(rows[0])] if len(rows) == 1 else np.einsum("ij,ij->i", rows, rows).tolist()
    norms = list(map(math.sqrt, squares))  # for one query far faster than `np.linalg.norm`
    if not all(map(math.isfinite, norms)):
        raise LookalikeError("A query's vector is not finite: the model cannot embed this image.")
    if min(norms, default=1.0) < 1e-6:
        raise LookalikeError("A query's vector is zero.")
    return np.asarray(rows / np.array(norms, np.float32)[:, None], dtype=np.float32)


def checked(
    ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload], dim: int
) -> tuple[list[str], Vectors, list[Payload]]:
    """Validate rows before they are written, and normalize their vectors.

    Stores differ in what they accept, so every store calls this first.

    Args:
        ids: Row ids, without duplicates.
        vectors: Vectors, finite and not zero.
        payloads: Payloads.
        dim: Dimension of the store.

    Returns:
        Ids, unit vectors and payloads.
    """
    rows = np.array(vectors, dtype=np.float32, ndmin=2)
    if len(ids) != len(payloads) or (len(ids) and len(ids) != len(rows)):
        raise ValueError(f"{len(ids)} ids, {len(rows)} vectors and {len(payloads)} payloads do not fit together")
    if not len(ids):
        return [], np.empty((0, dim), np.float32), []
    if rows.shape[1] != dim:
        raise LookalikeError(f"The vectors have dimension {rows.shape[1]}, the store {dim}.")
    if len(set(ids)) != len(ids):
        raise ValueError("an id occurs twice in one batch")
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms < 1e-12))
    if len(bad):
        raise LookalikeError(f"The vector of `{ids[int(bad[0])]}` is zero or not finite; it was not stored.")
    return list(ids), (rows / norms[:, None]).astype(np.float32), list(payloads)


def prefix_end(start: str) -> str:
    """Return the smallest text after all that begin with ``start``, by code points; empty if there is none.

    Example:
        >>> prefix_end("ab")
        'ac'
    """
    start = start.rstrip(chr(0x10FFFF))
    if not start:
        return ""
    following = ord(start[-1]) + 1
    return start[:-1] + chr(0xE000 if following == 0xD800 else following)


def is_text(value: str) -> bool:
    """Return whether a text can be stored: surrogates (bytes that are not UTF-8) are in no stored text."""
    return value.isascii() or not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
