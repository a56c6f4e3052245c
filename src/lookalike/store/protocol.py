"""What a store must do; one common test suite (`tests/store/test_common.py`) holds every store to it."""

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

# Text (or a list of texts) can be filtered by and counted; numbers are only carried along.
Value = str | int | float | list[str] | None
Payload = Mapping[str, Value]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Condition:
    """A column holds one of the values (or starts with one of them); `negate` turns it round."""

    column: str
    values: tuple[str, ...]
    prefix: bool = False
    negate: bool = False


# All conditions of a filter must hold. A row without the column fails a plain condition and passes a negated one.
Where = Sequence[Condition]


@dataclass(frozen=True)
class Record:
    """One stored row."""

    id: str
    payload: dict[str, Any]
    vector: Vectors | None = field(default=None, compare=False)


class Hit(NamedTuple):
    """A row that answers a query, with its cosine."""

    id: str
    score: float
    payload: dict[str, Any]


@runtime_checkable
class Store(Protocol):
    """Unit vectors under text ids, with a payload each. What `upsert` and `delete` return from is durable.

    `place` is a folder: an embedded store keeps all it has there, a server's store where to find it. Column names that
    start with `_` are bookkeeping: carried, not filterable. Names of rows, not numbers, are ids: writing one twice
    replaces it.
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
    """A store that lives on a server; the command line names it by its address (`milvus://host:19530`)."""

    @classmethod
    def address(cls, text: str) -> str:
        """The address in one way of writing it, without secrets; what is no address is told."""

    @classmethod
    def create_at(cls, address: str, place: str, dim: int) -> Self: ...
    @classmethod
    def drop(cls, place: str) -> None:
        """Delete what a place has on its server; nothing there is no error."""


def point_id(name: str) -> str:
    """A UUID from a row's name: a row written again after a kill replaces itself."""
    return str(uuid.UUID(bytes=hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest()))


def direction(positive: Vectors, negative: Vectors | None = None, *, dim: int | None = None) -> Vectors:
    """One unit vector for "more like these, less like those" (docs/decisions/0070); `dim` is how many numbers it needs.

    The cosine to it is linear in the examples, so every store answers alike with a plain nearest search.
    """
    query = _middle(positive)
    if negative is not None and len(negative):
        query = query - 0.5 * _middle(negative)
    norm = math.sqrt(float(query @ query))
    if not math.isfinite(norm):
        raise LookalikeError("The query's vector is not finite: the model gave no usable answer for this image.")
    if norm < 1e-6:
        raise LookalikeError("The examples cancel each other out: take away one of the images to look less like.")
    if dim is not None:
        _check_width(len(query), dim)
    return np.asarray(query / np.float32(norm), dtype=np.float32)


def _middle(examples: Vectors) -> Vectors:
    rows = np.asarray(examples, dtype=np.float32)
    return rows if rows.ndim == 1 else rows[0] if len(rows) == 1 else rows.mean(axis=0)


def _check_width(found: int, dim: int) -> None:
    if found != dim:
        raise LookalikeError(f"A query of {found} numbers cannot be asked of a store of {dim}.")


def unit_rows(vectors: Vectors, dim: int) -> Vectors:
    """Queries as finite float32 unit rows of the right width."""
    rows = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    _check_width(rows.shape[1], dim)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise LookalikeError("A query's vector is not finite: the model gave no usable answer for this image.")
    if len(norms) and norms.min() < 1e-6:
        raise LookalikeError("A query's vector is zero: there is nothing to look like.")
    return np.asarray(rows / norms, dtype=np.float32)


def checked(
    ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload], dim: int
) -> tuple[list[str], Vectors, list[Payload]]:
    """What may be written: equal counts, right width, finite, not zero; rows come back with length 1.

    Stores differ in what they let pass (Qdrant Edge takes NaN), so nothing reaches one unchecked.
    """
    rows = np.array(vectors, dtype=np.float32, ndmin=2)
    if len(ids) != len(payloads) or (len(ids) and len(ids) != len(rows)):
        raise ValueError(f"{len(ids)} ids, {len(rows)} vectors and {len(payloads)} payloads do not fit together")
    if not len(ids):
        return [], np.empty((0, dim), np.float32), []
    if rows.shape[1] != dim:
        raise LookalikeError(f"Vectors of {rows.shape[1]} numbers cannot be put into a store of {dim}.")
    if len(set(ids)) != len(ids):
        raise ValueError("an id occurs twice in one batch")
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms < 1e-12))
    if len(bad):
        raise LookalikeError(f"The vector of `{ids[int(bad[0])]}` is not finite or zero; it was not stored.")
    return list(ids), (rows / norms[:, None]).astype(np.float32), list(payloads)
