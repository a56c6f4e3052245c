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
from lookalike.evaluation._ranking.ranks import Found, Task, find_ranks
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_rows


@dataclass(frozen=True)
class Retrieval:
    """One number a query and measure; `query_index` says which rows the queries are."""

    per_query: dict[str, Doubles]
    query_index: Ints
    labels: Ints  # the queries' classes; −1 throughout when an image has several
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
        top=top,
        depth=max(top, *recall_at),
    )
    found = find_ranks(task)
    asked = found.relevant > 0
    measures = _measures(found, recall_at, top, coarse is not None)
    if query is None and gallery is None and ids is None:
        measures[f"map@{top}_authors"] = found.authors / (found.relevant + 1)
    kept = task.query[asked]
    return Retrieval(
        {name: values[asked] for name, values in measures.items()},
        kept,
        np.full(len(kept), -1, np.int64) if task.several else codes[kept].astype(np.int64),
        found.relevant[asked],
        task.query[~asked],
        len(task.gallery),
    )


def _measures(found: Found, recall_at: Sequence[int], top: int, coarse: bool) -> dict[str, Doubles]:
    total = np.maximum(found.relevant, 1)
    out = {f"recall@{k}": (found.first <= k).astype(np.float64) for k in recall_at}
    out[f"map@{top}"] = found.precision / np.minimum(total, top)
    out["map@r"] = found.precision_r / total
    out["r_precision"] = found.hits_r / total
    if coarse:
        out |= {f"coarse_recall@{k}": (found.coarse <= k).astype(np.float64) for k in recall_at}
    return out
