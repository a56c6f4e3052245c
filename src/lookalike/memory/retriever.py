"""Nearest neighbors in a training database: exact by blocks, with faiss, or with the store that serves searches.

Exact retrievers agree up to the last digit of a dot product; approximate ones are held to a recall of 0.97 by
`RecallCheckedRetriever`. See docs/design/dmcac.md.
"""

from __future__ import annotations

import tempfile
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.store import create_store, remove_store

EF_SEARCH = 256  # initial search width of faiss's graph
OVERSAMPLING = 8  # factor of k for stores with a graph, tuned for images like those in it: augmented views differ more
SAMPLE, MIN_RECALL = 64, 0.98  # queries that are also answered exactly, and the recall that ensures 0.97 over all
KINDS = ("exact", "faiss", "hnsw", "store")


class Retriever(Protocol):
    """Finds the nearest rows of a fixed database."""

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        """Return the rows with the k highest dot products, int64 (n, k), best first."""
        ...

    def close(self) -> None:
        """Release files, servers and memory."""
        ...


def make_retriever(kind: str, rows: Tensor, *, store: str = "local") -> Retriever:
    """Return a retriever over the rows of a database; close it when the rows change.

    Args:
        kind: ``"exact"``, ``"faiss"`` (also exact), ``"hnsw"`` (faiss's graph) or ``"store"``.
        rows: ``(D, F)`` unit vectors.
        store: Name of the store for ``"store"``.

    Example:
        >>> retriever = make_retriever("exact", torch.eye(3))
        >>> retriever.nearest(torch.tensor([[0.1, 0.9, 0.0]]), k=2).tolist()
        [[1, 0]]
    """
    choose(kind, KINDS, "a retriever")
    if kind == "faiss":
        return FaissRetriever(rows)
    if kind == "exact":
        return RecallCheckedRetriever(None, rows)
    return RecallCheckedRetriever(StoreRetriever(rows, store) if kind == "store" else HNSWRetriever(rows), rows)


class FaissRetriever:
    """Compares every row with faiss.

    Args:
        rows: Unit vectors ``(D, F)``.

    Example:
        >>> FaissRetriever(torch.eye(3)).nearest(torch.tensor([[0.1, 0.9, 0.0]]), k=2).tolist()
        [[1, 0]]
    """

    def __init__(self, rows: Tensor) -> None:
        self.index = self.create_index(rows.shape[1])
        self.index.add(_to_numpy(rows))

    def create_index(self, dim: int) -> Any:
        return _faiss().IndexFlatIP(dim)

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        return _pad_missing(self.index.search(_to_numpy(queries), k)[1], queries.device)

    def close(self) -> None:
        self.index.reset()


class HNSWRetriever(FaissRetriever):
    """Searches a graph (HNSW) of faiss.

    Args:
        rows: Unit vectors ``(D, F)``.

    Example:
        >>> HNSWRetriever(torch.eye(3)).nearest(torch.tensor([[0.1, 0.9, 0.0]]), k=2).tolist()
        [[1, 0]]
    """

    def create_index(self, dim: int) -> Any:
        index = _faiss().IndexHNSWFlat(dim, 32, _faiss().METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = 200, EF_SEARCH
        return index

    def widen(self) -> bool:
        """Widen the search from now on; returns False if that would cost more than an exact search."""
        wider = 2 * self.index.hnsw.efSearch
        if wider > self.index.ntotal // 10:  # about what comparing every row costs
            return False
        self.index.hnsw.efSearch = wider
        return True


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise LookalikeError(
            "faiss is not installed: run pip install 'lookalike[faiss]', or set `method.retriever` to exact."
        ) from error
    return faiss


class StoreRetriever:
    """Searches a temporary store, in a folder or on a server.

    Args:
        rows: Unit vectors ``(D, F)``.
        kind: Name of the store.

    Example:
        >>> retriever = StoreRetriever(torch.eye(3), "local")
        >>> retriever.nearest(torch.tensor([[0.1, 0.9, 0.0]]), k=2).tolist()
        [[1, 0]]
        >>> retriever.close()
    """

    def __init__(self, rows: Tensor, kind: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="lookalike-database-")
        self.path = f"{self.folder.name}/store"
        self.store = create_store(kind, self.path, rows.shape[1])
        vectors = _to_numpy(rows)
        for start in range(0, len(vectors), 1000):
            part = vectors[start : start + 1000]
            self.store.upsert([str(start + n) for n in range(len(part))], part, [{}] * len(part))
        self.store.build()
        self.oversampling = OVERSAMPLING if getattr(self.store, "width", None) else 1  # a store that scans is exact

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        neighbors = np.full((len(queries), k), -1, np.int64)
        for line, hits in zip(neighbors, self.store.query_many(_to_numpy(queries), self.oversampling * k), strict=True):
            line[: len(hits)] = [int(hit.id) for hit in hits[:k]]
        return _pad_missing(neighbors, queries.device)

    def widen(self) -> bool:
        """The store chose its own width when it was built."""
        return False

    def close(self) -> None:
        self.store.close()
        remove_store(self.path)
        self.folder.cleanup()


class RecallCheckedRetriever:
    """An approximate retriever of `rows` whose recall is checked on some of the first queries.

    The search is widened until the recall suffices; if that would cost too much, every row is compared from then on.
    Without an index every row is compared, by blocks.

    Args:
        index: The approximate retriever.
        rows: Unit vectors ``(D, F)``.

    Example:
        >>> RecallCheckedRetriever(None, torch.eye(3)).nearest(torch.tensor([[0.1, 0.9, 0.0]]), k=2).tolist()
        [[1, 0]]
    """

    def __init__(self, index: HNSWRetriever | StoreRetriever | None, rows: Tensor) -> None:
        self.index, self.rows, self.checked, self.exact = index, rows, False, index is None

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        if self.index is not None and not self.checked and len(queries):
            self.checked, some = True, queries[:: max(1, len(queries) // SAMPLE)]
            scores = torch_top_k(some, self.rows, k)[0]
            while (recall := retrieval_recall(scores, some, self.rows, self.index.nearest(some, k))) < MIN_RECALL:
                if not self.index.widen():
                    self.exact = True
                    warn(f"The index finds only {recall:.0%} of the nearest rows; from now on every row is compared.")
                    break
        if self.index is None or self.exact:
            return torch_top_k(queries, self.rows, k)[1]
        return self.index.nearest(queries, k)

    def close(self) -> None:
        if self.index is not None:
            self.index.close()


@torch.no_grad()
def retrieval_recall(best_scores: Tensor, queries: Tensor, rows: Tensor, neighbors: Tensor) -> float:
    """Return the fraction of the nearest rows among `neighbors` (n, k); of equal rows any counts, but only once.

    `best_scores` (n, k) are the scores of the exact neighbors.
    """
    neighbors = neighbors.sort(dim=1).values
    first = torch.ones_like(neighbors, dtype=torch.bool)
    first[:, 1:] = neighbors[:, 1:] != neighbors[:, :-1]
    scores = (rows[neighbors] @ queries.to(rows.dtype)[:, :, None])[:, :, 0]
    return float(((scores >= best_scores[:, -1:] - 1e-6) & first).float().sum() / best_scores.numel())


def _to_numpy(rows: Tensor) -> Any:
    # A diverged model still retrieves something; the loop reports the NaN loss.
    return np.ascontiguousarray(rows.detach().float().nan_to_num(1.0, 1.0, 1.0).cpu().numpy())


def _pad_missing(neighbors: Any, device: torch.device) -> Tensor:
    """Replace missing neighbors (−1) by the first one, which counts once in a union."""
    return torch.from_numpy(np.where(neighbors < 0, neighbors[:, :1], neighbors)).to(device)
