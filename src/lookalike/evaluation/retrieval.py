"""Retrieval metrics, computed exactly (recall@k, mAP@k, MAP@R, R-precision), and verification by a threshold.

Rows are compared by their dot product (the cosine of unit vectors); ties are broken by row. A query never finds
itself, by index. A query without a relevant item in the gallery is skipped and listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_unit_rows, pair_scores

CURVE_POINTS = 501  # of the stored curve; the rates come from every pair


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


@dataclass(frozen=True)
class Verification:
    """Error rates of accepting a pair as the same when its score reaches a threshold.

    ``best_threshold`` has the lowest mean of the two error rates (``accuracy`` is 1 minus that mean), which does not
    depend on how many pairs of either kind there are.
    """

    thresholds: Doubles  # points of the curve
    false_accept: Doubles  # fraction of different pairs accepted at each of them
    false_reject: Doubles  # fraction of same pairs rejected
    equal_error: float  # where the two are equal, at `equal_threshold`
    equal_threshold: float
    best_threshold: float
    accuracy: float
    positive: int  # number of pairs of the same class
    negative: int
    complete: bool  # every pair was scored, not a sample

    def to_json(self) -> dict[str, Any]:
        names = ("equal_error", "equal_threshold", "best_threshold", "accuracy", "positive", "negative", "complete")
        return {name: getattr(self, name) for name in names}


def verify(embeddings: Any, labels: Any, *, ids: Any = None, max_pairs: int = 2_000_000, seed: int = 0) -> Verification:
    """Compute the error rates of deciding "same class" by the dot product of two embeddings.

    Args:
        embeddings: One vector a row.
        labels: One label a row; rows without one are left out.
        ids: Content id of each row; pairs of equal content are left out.
        max_pairs: If there are more pairs, a sample of so many is scored, half of them of the same class.
        seed: Seed of the sample.

    Returns:
        The error rates by threshold.

    Example:
        >>> from lookalike.evaluation import verify
        >>> verify(np.repeat(np.eye(3), 4, axis=0), np.repeat([0, 1, 2], 4)).equal_error
        0.0
    """
    rows = as_unit_rows(embeddings)
    codes = as_codes(labels, len(rows))
    content = None if ids is None else as_codes(ids, len(rows), "ids")
    pairs = sample_pairs(codes, limit=max_pairs, ids=content, seed=seed)
    return error_rates(pair_scores(rows, pairs.left, pairs.right), pairs.same, complete=pairs.complete)


def error_rates(scores: Doubles, same: Bools, *, complete: bool = True) -> Verification:
    """Compute the error rates of scored pairs; every distinct score is a threshold, and one above all of them."""
    order = np.argsort(scores, kind="stable")
    ranked, truth = scores[order], same[order]
    positive, negative = int(truth.sum()), int((~truth).sum())
    distinct = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))  # equal scores are accepted together
    false_accepts = negative - np.concatenate([[0], np.cumsum(~truth)])[distinct]
    false_rejects = np.concatenate([[0], np.cumsum(truth)])[distinct]
    thresholds = np.append(ranked[distinct], np.nextafter(ranked[-1], np.inf))
    far = np.append(false_accepts, 0) / negative
    frr = np.append(false_rejects, positive) / positive
    best = int(np.argmin(far + frr))
    points = np.unique(np.linspace(0, len(thresholds) - 1, CURVE_POINTS).round().astype(np.int64))
    curves = thresholds[points], far[points], frr[points]
    accuracy = float(1 - (far[best] + frr[best]) / 2)
    equal = _equal_error(thresholds, far, frr)
    return Verification(*curves, *equal, float(thresholds[best]), accuracy, positive, negative, complete)


def _equal_error(thresholds: Doubles, far: Doubles, frr: Doubles) -> tuple[float, float]:
    """Where the falling and the rising rate cross, interpolated between two thresholds."""
    cross = int(np.argmax(frr >= far))
    if cross == 0 or far[cross] == frr[cross]:
        return float((far[cross] + frr[cross]) / 2), float(thresholds[cross])
    gap = far - frr
    fraction = gap[cross - 1] / (gap[cross - 1] - gap[cross])
    value = far[cross - 1] + fraction * (far[cross] - far[cross - 1])
    return float(value), float(thresholds[cross - 1] + fraction * (thresholds[cross] - thresholds[cross - 1]))


class Pairs(NamedTuple):
    """Pairs of rows, and whether they are of the same class; ``complete`` if these are all pairs there are."""

    left: Ints
    right: Ints
    same: Bools
    complete: bool


def sample_pairs(labels: Ints, *, limit: int = 2_000_000, ids: Ints | None = None, seed: int = 0) -> Pairs:
    """Draw pairs of labeled rows: all of them if they fit the limit, else half the limit of each kind."""
    labeled = np.flatnonzero(labels >= 0)
    complete = len(labeled) * (len(labeled) - 1) // 2 <= limit
    if complete:
        one, two = np.triu_indices(len(labeled), k=1)
        left, right = labeled[one], labeled[two]
    else:
        rng = numpy_rng(seed, "pairs")
        positive = _same_class(labels, labeled, limit // 2, rng)
        negative = _different_class(labels, labeled, limit - limit // 2, rng)
        left, right = np.concatenate([positive, negative], axis=1)
    if ids is not None:
        distinct = (ids[left] != ids[right]) | (ids[left] < 0)
        left, right = left[distinct], right[distinct]
    same = labels[left] == labels[right]
    if not same.any() or same.all():
        raise LookalikeError("Verification needs pairs of the same and of different classes; one kind is missing.")
    return Pairs(left, right, same, complete)


def _same_class(labels: Ints, labeled: Ints, limit: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """All pairs of the same class, or `limit` of them drawn uniformly."""
    order = labeled[np.argsort(labels[labeled], kind="stable")]
    _, start, size = np.unique(labels[order], return_index=True, return_counts=True)
    pairs = size * (size - 1) // 2
    total = int(pairs.sum())
    chosen = np.arange(total) if total <= limit else rng.choice(total, size=limit, replace=total > 50_000_000)
    group = np.searchsorted(np.cumsum(pairs), chosen, side="right")
    number = chosen - (np.cumsum(pairs) - pairs)[group]
    # Pair (a, b) with a < b has number b(b−1)/2 + a within its class; this is the inverse.
    second = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    second -= second * (second - 1) // 2 > number
    first = number - second * (second - 1) // 2
    return order[start[group] + first], order[start[group] + second]


def _different_class(labels: Ints, labeled: Ints, limit: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    if len(np.unique(labels[labeled])) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    pairs = np.empty((2, 0), np.int64)
    while pairs.shape[1] < limit:
        drawn = np.stack([rng.choice(labeled, size=limit), rng.choice(labeled, size=limit)])
        pairs = np.concatenate([pairs, drawn[:, labels[drawn[0]] != labels[drawn[1]]]], axis=1)
    return pairs[0, :limit], pairs[1, :limit]
