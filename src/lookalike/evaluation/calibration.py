"""P(same thing | score, neighborhood of the query): what a score means, checked on held-out pairs.

A score of 0.8 says little by itself: in a dense neighborhood everything scores 0.8. So the score and its height
above the query's surroundings (its 50th hit) are joined by a logistic fit into one number, and a monotone curve over
that number gives the probability (docs/decisions/0043). Pairs are (query, hit) as a user sees them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Ints, as_codes, as_index, as_rows
from lookalike.evaluation.bootstrap import interval, share
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.pairs import pair_scores
from lookalike.evaluation.verdicts import HIT_WORDS, QUERY_WORDS, found_word, hit_word

FEWEST = 200  # positive pairs without which no per cent is shown
KNOTS = 30


@dataclass(frozen=True)
class Calibration:
    """The fitted curve; `to_json` and `from_json` let a model or an index carry it."""

    weights: tuple[float, float, float]  # of 1, the score, and the score less that of the neighborhood's edge
    neighbors: int  # the hit that is the edge
    knots: list[float]
    p: list[float]
    low: list[float]
    high: list[float]
    neighborhood: tuple[float, float]  # 1st and 99th percentile of what was seen
    positive: int
    pairs: int
    checked: dict[str, Any] = field(default_factory=dict)  # what held-out pairs said, see `check`

    def probability(self, scores: Any, level: Any = None) -> tuple[Doubles, Doubles, Doubles]:
        """p with its interval for the hits of queries: scores of shape (..., hits), best first, the query left out.

        `level` is that of the neighborhood (see there) where more hits are known than are asked about.
        """
        values = np.asarray(scores, dtype=np.float64)
        around = self.level(values) if level is None else np.asarray(level, dtype=np.float64)
        index = _features(values, around[..., None]) @ np.asarray(self.weights)
        p, low, high = (np.interp(index, self.knots, curve) for curve in (self.p, self.low, self.high))
        return p, low, high

    def level(self, scores: Any) -> Doubles:
        """How near a query's surroundings are: the score at the edge of its neighborhood, or the last one known."""
        values = np.asarray(scores, dtype=np.float64)
        return np.asarray(values[..., min(self.neighbors, values.shape[-1]) - 1])

    def within(self, level: Any) -> Bools:
        """Whether a query's neighborhood is like those the curve was checked on."""
        return np.asarray((np.asarray(level) >= self.neighborhood[0]) & (np.asarray(level) <= self.neighborhood[1]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Calibration:
        try:
            out = cls(**document)
        except TypeError:
            raise LookalikeError("The calibration does not hold what this version expects; calibrate again.") from None
        lists = (out.knots, out.p, out.low, out.high)
        if len(out.weights) != 3 or len({len(v) for v in lists}) != 1 or not np.isfinite(lists).all() or not out.knots:
            raise LookalikeError("The calibration is damaged; calibrate again.")
        return out


@dataclass(frozen=True)
class HitPairs:
    """(query, hit) pairs: rows × hits, best first; hits that do not exist have score −inf."""

    scores: Doubles
    same: Bools
    level: Doubles  # of each query's neighborhood
    groups: Ints  # class of each query: what is drawn together and held out together

    def of(self, queries: Bools) -> HitPairs:
        return HitPairs(self.scores[queries], self.same[queries], self.level[queries], self.groups[queries])


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
    """Each labeled query's best hits in the gallery, and whether they show the same thing."""
    rows = as_rows(embeddings)
    codes = as_codes(labels, len(rows))
    asked, where = as_index(query, len(rows), "query"), as_index(gallery, len(rows), "gallery")
    asked, where = asked[codes[asked] >= 0], where[codes[where] >= 0]
    content = None if ids is None else as_codes(ids, len(rows), "ids")
    place = np.full(len(rows), -1, np.int64)
    place[where] = np.arange(len(where))
    extra = 0 if content is None else int(np.bincount(content[content >= 0]).max(initial=0))
    scores, index = top_k(rows[asked], rows[where], max(hits, neighbors) + extra, exclude=place[asked])
    found = where[index] if len(where) else index
    kept = index >= 0
    if content is not None:
        kept &= (content[found] != content[asked, None]) | (content[asked, None] < 0)
    order = np.argsort(~kept, axis=1, kind="stable")  # what is kept moves to the front
    kept, found = np.take_along_axis(kept, order, axis=1), np.take_along_axis(found, order, axis=1)
    values = np.where(kept, np.take_along_axis(scores, order, axis=1), -np.inf).astype(np.float64)
    edge = np.maximum(np.minimum(kept.sum(axis=1), neighbors) - 1, 0)
    same = (codes[found] == codes[asked, None]) & kept
    return HitPairs(values[:, :hits], same[:, :hits], values[np.arange(len(asked)), edge], codes[asked])


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
    """Fit the curve on held-out images; (None, why) where too little is known for a per cent."""
    pairs = hit_pairs(embeddings, labels, query=query, gallery=gallery, ids=ids, hits=hits, neighbors=neighbors)
    real = np.isfinite(pairs.scores)
    positive = int(pairs.same.sum())
    if positive < FEWEST:
        return None, f"only {positive} pairs of the same thing are known; {FEWEST} are needed for percentages"
    if positive == int(real.sum()):
        return None, "every hit shows the same thing; percentages need wrong hits too"
    checked = check(pairs, neighbors=neighbors, draws=draws, seed=seed)
    if not checked:
        return None, "too few classes to check percentages on: they need right and wrong hits of several"
    return Calibration(**{**asdict(_fit(pairs, neighbors, draws, seed)), "checked": checked}), ""


def _features(scores: Doubles, level: Doubles) -> Doubles:
    return np.stack([np.ones_like(scores), scores, scores - level], axis=-1)


def _fit(pairs: HitPairs, neighbors: int, draws: int, seed: int) -> Calibration:
    real = np.isfinite(pairs.scores)
    features = _features(pairs.scores, pairs.level[:, None])[real]
    same = pairs.same[real]
    groups = np.broadcast_to(pairs.groups[:, None], real.shape)[real]
    weights = _logistic(features, same)
    index = features @ weights
    bins = np.unique(np.quantile(index, np.linspace(0, 1, KNOTS + 1))[1:-1])
    place = np.searchsorted(bins, index, side="right")
    count = len(bins) + 1
    knots = np.bincount(place, index, count) / np.maximum(np.bincount(place, minlength=count), 1)
    kept = np.bincount(place, minlength=count) > 0
    curves = _curves(place, same, groups, count, draws, seed)[:, kept]
    asked = pairs.level[real.any(axis=1)]
    return Calibration(
        tuple(float(w) for w in weights),  # type: ignore[arg-type]
        neighbors,
        knots[kept].tolist(),
        curves[0].tolist(),
        np.minimum(np.quantile(curves[1:], 0.025, axis=0), curves[0]).tolist(),
        np.maximum(np.quantile(curves[1:], 0.975, axis=0), curves[0]).tolist(),
        (float(np.quantile(asked, 0.01)), float(np.quantile(asked, 0.99))),
        int(same.sum()),
        len(same),
    )


def _logistic(features: Doubles, same: Bools, ridge: float = 1e-3) -> Doubles:
    """Newton's method on standardized features; no weight below 0, so that p rises with the score."""
    mean, spread = features[:, 1:].mean(axis=0), features[:, 1:].std(axis=0)
    spread[spread == 0] = 1.0
    x = np.concatenate([features[:, :1], (features[:, 1:] - mean) / spread], axis=1)
    active = np.array([True, True, True])
    while True:
        w = np.zeros(3)
        penalty = np.diag([0.0, ridge, ridge])[np.ix_(active, active)] * len(x)
        for _ in range(50):
            p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
            slope = x[:, active].T @ (p - same) + penalty @ w[active]
            bend = (x[:, active].T * np.maximum(p * (1 - p), 1e-9)) @ x[:, active] + penalty
            step = np.linalg.solve(bend, slope)
            w[active] -= step
            if np.abs(step).max() < 1e-8:
                break
        if (w[1:] >= 0).all():
            break
        active[1 + int(np.argmin(w[1:]))] = False
    scaled = w[1:] / spread
    return np.array([w[0] - scaled @ mean, *scaled])


def _curves(place: Ints, same: Bools, groups: Ints, count: int, draws: int, seed: int) -> Doubles:
    """The monotone curve over the bins, and `draws` of it with whole classes drawn anew; one a row."""
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    total = int(codes.max()) + 1
    cell = codes * count + place
    every = np.bincount(cell, minlength=total * count).reshape(total, count).astype(np.float64)
    right = np.bincount(cell, same, total * count).reshape(total, count)
    drawn = numpy_rng(seed, "calibration").multinomial(total, np.full(total, 1 / total), size=draws)
    drawn = np.concatenate([np.ones((1, total), drawn.dtype), drawn])
    return np.stack([_monotone(hits, pairs) for hits, pairs in zip(drawn @ right, drawn @ every, strict=True)])


def _monotone(hits: Doubles, pairs: Doubles) -> Doubles:
    """Isotonic regression of shares (pool adjacent violators), half a pair added either way against 0 and 1."""
    value: list[float] = []
    weight: list[float] = []
    width: list[int] = []
    for h, n in zip(hits + 0.5, pairs + 1.0, strict=True):
        value.append(float(h / n))
        weight.append(float(n))
        width.append(1)
        while len(value) > 1 and value[-2] >= value[-1]:
            v, w, k = value.pop(), weight.pop(), width.pop()
            value[-1] = (value[-1] * weight[-1] + v * w) / (weight[-1] + w)
            weight[-1] += w
            width[-1] += k
    return np.repeat(value, width)


def check(
    pairs: HitPairs, *, neighbors: int = 50, folds: int = 5, bins: int = 10, draws: int = 200, seed: int = 0
) -> dict[str, Any]:
    """How right the percentages are on classes that did not help to fit them.

    Gives `ece`, reliability `bins` with bands, and how often each verdict was wrong, for hits and for queries; nothing
    where a class cannot be checked, because the others have no right or no wrong hits to fit a curve by.
    """
    p, low = np.full(pairs.scores.shape, np.nan), np.full(pairs.scores.shape, np.nan)
    names = numpy_rng(seed, "folds").permutation(np.unique(pairs.groups))
    for fold in range(folds):
        out = np.isin(pairs.groups, names[fold::folds])
        real = np.isfinite(pairs.scores[~out])
        inside = int(pairs.same[~out].sum())
        if not out.any() or not 0 < inside < real.sum():
            continue
        fitted = _fit(pairs.of(~out), neighbors, draws, seed)
        known = np.isfinite(pairs.scores[out])
        held = fitted.probability(
            np.where(known, pairs.scores[out], 0.0), np.where(known.any(axis=1), pairs.level[out], 0)
        )
        p[out], low[out] = (np.where(known, values, np.nan) for values in held[:2])
    real = np.isfinite(p)
    if not np.array_equal(real, np.isfinite(pairs.scores)):
        return {}
    groups = np.broadcast_to(pairs.groups[:, None], p.shape)[real]
    return {
        **_reliability(p[real], pairs.same[real], groups, bins, seed),
        **_wrong(p, low, pairs.same, pairs.groups, seed),
    }


def _reliability(p: Doubles, same: Bools, groups: Ints, bins: int, seed: int) -> dict[str, Any]:
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    rows, error = [], 0.0
    for number in np.unique(place):
        chosen = place == number
        band = interval(same[chosen].astype(np.float64), groups=groups[chosen], draws=500, seed=seed)
        mean = float(p[chosen].mean())
        error += float(chosen.mean()) * abs(mean - band.value)
        rows.append({"p": mean, "observed": band.value, "low": band.low, "high": band.high, "count": int(chosen.sum())})
    low, high = _ece_interval(p - same, place, groups, seed)
    return {"ece": error, "ece_low": min(low, error), "ece_high": max(high, error), "bins": rows}


def _ece_interval(gap: Doubles, place: Ints, groups: Ints, seed: int, draws: int = 500) -> tuple[float, float]:
    """95 % of the errors with whole classes drawn anew: the bins' absolute sums of p − observed, a pair."""
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    classes, bins = int(codes.max()) + 1, int(place.max()) + 1
    gaps = np.bincount(codes * bins + place, gap, classes * bins).reshape(classes, bins)
    drawn = numpy_rng(seed, "calibration error").multinomial(classes, np.full(classes, 1 / classes), size=draws)
    errors = np.abs(drawn @ gaps).sum(axis=1) / (drawn @ np.bincount(codes))
    low, high = np.quantile(errors, [0.025, 0.975])
    return float(low), float(high)


def _wrong(p: Doubles, low: Doubles, same: Bools, groups: Ints, seed: int) -> dict[str, Any]:
    """Share of wrong ones among hits of each verdict, and among queries by their best hit."""
    real = np.isfinite(p)
    said = np.array([hit_word(value) for value in p[real]])
    truth, classes = same[real], np.broadcast_to(groups[:, None], p.shape)[real]
    hits = {word: _share(~truth[said == word], classes[said == word], seed) for word in HIT_WORDS}
    asked = real[:, 0] if p.shape[1] else np.zeros(len(p), bool)
    words = np.array([found_word(a, b) for a, b in zip(p[asked, 0], low[asked, 0], strict=True)])
    queries = {}
    for word in QUERY_WORDS:
        chosen = words == word
        # "No good match" is wrong when the best hit was the same thing after all.
        bad = same[asked, 0][chosen] if word == QUERY_WORDS[2] else ~same[asked, 0][chosen]
        queries[word] = _share(bad, groups[asked][chosen], seed)
    return {"hits": hits, "queries": queries}


def _share(wrong: Bools, groups: Ints, seed: int) -> dict[str, Any]:
    """How many, what share of them was wrong, and how sure that is."""
    if not len(wrong):
        return {"count": 0, "wrong": None, "low": None, "high": None}
    drawn = interval(wrong.astype(np.float64), groups=groups, draws=500, seed=seed)
    few = share(int(wrong.sum()), len(wrong))
    alike = drawn.low == drawn.high  # none or all wrong: drawing them anew would claim certainty
    low, high = (few.low, few.high) if alike else (drawn.low, drawn.high)
    return {"count": len(wrong), "wrong": drawn.value, "low": low, "high": high}


@dataclass(frozen=True)
class Background:
    """Scores of random pairs, for the sentence that needs no labels: closer than 99.8 % of random pairs."""

    quantiles: list[float]  # of 0, 0.1, ... 100 per cent

    def share_below(self, score: Any) -> Doubles:
        return np.asarray(np.interp(score, self.quantiles, np.linspace(0, 1, len(self.quantiles))))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Background:
        return cls(list(document["quantiles"]))


def background(embeddings: Any, *, pairs: int = 200_000, seed: int = 0) -> Background | None:
    """Quantiles over random pairs of different rows; None for fewer than two rows."""
    rows = as_rows(embeddings)
    if len(rows) < 2:
        return None
    rng = numpy_rng(seed, "background")
    left = rng.integers(len(rows), size=pairs)
    right = (left + rng.integers(1, len(rows), size=pairs)) % len(rows)
    return Background(np.quantile(pair_scores(rows, left, right), np.linspace(0, 1, 1001)).tolist())
