"""Calibration: the probability that a hit shows the same thing as the query, given its score and neighborhood.

A score of 0.8 says little by itself: in a dense neighborhood everything scores 0.8. So a logistic regression joins
the score and its height above the query's neighborhood (the score of its 50th hit) into one index, and a monotone
curve over that index gives the probability (docs/design/evaluation.md). Pairs are (query, hit) as a user sees them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng, sample_rows
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_unit_rows, pair_scores
from lookalike.evaluation.bootstrap import bootstrap_interval, wilson_interval
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.verdicts import HIT_VERDICTS, QUERY_VERDICTS, hit_verdict, query_verdict

MIN_POSITIVE_PAIRS = 200  # fewer give no percentages
BINS = 30  # of the fitted curve
RIDGE = 1e-3


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration curve; an index or a report stores it as JSON.

    Attributes:
        weights: Weights of 1, of the score, and of the score minus the level of the neighborhood.
        neighbors: Rank of the hit whose score is the level of the neighborhood.
        knots: Points of the curve on the axis of the weighted sum.
        p: Probability at each of them.
        low: Lower bound of its interval.
        high: Upper bound of its interval.
        neighborhood: 1st and 99th percentile of the levels it was fitted on.
        positive: Number of fitted pairs that show the same thing.
        pairs: Number of fitted pairs.
        checked: Errors on classes held out from the fit, see :func:`cross_validate`.

    Example:
        >>> from lookalike.evaluation import Calibration
        >>> curve = Calibration((0.0, 1.0, 0.0), 50, [0.0, 1.0], [0.1, 0.9], [0.0, 0.8], [0.2, 1.0], (0, 1), 300, 900)
        >>> curve.probability([0.5, 0.25])[0]
        array([0.5, 0.3])
    """

    weights: tuple[float, float, float]
    neighbors: int
    knots: list[float]
    p: list[float]
    low: list[float]
    high: list[float]
    neighborhood: tuple[float, float]
    positive: int
    pairs: int
    checked: dict[str, Any] = field(default_factory=dict)

    def probability(self, scores: Any, level: Any = None) -> tuple[Doubles, Doubles, Doubles]:
        """Compute the probabilities of hits, and the lower and upper ends of their intervals.

        ``scores`` (..., hits) are those of each query's hits, best first, without the query itself; ``level`` is that
        of its neighborhood, if more hits are known than are in ``scores``.
        """
        values = np.asarray(scores, dtype=np.float64)
        levels = self.level(values) if level is None else np.asarray(level, dtype=np.float64)
        index = _features(values, levels[..., None]) @ np.asarray(self.weights)
        p, low, high = (np.interp(index, self.knots, curve) for curve in (self.p, self.low, self.high))
        return p, low, high

    def level(self, scores: Any) -> Doubles:
        """Score at the edge of each query's neighborhood, or of the last hit if there are fewer."""
        values = np.asarray(scores, dtype=np.float64)
        return np.asarray(values[..., min(self.neighbors, values.shape[-1]) - 1])

    def in_range(self, level: Any) -> Bools:
        """Whether a query's neighborhood is like those the curve was fitted on."""
        return np.asarray((np.asarray(level) >= self.neighborhood[0]) & (np.asarray(level) <= self.neighborhood[1]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Calibration:
        """Read what :meth:`to_json` wrote."""
        try:
            out = cls(**document)
        except TypeError:
            raise LookalikeError("The calibration does not hold what this version expects; calibrate again.") from None
        lists = (out.knots, out.p, out.low, out.high)
        if len(out.weights) != 3 or len({len(v) for v in lists}) != 1 or not np.isfinite(lists).all() or not out.knots:
            raise LookalikeError("The calibration is damaged; calibrate again.")
        return out


class HitPairs(NamedTuple):
    """Pairs of a query and one of its hits."""

    scores: Doubles  # (queries, hits), best first; −inf where there are fewer hits
    same: Bools  # whether the hit shows the same thing
    level: Doubles  # of each query's neighborhood
    groups: Ints  # class of each query: classes are resampled and held out as a whole


def hit_pairs(
    embeddings: Any,
    labels: Any,
    *,
    query: Any = None,
    gallery: Any = None,
    ids: Any = None,
    hits: int = 20,
    neighbors: int = 50,
) -> HitPairs:
    """Find each labeled query's best hits in the gallery, and whether they show the same thing."""
    rows = as_unit_rows(embeddings)
    codes = as_codes(labels, len(rows))
    queries, items = as_index(query, len(rows), "query"), as_index(gallery, len(rows), "gallery")
    queries, items = queries[codes[queries] >= 0], items[codes[items] >= 0]
    content = None if ids is None else as_codes(ids, len(rows), "ids")
    position = np.full(len(rows), -1, np.int64)
    position[items] = np.arange(len(items))
    extra = 0 if content is None else int(np.unique(content[content >= 0], return_counts=True)[1].max(initial=0))
    scores, index = top_k(rows[queries], rows[items], max(hits, neighbors) + extra, exclude=position[queries])
    hit_rows = items[index] if len(items) else index
    valid = index >= 0
    if content is not None:
        valid &= (content[hit_rows] != content[queries, None]) | (content[queries, None] < 0)
    order = np.argsort(~valid, axis=1, kind="stable")  # moves valid hits to the front
    valid, hit_rows = np.take_along_axis(valid, order, axis=1), np.take_along_axis(hit_rows, order, axis=1)
    values = np.where(valid, np.take_along_axis(scores, order, axis=1), -np.inf).astype(np.float64)
    edge = np.maximum(np.minimum(valid.sum(axis=1), neighbors) - 1, 0)
    same = (codes[hit_rows] == codes[queries, None]) & valid
    return HitPairs(values[:, :hits], same[:, :hits], values[np.arange(len(queries)), edge], codes[queries])


def calibrate(
    embeddings: Any,
    labels: Any,
    *,
    query: Any = None,
    gallery: Any = None,
    ids: Any = None,
    hits: int = 20,
    neighbors: int = 50,
    draws: int = 200,
    seed: int = 0,
) -> tuple[Calibration | None, str]:
    """Fit a calibration curve on images the model was not trained on.

    Args:
        embeddings: One unit vector a row.
        labels: One label a row; rows without one are left out.
        query: Mask or indices of the queries; by default all rows.
        gallery: Mask or indices of the rows to search; by default all.
        ids: Content id of each row; hits with the content of the query are left out.
        hits: Number of hits of a query that are fitted.
        neighbors: Rank of the hit whose score is the level of the neighborhood.
        draws: Number of bootstrap samples behind the intervals.
        seed: Seed of the samples and of the folds.

    Returns:
        The calibration and an empty string; or None and the reason if there is too little to fit.

    Example:
        >>> from lookalike.evaluation import calibrate
        >>> calibrate(np.eye(4), [0, 0, 1, 1])
        (None, 'only 4 pairs of the same thing are known; 200 are needed for percentages')
    """
    pairs = hit_pairs(embeddings, labels, query=query, gallery=gallery, ids=ids, hits=hits, neighbors=neighbors)
    positive = int(pairs.same.sum())
    if positive < MIN_POSITIVE_PAIRS:
        needed = f"{MIN_POSITIVE_PAIRS} are needed for percentages"
        return None, f"only {positive} pairs of the same thing are known; {needed}"
    if positive == int(np.isfinite(pairs.scores).sum()):
        return None, "every hit shows the same thing; percentages need wrong hits too"
    checked = cross_validate(pairs, neighbors=neighbors, draws=draws, seed=seed)
    if not checked:
        return None, "too few classes to check percentages on: they need right and wrong hits of several"
    return replace(_fit(pairs, neighbors, draws, seed), checked=checked), ""


def labels_are_albums(embeddings: Any, labels: Any, *, ids: Any = None, hits: int = 10, seed: int = 0) -> bool:
    """Whether images with the same label hardly look more alike than others; up to 2,000 of them are queries.

    Percentages and class names are of no use then: folders named by year or by import say nothing about what their
    images show. Pairs of equal content (``ids``) are left out; ``hits`` of each query are compared.

    Example:
        >>> from lookalike.evaluation.calibration import labels_are_albums
        >>> labels_are_albums(np.repeat(np.eye(2), 20, axis=0), np.repeat(["cat", "dog"], 20))
        False
        >>> labels_are_albums(np.repeat(np.eye(2), 20, axis=0), ["2019", "2020"] * 20)
        True
    """
    codes = as_codes(labels, len(embeddings))
    labeled = sample_rows(np.flatnonzero(codes >= 0), 2000, seed, "label agreement")
    pairs = hit_pairs(embeddings, codes, query=labeled, ids=ids, hits=hits, neighbors=hits)
    precision = float(pairs.same.sum() / max(1, np.isfinite(pairs.scores).sum()))
    sizes = np.unique(codes[codes >= 0], return_counts=True)[1]
    expected = float((sizes * (sizes - 1)).sum() / max(1, sizes.sum() * (sizes.sum() - 1)))  # of random images
    return precision < min(2 * expected, 0.9 * expected + 0.1)


def _features(scores: Doubles, level: Doubles) -> Doubles:
    return np.stack([np.ones_like(scores), scores, scores - level], axis=-1)


def _fit(pairs: HitPairs, neighbors: int, draws: int, seed: int) -> Calibration:
    valid = np.isfinite(pairs.scores)
    features = _features(pairs.scores, pairs.level[:, None])[valid]
    same = pairs.same[valid]
    groups = np.broadcast_to(pairs.groups[:, None], valid.shape)[valid]
    weights = _logistic_regression(features, same)
    index = features @ weights
    edges = np.unique(np.quantile(index, np.linspace(0, 1, BINS + 1))[1:-1])
    bins = np.searchsorted(edges, index, side="right")
    counts = np.bincount(bins, minlength=len(edges) + 1)
    knots = np.bincount(bins, index, len(counts)) / np.maximum(counts, 1)
    curves = _resampled_curves(bins, same, groups, len(counts), draws, seed)[:, counts > 0]
    levels = pairs.level[valid.any(axis=1)]
    low, high = np.quantile(curves[1:], [0.025, 0.975], axis=0)
    lists = (knots[counts > 0], curves[0], np.minimum(low, curves[0]), np.maximum(high, curves[0]))
    totals = (tuple(np.quantile(levels, [0.01, 0.99]).tolist()), int(same.sum()), len(same))
    fitted: tuple[Any, ...] = (tuple(weights.tolist()), neighbors, *(values.tolist() for values in lists), *totals)
    return Calibration(*fitted)


def _logistic_regression(features: Doubles, same: Bools) -> Doubles:
    """Ridge logistic regression on standardized features; no weight below 0, so that p rises with the score.

    scikit-learn's has no bound on the weights.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    mean, spread = features[:, 1:].mean(axis=0), features[:, 1:].std(axis=0)
    spread[spread == 0] = 1.0
    x = np.concatenate([features[:, :1], (features[:, 1:] - mean) / spread], axis=1)
    penalty = np.array([0.0, RIDGE, RIDGE])
    sign = np.where(same, 1.0, -1.0)

    def loss(w: Doubles) -> tuple[float, Doubles]:
        margin = sign * (x @ w)
        gradient = x.T @ (-sign * expit(-margin)) / len(x) + penalty * w
        return float(np.logaddexp(0, -margin).mean() + penalty @ w**2 / 2), gradient

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000}
    bounds = [(None, None), (0, None), (0, None)]
    w = minimize(loss, np.zeros(3), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    scaled = w[1:] / spread
    return np.array([w[0] - scaled @ mean, *scaled])


def _resampled_curves(bins: Ints, same: Bools, groups: Ints, count: int, draws: int, seed: int) -> Doubles:
    """The monotone curve over the bins, and ``draws`` of it with classes resampled; one a row."""
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    classes = int(codes.max()) + 1
    cell = codes * count + bins
    pairs = np.bincount(cell, minlength=classes * count).reshape(classes, count).astype(np.float64)
    hits = np.bincount(cell, same, classes * count).reshape(classes, count)
    samples = numpy_rng(seed, "calibration").multinomial(classes, np.full(classes, 1 / classes), size=draws)
    samples = np.concatenate([np.ones((1, classes), samples.dtype), samples])
    return np.stack([_monotone(h, n) for h, n in zip(samples @ hits, samples @ pairs, strict=True)])


def _monotone(hits: Doubles, pairs: Doubles) -> Doubles:
    """Isotonic regression of hit fractions, with half a pair added to either side against 0 and 1."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression((hits + 0.5) / (pairs + 1.0), weights=pairs + 1.0).x)


def cross_validate(
    pairs: HitPairs, *, neighbors: int = 50, folds: int = 5, bins: int = 10, draws: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Measure the errors of the percentages on classes that were not used to fit them.

    Returns:
        ``ece`` (expected calibration error) with its interval, reliability ``bins``, and for ``hits`` and ``queries``
        how often each verdict was wrong. Empty if the other classes of a fold have no right or no wrong hits.
    """
    p, low = np.full(pairs.scores.shape, np.nan), np.full(pairs.scores.shape, np.nan)
    classes = numpy_rng(seed, "folds").permutation(np.unique(pairs.groups))
    for fold in range(folds):
        held_out = np.isin(pairs.groups, classes[fold::folds])
        valid = np.isfinite(pairs.scores[~held_out])
        if not held_out.any() or not 0 < int(pairs.same[~held_out].sum()) < valid.sum():
            continue
        fitted = _fit(HitPairs._make(values[~held_out] for values in pairs), neighbors, draws, seed)
        valid = np.isfinite(pairs.scores[held_out])
        scores = np.where(valid, pairs.scores[held_out], 0.0)
        predicted = fitted.probability(scores, np.where(valid.any(axis=1), pairs.level[held_out], 0))
        p[held_out], low[held_out] = (np.where(valid, values, np.nan) for values in predicted[:2])
    valid = np.isfinite(p)
    if not np.array_equal(valid, np.isfinite(pairs.scores)):
        return {}
    groups = np.broadcast_to(pairs.groups[:, None], p.shape)[valid]
    return {
        **_reliability(p[valid], pairs.same[valid], groups, bins, seed),
        **_verdict_errors(p, low, pairs.same, pairs.groups, seed),
    }


def _reliability(p: Doubles, same: Bools, groups: Ints, bins: int, seed: int) -> dict[str, Any]:
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    rows, error = [], 0.0
    for number in np.unique(place):
        chosen = place == number
        band = bootstrap_interval(same[chosen].astype(np.float64), groups=groups[chosen], draws=500, seed=seed)
        mean = float(p[chosen].mean())
        error += float(chosen.mean()) * abs(mean - band.value)
        rows.append({"p": mean, "observed": band.value, "low": band.low, "high": band.high, "count": int(chosen.sum())})
    low, high = _ece_interval(p - same, place, groups, seed)
    return {"ece": error, "ece_low": min(low, error), "ece_high": max(high, error), "bins": rows}


def _ece_interval(gap: Doubles, place: Ints, groups: Ints, seed: int, draws: int = 500) -> tuple[float, float]:
    """95 % interval of the expected calibration error, classes resampled; ``gap`` is p − observed of each pair."""
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    classes, bins = int(codes.max()) + 1, int(place.max()) + 1
    gaps = np.bincount(codes * bins + place, gap, classes * bins).reshape(classes, bins)
    samples = numpy_rng(seed, "calibration error").multinomial(classes, np.full(classes, 1 / classes), size=draws)
    errors = np.abs(samples @ gaps).sum(axis=1) / (samples @ np.bincount(codes))
    low, high = np.quantile(errors, [0.025, 0.975]).tolist()
    return low, high


def _verdict_errors(p: Doubles, low: Doubles, same: Bools, groups: Ints, seed: int) -> dict[str, Any]:
    """How often each verdict was wrong, of hits and of queries (by their best hit)."""
    valid = np.isfinite(p)
    verdicts = np.array([hit_verdict(value) for value in p[valid]])
    truth, classes = same[valid], np.broadcast_to(groups[:, None], p.shape)[valid]
    hits = {v: _error_rate(~truth[verdicts == v], classes[verdicts == v], seed) for v in HIT_VERDICTS}
    some = valid[:, 0] if p.shape[1] else np.zeros(len(p), bool)
    verdicts = np.array([query_verdict(a, b) for a, b in zip(p[some, 0], low[some, 0], strict=True)])
    # "No good match" is wrong if the best hit showed the same thing after all.
    wrong = same[some, 0] == (verdicts == QUERY_VERDICTS[2])
    queries = {v: _error_rate(wrong[verdicts == v], groups[some][verdicts == v], seed) for v in QUERY_VERDICTS}
    return {"hits": hits, "queries": queries}


def _error_rate(wrong: Bools, groups: Ints, seed: int) -> dict[str, Any]:
    if not len(wrong):
        return {"count": 0, "wrong": None, "low": None, "high": None}
    sure = bootstrap_interval(wrong.astype(np.float64), groups=groups, draws=500, seed=seed)
    if sure.low == sure.high:  # none or all wrong: resampling would claim certainty
        sure = replace(wilson_interval(int(wrong.sum()), len(wrong)), value=sure.value)
    return {"count": len(wrong), "wrong": sure.value, "low": sure.low, "high": sure.high}


@dataclass(frozen=True)
class RandomPairScores:
    """Scores of random pairs, for "closer than 99.8 % of random pairs" where there are no labels."""

    quantiles: list[float]  # at 0, 0.1, … 100 %

    def fraction_below(self, score: Any) -> Doubles:
        """Fraction of random pairs with a lower score."""
        return np.asarray(np.interp(score, self.quantiles, np.linspace(0, 1, len(self.quantiles))))


def random_pair_scores(embeddings: Any, *, pairs: int = 200_000, seed: int = 0) -> RandomPairScores | None:
    """Measure the scores of random pairs of different rows; None for fewer than two rows."""
    rows = as_unit_rows(embeddings)
    if len(rows) < 2:
        return None
    rng = numpy_rng(seed, "background")
    left = rng.integers(len(rows), size=pairs)
    right = (left + rng.integers(1, len(rows), size=pairs)) % len(rows)
    return RandomPairScores(np.quantile(pair_scores(rows, left, right), np.linspace(0, 1, 1001)).tolist())
