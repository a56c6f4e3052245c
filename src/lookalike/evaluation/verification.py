"""Verification: deciding from a score whether two images show the same class, at every threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_unit_rows, pair_scores

CURVE_POINTS = 501  # of the stored curve; the rates come from every pair


@dataclass(frozen=True)
class Verification:
    """Error rates of accepting a pair as the same when its score reaches a threshold.

    ``best_threshold`` has the lowest mean of the two error rates (``accuracy`` is 1 minus that mean), which does not
    depend on how many pairs of either kind there are.

    Attributes:
        thresholds: Points of the curve.
        false_accept: Fraction of different pairs accepted at each threshold.
        false_reject: Fraction of same pairs rejected at each threshold.
        equal_error: Error rate where the two are equal, at ``equal_threshold``.
        positive: Number of pairs of the same class; ``negative`` of different classes.
        complete: Whether every pair was scored, not a sample.
    """

    thresholds: Doubles
    false_accept: Doubles
    false_reject: Doubles
    equal_error: float
    equal_threshold: float
    best_threshold: float
    accuracy: float
    positive: int
    negative: int
    complete: bool

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
