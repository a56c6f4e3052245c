"""Confidence intervals and paired tests of per-query values, by resampling whole classes.

Queries of one class succeed and fail together, so classes are resampled where ``groups`` gives them
(docs/design/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Doubles, Ints


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Args:
        value: The mean.
        low: Lower bound.
        high: Upper bound.

    Example:
        >>> from lookalike.evaluation import Interval
        >>> Interval(0.61, 0.58, 0.64).to_json()
        {'value': 0.61, 'low': 0.58, 'high': 0.64}
    """

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class PairedDifference:
    """Mean of b − a over the same queries, its confidence interval, and the p-value of "no difference".

    Args:
        difference: The mean.
        low: Lower bound.
        high: Upper bound.
        p: The p-value.

    Example:
        >>> from lookalike.evaluation import PairedDifference
        >>> PairedDifference(0.03, 0.01, 0.05, p=0.002).better
        True
    """

    difference: float
    low: float
    high: float
    p: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @property
    def better(self) -> bool:
        """Whether b is better: the whole interval is above 0."""
        return self.low > 0

    @property
    def worse(self) -> bool:
        """Whether b is worse: the whole interval is below 0."""
        return self.high < 0

    @property
    def tone(self) -> Literal["better", "same", "worse"]:
        """How b compares with a, in a word."""
        return "better" if self.better else "worse" if self.worse else "same"


def bootstrap_interval(
    values: Any, *, groups: Any = None, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Compute the mean of per-query values with its percentile bootstrap interval.

    Args:
        values: One value a query.
        groups: One class a query; whole classes are resampled. Without it, single queries are.
        level: Confidence level.
        draws: Number of bootstrap samples.
        seed: Seed of the samples.

    Returns:
        The mean and its interval.

    Example:
        >>> from lookalike.evaluation import bootstrap_interval
        >>> result = bootstrap_interval([1, 0, 1, 1] * 25)
        >>> result.value, result.low < 0.75 < result.high
        (0.75, True)
    """
    numbers = _as_values(values)
    sums, counts, weights = _units(numbers, groups)
    rng, total = numpy_rng(seed, "bootstrap"), int(weights.sum())

    def resampled_means(size: int) -> Doubles:
        sample = rng.multinomial(total, weights / total, size=size)
        return np.asarray((sample @ sums) / (sample @ counts))

    means = _in_chunks(resampled_means, draws, len(sums))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers.mean()), float(low), float(high))


def wilson_interval(successes: float, count: int, z: float = 1.959964) -> Interval:
    """Compute a proportion with Wilson's score interval.

    Unlike the bootstrap it has a width even if all or none of the trials succeeded.
    """
    if count < 1:
        raise LookalikeError("There are no queries to compute an interval for.")
    p = successes / count
    center, half = p + z * z / (2 * count), z * float(np.sqrt(p * (1 - p) / count + z * z / (4 * count * count)))
    scale = 1 + z * z / count
    return Interval(p, max(0.0, (center - half) / scale), min(1.0, (center + half) / scale))


def paired_test(
    a: Any, b: Any, *, groups: Any = None, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> PairedDifference:
    """Test whether b is better than a on the same queries.

    The p-value is two-sided and comes from a sign-flip test: if the two were alike, the difference of each unit
    could as well have had the other sign.

    Args:
        a: One value a query.
        b: The other model's values of the same queries.
        groups: One class a query; whole classes are resampled and flipped. Without it, single queries are.
        level: Confidence level.
        draws: Number of bootstrap samples and of sign flips.
        seed: Seed of both.

    Returns:
        The mean of b − a, its interval and p-value.

    Example:
        >>> from lookalike.evaluation import paired_test
        >>> result = paired_test([0, 0, 1, 0] * 10, [1, 1, 1, 0] * 10)
        >>> result.difference, result.better
        (0.5, True)
    """
    before, after = _as_values(a), _as_values(b)
    if len(before) != len(after):
        raise LookalikeError(f"A paired test needs the same queries on both sides: {len(before)} and {len(after)}.")
    change = bootstrap_interval(after - before, groups=groups, level=level, draws=draws, seed=seed)
    sums, _, weights = _units(after - before, groups)
    observed = abs(float((sums * weights).sum()))
    rng = numpy_rng(seed, "sign flips")
    sums, weights = sums[sums != 0], weights[sums != 0]

    def flipped_sums(size: int) -> Doubles:
        return np.asarray((2 * rng.binomial(weights, 0.5, size=(size, len(sums))) - weights) @ sums)

    flipped = np.abs(_in_chunks(flipped_sums, draws, len(sums)))
    # Sums of the same numbers in another order differ in their last bits; those count as equal.
    extreme = int((flipped >= observed - 1e-9 * max(1.0, observed)).sum())
    return PairedDifference(change.value, change.low, change.high, (1 + extreme) / (1 + draws))


def _as_values(values: Any) -> Doubles:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(numbers):
        raise LookalikeError("There are no queries to compute an interval for.")
    if not np.isfinite(numbers).all():
        raise LookalikeError("An interval needs finite values; some are NaN or infinite.")
    return numbers


def _units(numbers: Doubles, groups: Any) -> tuple[Doubles, Doubles, Ints]:
    """What is resampled: (sum, count) of each unit, equal units merged, and how many there are of each."""
    codes = None if groups is None else np.asarray(groups).reshape(-1)
    if codes is not None and len(codes) != len(numbers):
        raise LookalikeError(f"There are {len(numbers):,} values but {len(codes):,} group labels.")
    if codes is None or len(set(codes.tolist())) < 2:  # one group alone says nothing about other groups
        pairs = np.stack([numbers, np.ones_like(numbers)], axis=1)
    else:
        unit = np.unique(codes, return_inverse=True)[1].reshape(-1)
        pairs = np.stack([np.bincount(unit, numbers), np.bincount(unit)], axis=1)
    # Many queries share few values (0 and 1): drawing counts of values is the same and far cheaper.
    kinds, weights = np.unique(pairs, axis=0, return_counts=True)
    return kinds[:, 0], kinds[:, 1], weights.astype(np.int64)


def _in_chunks(draw: Callable[[int], Doubles], draws: int, kinds: int) -> Doubles:
    """Call ``draw`` with numbers of draws that sum to ``draws``, in bounded memory."""
    size = max(1, min(draws, 4_000_000 // max(1, kinds)))
    return np.concatenate([draw(min(size, draws - start)) for start in range(0, draws, size)])
