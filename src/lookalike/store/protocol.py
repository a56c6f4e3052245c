"""The ``Store`` protocol; one test suite (``tests/store/test_common.py``) checks every store."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lookalike.core.errors import LookalikeError

# Texts (or lists of texts) can be filtered by and counted; numbers are only stored.
Value = str | int | float | list[str] | None
Payload = Mapping[str, Value]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Condition:
    """A condition on a column; of several conditions all must hold.

    A row without the column fails a plain condition and meets a negated one.

    Args:
        column: Name of the column.
        values: The column must have one of these values.
        prefix: The column must start with one of the values instead.
        negate: Invert the condition.

    Example:
        >>> Condition("path", ("sea/",), prefix=True)
        Condition(column='path', values=('sea/',), prefix=True, negate=False)
    """

    column: str
    values: tuple[str, ...]
    prefix: bool = False
    negate: bool = False


Where = Sequence[Condition]


@dataclass(frozen=True)
class Record:
    """One stored row.

    Args:
        id: Row id.
        payload: Columns.
        vector: Unit vector, if it was requested.
    """

    id: str
    payload: dict[str, Any]
    vector: Vectors | None = field(default=None, compare=False)


class Hit(NamedTuple):
    """A row that answers a query: id, cosine similarity, payload."""

    id: str
    score: float
    payload: dict[str, Any]


@runtime_checkable
class Store(Protocol):
    """Unit vectors with text ids and payloads.

    ``place`` is a folder: an embedded store keeps its data there, a store on a server its address. Columns that start
    with ``_`` are internal: stored, but not to filter by. Writes are durable when ``upsert`` or ``delete`` returns.

    - ``create(place, dim)``, ``open(place, write=False)``: make or open a store.
    - ``upsert(ids, vectors, payloads)``, ``delete(ids)``: write rows, replacing those with equal ids; delete rows.
    - ``get(ids, vectors=False)``: rows by id, ``None`` for missing ones.
    - ``query(positive, k, negative=None, where=(), exact=False)``: the k nearest rows to examples, best first.
    - ``query_many(queries, k, where=(), exact=False)``: the same for many queries.
    - ``scan(where=(), vectors=False, batch=1000)``: all rows, in batches.
    - ``facets(column, where=(), limit=100)``: values of a column with counts, most frequent first.
    - ``count(where=())``: number of rows.
    - ``build()``: build or update the search graph; returns facts such as its recall.
    - ``flush()``, ``close()``: make writes durable; close.

    Example:
        >>> from lookalike.store import store_class
        >>> isinstance(store_class("exact").create("vectors", 4), Store)
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
    def query(
        self, positive: Vectors, k: int, *, negative: Vectors | None = None, where: Where = (), exact: bool = False
    ) -> list[Hit]: ...
    def query_many(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> list[list[Hit]]: ...
    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]: ...
    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]: ...
    def count(self, where: Where = ()) -> int: ...
    def build(self) -> dict[str, Any]: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


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
    rows = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    _check_dim(rows.shape[1], dim)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise LookalikeError("A query's vector is not finite: the model cannot embed this image.")
    if len(norms) and norms.min() < 1e-6:
        raise LookalikeError("A query's vector is zero.")
    return np.asarray(rows / norms, dtype=np.float32)


def checked(
    ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload], dim: int
) -> tuple[list[str], Vectors, list[Payload]]:
    """Validate rows before they are written, and normalize their vectors.

    Stores differ in what they accept (Qdrant Edge takes NaN), so every store calls this first.

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
