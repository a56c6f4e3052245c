"""How sure a mean is, and whether two models differ: bootstrap intervals and a paired sign-flip test.

Queries of one class succeed and fail together, so whole classes are drawn when `groups` names them
(docs/decisions/0042).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Doubles, Ints


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Paired:
    """Mean of b − a over the same queries, its interval, and the p-value of "no difference"."""

    difference: float
    low: float
    high: float
    p: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @property
    def better(self) -> bool:
        """b is better: the whole interval lies above 0."""
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0


def interval(values: Any, *, groups: Any = None, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """The mean of per-query values with its percentile bootstrap interval."""
    numbers = _numbers(values)
    sums, counts, weights = _units(numbers, groups)
    means = _draw_means(sums, counts, weights, draws, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers.mean()), float(low), float(high))


def share(right: float, count: int, z: float = 1.959964) -> Interval:
    """A share of few with Wilson's interval, which says something even where all are alike and nothing can be drawn."""
    if count < 1:
        raise LookalikeError("There are no queries to take an interval over.")
    p = right / count
    middle, half = p + z * z / (2 * count), z * float(np.sqrt(p * (1 - p) / count + z * z / (4 * count * count)))
    scale = 1 + z * z / count
    return Interval(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def paired(a: Any, b: Any, *, groups: Any = None, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Paired:
    """Is b better than a on the same queries? `difference` is mean(b) − mean(a).

    The p-value is two-sided: were the two alike, each unit's difference could as well have had the other sign.
    """
    before, after = _numbers(a), _numbers(b)
    if len(before) != len(after):
        raise LookalikeError(f"A paired test needs the same queries on both sides: {len(before)} and {len(after)}.")
    change = interval(after - before, groups=groups, level=level, draws=draws, seed=seed)
    sums, _, weights = _units(after - before, groups)
    observed = abs(float((sums * weights).sum()))
    flipped = np.abs(_draw_flips(sums, weights, draws, seed))
    # Sums of the same numbers in another order differ in their last bits; those count as equal.
    extreme = int((flipped >= observed - 1e-9 * max(1.0, observed)).sum())
    return Paired(change.value, change.low, change.high, (1 + extreme) / (1 + draws))


def _numbers(values: Any) -> Doubles:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(numbers):
        raise LookalikeError("There are no queries to take an interval over.")
    if not np.isfinite(numbers).all():
        raise LookalikeError("An interval needs finite values; some are NaN or infinite.")
    return numbers


def _units(numbers: Doubles, groups: Any) -> tuple[Doubles, Doubles, Ints]:
    """What is drawn: (sum, count) of each unit, equal units merged, and how many there are of each."""
    codes = None if groups is None else np.asarray(groups).reshape(-1)
    if codes is not None and len(codes) != len(numbers):
        raise LookalikeError(f"There are {len(numbers):,} values but {len(codes):,} group labels.")
    if codes is None or len(set(codes.tolist())) < 2:  # one group alone says nothing about other groups
        pairs = np.stack([numbers, np.ones_like(numbers)], axis=1)
    else:
        place = np.unique(codes, return_inverse=True)[1].reshape(-1)
        pairs = np.stack([np.bincount(place, numbers), np.bincount(place)], axis=1)
    # Many queries share few values (0 and 1): drawing counts of values is the same and far cheaper.
    kinds, weights = np.unique(pairs, axis=0, return_counts=True)
    return kinds[:, 0], kinds[:, 1], weights.astype(np.int64)


def _chunks(draws: int, kinds: int) -> list[int]:
    size = max(1, min(draws, 4_000_000 // max(1, kinds)))
    return [min(size, draws - start) for start in range(0, draws, size)]


def _draw_means(sums: Doubles, counts: Doubles, weights: Ints, draws: int, seed: int) -> Doubles:
    rng = numpy_rng(seed, "bootstrap")
    total = int(weights.sum())
    means = []
    for size in _chunks(draws, len(sums)):
        drawn = rng.multinomial(total, weights / total, size=size)
        means.append((drawn @ sums) / (drawn @ counts))
    return np.concatenate(means)


def _draw_flips(sums: Doubles, weights: Ints, draws: int, seed: int) -> Doubles:
    rng = numpy_rng(seed, "sign flips")
    moves = sums != 0
    sums, weights = sums[moves], weights[moves]
    out = []
    for size in _chunks(draws, len(sums)):
        ups = rng.binomial(weights, 0.5, size=(size, len(sums)))
        out.append((2 * ups - weights) @ sums)
    return np.concatenate(out)
