"""Same or not? Error rates over all thresholds, the equal error rate and the best threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.evaluation.arrays import Bools, Doubles, as_codes, as_rows
from lookalike.evaluation.pairs import draw_pairs, pair_scores

CURVE_POINTS = 501  # kept of the curve for a report; the rates below come from every pair


@dataclass(frozen=True)
class Verification:
    """A pair is accepted as the same when its score reaches the threshold.

    `best_threshold` has the lowest mean of the two error rates (`accuracy` = 1 − that mean), which does not depend
    on how many pairs of either kind there are.
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

    def accept_at(self, false_accept: float) -> float:
        """Share of true pairs accepted at the lowest threshold whose false accept rate is at most this."""
        allowed = np.flatnonzero(self.false_accept <= false_accept)
        return float(1 - self.false_reject[allowed].min()) if len(allowed) else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "equal_error": self.equal_error,
            "equal_threshold": self.equal_threshold,
            "best_threshold": self.best_threshold,
            "accuracy": self.accuracy,
            "positive": self.positive,
            "negative": self.negative,
            "complete": self.complete,
        }


def verify(embeddings: Any, labels: Any, *, ids: Any = None, max_pairs: int = 2_000_000, seed: int = 0) -> Verification:
    """Error rates of deciding "same class" by the score, over all pairs or a seeded sample of `max_pairs`."""
    rows = as_rows(embeddings)
    codes = as_codes(labels, len(rows))
    content = None if ids is None else as_codes(ids, len(rows), "ids")
    pairs = draw_pairs(codes, limit=max_pairs, ids=content, seed=seed)
    return error_rates(pair_scores(rows, pairs.left, pairs.right), pairs.same, complete=pairs.complete)


def error_rates(scores: Doubles, same: Bools, *, complete: bool = True) -> Verification:
    """The rates from scored pairs; every distinct score is a threshold, and one above all accepts nothing."""
    order = np.argsort(scores, kind="stable")
    ranked, truth = scores[order], same[order]
    positive, negative = int(truth.sum()), int((~truth).sum())
    first = np.concatenate([[True], ranked[1:] != ranked[:-1]])  # equal scores are accepted together
    below = np.flatnonzero(first)
    accepted_wrong = negative - np.concatenate([[0], np.cumsum(~truth)])[below]
    missed = np.concatenate([[0], np.cumsum(truth)])[below]
    thresholds = np.append(ranked[below], np.nextafter(ranked[-1], np.inf))
    far = np.append(accepted_wrong, 0) / negative
    frr = np.append(missed, positive) / positive
    cross = int(np.argmax(frr >= far))
    best = int(np.argmin(far + frr))
    equal, at = _crossing(thresholds, far, frr, cross)
    kept = np.unique(np.linspace(0, len(thresholds) - 1, CURVE_POINTS).round().astype(np.int64))
    return Verification(
        thresholds[kept],
        far[kept],
        frr[kept],
        equal,
        at,
        float(thresholds[best]),
        float(1 - (far[best] + frr[best]) / 2),
        positive,
        negative,
        complete,
    )


def _crossing(thresholds: Doubles, far: Doubles, frr: Doubles, cross: int) -> tuple[float, float]:
    """Where the falling and the rising rate meet, on the straight line between two thresholds."""
    if cross == 0 or far[cross] == frr[cross]:
        return float((far[cross] + frr[cross]) / 2), float(thresholds[cross])
    gap = far - frr
    share = gap[cross - 1] / (gap[cross - 1] - gap[cross])
    value = far[cross - 1] + share * (far[cross] - far[cross - 1])
    return float(value), float(thresholds[cross - 1] + share * (thresholds[cross] - thresholds[cross - 1]))
