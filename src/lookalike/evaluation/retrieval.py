"""Retrieval measured exactly: recall@k, mAP@1000 corrected and as ooDML's authors compute it, MAP@R, R-precision.

Rows are compared by their dot product (unit rows: the cosine); of equal scores the lower row comes first.
A query never finds itself, by index; one that has no relevant item in the gallery is skipped and listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_rows
from lookalike.evaluation.ranks import Ranks, Task, find_ranks


@dataclass(frozen=True)
class Retrieval:
    """One number a query and measure; `query_index` says which rows the queries are."""

    per_query: dict[str, Doubles]
    query_index: Ints
    labels: Ints  # the queries' classes; −1 throughout when a picture has several
    relevant: Ints
    skipped: Ints  # rows asked for that have no relevant item in the gallery
    gallery: int

    def mean(self) -> dict[str, float]:
        """Mean over queries (NaN when there are none)."""
        return {k: float(v.mean()) if len(v) else float("nan") for k, v in self.per_query.items()}

    def per_class(self) -> dict[int, dict[str, float]]:
        """Mean over each class's queries, with their `count`."""
        codes, place, counts = np.unique(self.labels, return_inverse=True, return_counts=True)
        means = {k: np.bincount(place, v, len(codes)) / counts for k, v in self.per_query.items()}
        return {
            int(code): {"count": int(counts[i]), **{k: float(v[i]) for k, v in means.items()}}
            for i, code in enumerate(codes)
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "queries": len(self.query_index),
            "gallery": self.gallery,
            "skipped": len(self.skipped),
            "classes": len(np.unique(self.labels)),
            **({} if not len(self.query_index) else {"mean": self.mean()}),
        }


def retrieval(
    embeddings: Any,
    labels: Any,
    *,
    query: Any = None,
    gallery: Any = None,
    coarse: Any = None,
    ids: Any = None,
    recall_at: Sequence[int] = (1, 10, 100, 1000),
    top: int = 1000,
) -> Retrieval:
    """Measure how well each row finds the others of its class.

    Leave-one-out over all rows unless `query` or `gallery` (masks or row numbers) part them. `labels` holds one
    label a row, or is a boolean rows × labels matrix (relevant: any label shared). `coarse` adds `coarse_recall@k`,
    the hit on a wider class; `ids` leaves pairs of equal content out, as neither hits nor misses.
    """
    if not recall_at or min(recall_at) < 1 or top < 1:
        raise LookalikeError(f"`recall_at` {tuple(recall_at)} and `top` {top} must be whole numbers from 1 up.")
    rows = as_rows(embeddings)
    codes: Ints | Bools = np.asarray(labels)
    if not (codes.ndim == 2 and codes.dtype == bool and len(codes) == len(rows)):
        codes = as_codes(labels, len(rows))
    task = Task(
        rows,
        codes,
        as_index(query, len(rows), "query"),
        as_index(gallery, len(rows), "gallery"),
        ids=None if ids is None else as_codes(ids, len(rows), "ids"),
        coarse=None if coarse is None else as_codes(coarse, len(rows), "coarse labels"),
        depth=max(top, *recall_at),
    )
    found = find_ranks(task)
    asked = found.relevant > 0
    measures = _measures(found, recall_at, top)
    if query is None and gallery is None and ids is None:
        measures[f"map@{top}_authors"] = _authors(found, top)
    kept = task.query[asked]
    return Retrieval(
        {name: values[asked] for name, values in measures.items()},
        kept,
        np.full(len(kept), -1, np.int64) if task.several else codes[kept].astype(np.int64),
        found.relevant[asked],
        task.query[~asked],
        len(task.gallery),
    )


def _measures(found: Ranks, recall_at: Sequence[int], top: int) -> dict[str, Doubles]:
    count = len(found.relevant)
    # Ranks stand in rising order within a query, so a hit's number is its place in the query's run.
    starts = np.searchsorted(found.owner, np.arange(count))
    precision = (np.arange(len(found.ranks)) - starts[found.owner] + 1) / found.ranks
    first = np.full(count, np.iinfo(np.int64).max)
    has = np.bincount(found.owner, minlength=count) > 0
    first[has] = found.ranks[starts[has]]
    total = np.maximum(found.relevant, 1)

    def summed(limit: int | Ints, weights: Doubles | None = None) -> Doubles:
        near = found.ranks <= (limit if isinstance(limit, int) else limit[found.owner])
        return np.bincount(found.owner[near], None if weights is None else weights[near], count).astype(np.float64)

    out: dict[str, Doubles] = {f"recall@{k}": (first <= k).astype(np.float64) for k in recall_at}
    out[f"map@{top}"] = summed(top, precision) / np.minimum(total, top)
    out["map@r"] = summed(found.relevant, precision) / total
    out["r_precision"] = summed(found.relevant) / total
    if found.coarse is not None:
        for k in recall_at:
            out[f"coarse_recall@{k}"] = ((found.coarse > 0) & (found.coarse <= k)).astype(np.float64)
    return out


def _authors(found: Ranks, top: int) -> Doubles:
    """The authors drop the first neighbour blindly and divide by the class size with the query in it.

    When a copy of the query stands before it, the copy is dropped and the query itself counts as a hit.
    Decision 0041 says what is not imitated.
    """
    count = len(found.relevant)
    moved = found.ahead > 0
    owner, ranks = found.owner, found.ranks
    # Without its first item a list moves up by one, and the query stands at the place `ahead`; what was
    # behind the query keeps its rank, for the query now fills the gap.
    ranks = np.where(moved[owner] & (ranks <= found.ahead[owner]), ranks - 1, ranks)
    kept = ranks > 0
    owner = np.concatenate([owner[kept], np.flatnonzero(moved)])
    ranks = np.concatenate([ranks[kept], found.ahead[moved]])
    order = np.lexsort((ranks, owner))
    owner, ranks = owner[order], ranks[order]
    place = np.arange(len(owner)) - np.searchsorted(owner, np.arange(count))[owner] + 1
    near = ranks <= top
    return np.bincount(owner[near], (place / ranks)[near], count) / (found.relevant + 1)
