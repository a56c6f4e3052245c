"""Nearest rows of a training database: exact by blocks, by faiss, or by the store that serves searches.

Every retriever is made from the rows as they are and asked with `nearest(queries, k)`: int64 (n, k), nearest first.
Exact ones agree up to the last digit of a product; approximate ones hold a recall of 0.97, which they see to
themselves: some of the first queries are answered exactly too. A graph of faiss is searched more widely until it
agrees; one that would have to look through a tenth of the rows, or a store that misses more, compares every row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.core.errors import LookalikeError, choose
from lookalike.store import create_store, remove_store

BLOCK = 16_384
WIDTH, MORE = 256, 8
"""How many rows faiss looks through at first, and how many times what is wanted a store is asked for: its graph is
tuned for pictures like those in it, and views of a query are stranger than that."""
SAMPLE, ENOUGH = 64, 0.98
"""Queries that are answered exactly too, and the recall on them that stands for 0.97 of all."""
KINDS = ("exact", "faiss", "hnsw", "store")


class Retriever(Protocol):
    def nearest(self, queries: Tensor, k: int) -> Tensor:
        """Row numbers, int64 (n, k), of the k highest products of each query."""
        ...

    def close(self) -> None: ...


def make_retriever(kind: str, rows: Tensor, *, store: str = "qdrant") -> Retriever:
    """`exact`, `faiss` (exact too), `hnsw` (faiss, approximate), or the `store` of that name."""
    choose(kind, KINDS, "a retriever")
    if kind == "exact":
        return Exact(rows)
    return Stored(rows, store) if kind == "store" else Faiss(rows, graph=kind == "hnsw")


@torch.no_grad()
def top_k(queries: Tensor, rows: Tensor, k: int, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Scores and row numbers of the k highest products, best first, equal ones by row number."""
    scores = torch.empty(len(queries), 0, dtype=queries.dtype, device=queries.device)
    index = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(rows), block):
        values, places = _best(queries @ rows[start : start + block].t(), k)
        # Rows found so far stand first and have the lower numbers, so a stable sort keeps ties in order.
        scores, order = torch.cat([scores, values], 1).sort(dim=1, descending=True, stable=True)
        index = torch.cat([index, places + start], 1).gather(1, order)[:, :k]
        scores = scores[:, :k]
    return scores, index


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of each line with their places, ties by place; `topk` alone picks any of equal ones."""
    wide = min(k + 1, scores.shape[1])
    values, places = scores.topk(wide, dim=1)
    if wide > k:
        tied = torch.nonzero(values[:, k - 1] == values[:, k])[:, 0]
        values, places = values[:, :k], places[:, :k]
        if len(tied):
            whole = scores[tied].sort(dim=1, descending=True, stable=True)
            values[tied], places[tied] = whole.values[:, :k], whole.indices[:, :k]
    places = places.sort(dim=1).values
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


class Exact:
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        return top_k(queries, self.rows, k)[1]

    def close(self) -> None:
        """Nothing is held."""


class Faiss:
    """Inner products: every row compared, or a graph (HNSW)."""

    def __init__(self, rows: Tensor, *, graph: bool = False) -> None:
        try:
            import faiss
        except ImportError as error:
            raise LookalikeError(
                "faiss is not installed: pip install 'lookalike[faiss]', or retrieve `exact`."
            ) from error
        width = rows.shape[1]
        self.rows, self.checked, self.exact = rows, not graph, False
        self.index: Any = faiss.IndexFlatIP(width)
        if graph:
            self.index = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
            self.index.hnsw.efConstruction, self.index.hnsw.efSearch = 200, WIDTH
        self.index.add(_array(rows))

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        if not self.checked and len(queries):
            self._widen(queries, k)
        return top_k(queries, self.rows, k)[1] if self.exact else self._search(queries, k)

    def _widen(self, queries: Tensor, k: int) -> None:
        self.checked = True
        while recall(self._search, queries, self.rows, k) < ENOUGH:
            self.index.hnsw.efSearch *= 2
            if self.index.hnsw.efSearch > len(self.rows) // 10:
                self.exact = True
                return

    def _search(self, queries: Tensor, k: int) -> Tensor:
        return _filled(self.index.search(_array(queries), k)[1], queries.device)

    def close(self) -> None:
        self.index.reset()


class Stored:
    """A store of its own, in a folder or on a server, that goes with it."""

    def __init__(self, rows: Tensor, kind: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="lookalike-database-")
        self.place = f"{self.folder.name}/store"
        self.store = create_store(kind, self.place, rows.shape[1])
        vectors = _array(rows)
        for start in range(0, len(vectors), 1000):
            part = vectors[start : start + 1000]
            self.store.upsert([str(start + n) for n in range(len(part))], part, [{}] * len(part))
        self.store.build()
        self.rows, self.checked, self.exact = rows, False, False

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        if not self.checked and len(queries):
            self.checked, self.exact = True, recall(self._search, queries, self.rows, k) < ENOUGH
        return top_k(queries, self.rows, k)[1] if self.exact else self._search(queries, k)

    def _search(self, queries: Tensor, k: int) -> Tensor:
        found = np.full((len(queries), k), -1, np.int64)
        for line, hits in zip(found, self.store.query_many(_array(queries), MORE * k), strict=True):
            line[: len(hits)] = [int(hit.id) for hit in hits[:k]]
        return _filled(found, queries.device)

    def close(self) -> None:
        self.store.close()
        remove_store(self.place)
        self.folder.cleanup()


@torch.no_grad()
def recall(search: Callable[[Tensor, int], Tensor], queries: Tensor, rows: Tensor, k: int) -> float:
    """The share of the k nearest that a search finds, on a sample of the queries; of equal rows any will do."""
    some = queries[:: max(1, len(queries) // SAMPLE)].to(rows.dtype)
    worst = top_k(some, rows, k)[0][:, -1:]
    found = search(some, k).sort(dim=1).values
    once = torch.ones_like(found, dtype=torch.bool)
    once[:, 1:] = found[:, 1:] != found[:, :-1]
    scores = (rows[found] @ some[:, :, None])[:, :, 0]
    return float(((scores >= worst - 1e-6) & once).float().sum() / (len(some) * min(k, len(rows))))


def _array(rows: Tensor) -> Any:
    return np.ascontiguousarray(rows.detach().float().cpu().numpy())


def _filled(found: Any, device: torch.device) -> Tensor:
    """A graph may find fewer than k: its first answer stands for the rest, and counts once in a union."""
    return torch.from_numpy(np.where(found < 0, found[:, :1], found)).to(device)
