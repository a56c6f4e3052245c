"""Nearest rows of a training database: exact by blocks, by faiss, or by the store that serves searches.

Every retriever is made from the rows as they are and asked with `nearest(queries, k)`: int64 (n, k), nearest first, k
at most the rows. Exact ones agree up to the last digit of a product; approximate ones are held to a recall of 0.97 by
`Checked` (docs/decisions/0194).
"""

from __future__ import annotations

import tempfile
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.store import create_store, remove_store

WIDTH, MORE = 256, 8
"""How many rows faiss looks through at first, and how many times what is wanted a store is asked for: its graph is
tuned for images like those in it, and views of a query are stranger than that."""
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
    if kind == "faiss":
        return Faiss(rows)
    return Checked(Stored(rows, store) if kind == "store" else Graph(rows), rows)


class Exact:
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        return torch_top_k(queries, self.rows, k)[1]

    def close(self) -> None:
        """Nothing is held."""


class Faiss:
    """Every row compared, by faiss."""

    def __init__(self, rows: Tensor) -> None:
        self.index = self.empty(rows.shape[1])
        self.index.add(_array(rows))

    def empty(self, width: int) -> Any:
        return _faiss().IndexFlatIP(width)

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        return _filled(self.index.search(_array(queries), k)[1], queries.device)

    def close(self) -> None:
        self.index.reset()


class Graph(Faiss):
    """A graph of faiss (HNSW)."""

    def empty(self, width: int) -> Any:
        index = _faiss().IndexHNSWFlat(width, 32, _faiss().METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = 200, WIDTH
        return index

    def widen(self) -> bool:
        wider = 2 * self.index.hnsw.efSearch
        if wider > self.index.ntotal // 10:  # about what comparing every row costs
            return False
        self.index.hnsw.efSearch = wider
        return True


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise LookalikeError("faiss is not installed: pip install 'lookalike[faiss]', or retrieve `exact`.") from error
    return faiss


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
        self.more = MORE if getattr(self.store, "width", None) else 1  # a store that scans needs no more

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        found = np.full((len(queries), k), -1, np.int64)
        for line, hits in zip(found, self.store.query_many(_array(queries), self.more * k), strict=True):
            line[: len(hits)] = [int(hit.id) for hit in hits[:k]]
        return _filled(found, queries.device)

    def widen(self) -> bool:
        """It measured its own width when it was built."""
        return False

    def close(self) -> None:
        self.store.close()
        remove_store(self.place)
        self.folder.cleanup()


class Widening(Retriever, Protocol):
    def widen(self) -> bool:
        """Search more widely from now on; false if that is not worth it."""
        ...


class Checked:
    """An approximate index that sees to its recall: some of the first queries are answered exactly too. It is widened
    until it finds enough of that; where that is not worth it, every row is compared from then on."""

    def __init__(self, index: Widening, rows: Tensor) -> None:
        self.index, self.rows = index, rows
        self.checked = self.exact = False

    def nearest(self, queries: Tensor, k: int) -> Tensor:
        if not self.checked and len(queries):
            self._check(queries[:: max(1, len(queries) // SAMPLE)], k)
        return torch_top_k(queries, self.rows, k)[1] if self.exact else self.index.nearest(queries, k)

    def _check(self, queries: Tensor, k: int) -> None:
        self.checked = True
        wanted = torch_top_k(queries, self.rows, k)[0]
        while (found := recall(wanted, queries, self.rows, self.index.nearest(queries, k))) < ENOUGH:
            if not self.index.widen():
                self.exact = True
                if distributed.is_main():
                    warn(f"The index finds {found:.0%} of the nearest rows: from now on every row is compared.")
                return

    def close(self) -> None:
        self.index.close()


@torch.no_grad()
def recall(wanted: Tensor, queries: Tensor, rows: Tensor, found: Tensor) -> float:
    """The share of the nearest that was found, `wanted` being their scores; of equal rows any will do, but once."""
    found = found.sort(dim=1).values
    once = torch.ones_like(found, dtype=torch.bool)
    once[:, 1:] = found[:, 1:] != found[:, :-1]
    scores = (rows[found] @ queries.to(rows.dtype)[:, :, None])[:, :, 0]
    return float(((scores >= wanted[:, -1:] - 1e-6) & once).float().sum() / wanted.numel())


def _array(rows: Tensor) -> Any:
    # What diverged finds something: the loss is no number, and the loop says so.
    return np.ascontiguousarray(rows.detach().float().nan_to_num(1.0, 1.0, 1.0).cpu().numpy())


def _filled(found: Any, device: torch.device) -> Tensor:
    """A graph may find fewer than k: its first answer stands for the rest, and counts once in a union."""
    return torch.from_numpy(np.where(found < 0, found[:, :1], found)).to(device)
