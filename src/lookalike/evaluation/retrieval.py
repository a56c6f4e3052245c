"""Retrieval metrics, computed exactly: recall@k, mAP@k, MAP@R and R-precision.

Rows are compared by their dot product (the cosine of unit vectors); ties are broken by row. A query never finds
itself, by index. A query without a relevant item in the gallery is skipped and listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_unit_rows


@dataclass(frozen=True)
class RetrievalResult:
    """Retrieval metrics of every query.

    Attributes:
        per_query: Metric → one value a query.
        query_index: Row of each query.
        labels: Class of each query; −1 throughout if images have several.
        relevant: Number of relevant items of each query.
        skipped: Rows of queries without a relevant item in the gallery.
        gallery: Number of rows in the gallery.

    Example:
        >>> from lookalike.evaluation import retrieval_metrics
        >>> result = retrieval_metrics(np.eye(4)[[0, 0, 1, 2]], [0, 0, 1, 1], recall_at=(1,))
        >>> result.per_class()[0]["recall@1"]
        1.0
    """

    per_query: dict[str, Doubles]
    query_index: Ints
    labels: Ints
    relevant: Ints
    skipped: Ints
    gallery: int

    def mean(self) -> dict[str, float]:
        """Mean of each metric over the queries (NaN if there are none)."""
        return {k: float(v.mean()) if len(v) else float("nan") for k, v in self.per_query.items()}

    def per_class(self) -> dict[int, dict[str, float]]:
        """Mean of each metric over the queries of each class, with their ``count``."""
        codes, place, counts = np.unique(self.labels, return_inverse=True, return_counts=True)
        means = {k: np.bincount(place, v, len(codes)) / counts for k, v in self.per_query.items()}
        return {
            int(code): {"count": int(counts[i]), **{k: float(v[i]) for k, v in means.items()}}
            for i, code in enumerate(codes)
        }

    def to_json(self) -> dict[str, Any]:
        counts = {"queries": len(self.query_index), "gallery": self.gallery, "skipped": len(self.skipped)}
        means = {"mean": self.mean()} if len(self.query_index) else {}
        return {**counts, "classes": len(np.unique(self.labels)), **means}


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    *,
    query: Any = None,
    gallery: Any = None,
    coarse: Any = None,
    ids: Any = None,
    recall_at: Sequence[int] = (1, 10, 100, 1000),
    top: int = 1000,
) -> RetrievalResult:
    """Measure how well each row finds the others of its class.

    The metrics of a query with R relevant items, the gallery ranked by score:

    - ``recall@k``: 1 if one of the first k items is relevant, else 0.
    - ``map@{top}``: mean precision at the relevant items among the first ``top``, divided by min(R, ``top``).
    - ``map@r``: the same over the first R items, divided by R.
    - ``r_precision``: fraction of relevant items among the first R.
    - ``coarse_recall@k``: recall@k of the coarse class, if ``coarse`` is given.
    - ``map@{top}_authors``: mAP as the code of the ooDML paper computes it, to compare with published tables
      (leave-one-out only).

    Args:
        embeddings: One vector a row.
        labels: One label a row, or a boolean matrix (rows, labels); then sharing any label is relevant.
        query: Mask or indices of the queries; by default all rows (leave-one-out).
        gallery: Mask or indices of the rows to search; by default all.
        coarse: Coarse label of each row.
        ids: Content id of each row; pairs of equal content are neither hits nor misses.
        recall_at: The k of recall@k.
        top: The depth of mAP.

    Returns:
        The metrics of every query; `mean()` averages them.

    References:
        Musgrave et al., "A Metric Learning Reality Check" (MAP@R, R-precision).

    Example:
        >>> from lookalike.evaluation import retrieval_metrics
        >>> rows = np.float32([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
        >>> retrieval_metrics(rows, [0, 0, 1, 1], recall_at=(1,)).mean()["recall@1"]
        1.0
    """
    from lookalike.evaluation._ranking.ranks import RankingTask, find_ranks

    if not recall_at or min(recall_at) < 1 or top < 1:
        raise LookalikeError(f"`recall_at` {tuple(recall_at)} and `top` {top} must be whole numbers from 1 up.")
    rows = as_unit_rows(embeddings)
    codes: Ints | Bools = np.asarray(labels)
    if not (codes.ndim == 2 and codes.dtype == bool and len(codes) == len(rows)):
        codes = as_codes(labels, len(rows))
    sides = as_index(query, len(rows), "query"), as_index(gallery, len(rows), "gallery")
    content = None if ids is None else as_codes(ids, len(rows), "ids")
    coarse_codes = None if coarse is None else as_codes(coarse, len(rows), "coarse labels")
    task = RankingTask(rows, codes, *sides, content, coarse_codes, top, depth=max(top, *recall_at))
    ranks = find_ranks(task)
    relevant = np.maximum(ranks.relevant, 1)
    metrics = {f"recall@{k}": (ranks.first <= k).astype(np.float64) for k in recall_at}
    metrics[f"map@{top}"] = ranks.precision / np.minimum(relevant, top)
    metrics["map@r"] = ranks.precision_r / relevant
    metrics["r_precision"] = ranks.hits_r / relevant
    if coarse is not None:
        metrics |= {f"coarse_recall@{k}": (ranks.first_coarse <= k).astype(np.float64) for k in recall_at}
    if query is None and gallery is None and ids is None:
        metrics[f"map@{top}_authors"] = ranks.authors / (ranks.relevant + 1)
    valid = ranks.relevant > 0
    queries, per_query = task.query[valid], {name: values[valid] for name, values in metrics.items()}
    classes = np.full(len(queries), -1, np.int64) if task.multilabel else codes[queries].astype(np.int64)
    skipped = task.query[~valid]
    return RetrievalResult(per_query, queries, classes, ranks.relevant[valid], skipped, len(task.gallery))
