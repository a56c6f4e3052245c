"""Intervals that hold without a model of the errors: jackknife+ by folds (CV+, Barber et al. 2021).

A fold is left out with everything that resembles it (here: the classes of its folders), so that a residual is what
the fit gets wrong on classes it has never seen. Folds that share classes cover 71–80 % where 90 % are promised.
"""

from __future__ import annotations

import math

import numpy as np


def cv_plus(centres: np.ndarray, residuals: np.ndarray, level: float = 0.9) -> tuple[float, float]:
    """The interval of a new value. `centres[i]` is what the fit without the i-th point's fold says of the new one,
    `residuals[i]` how far that fit was from the i-th point. Too few points for the level: no bounds."""
    count = len(residuals)
    rank = math.ceil(level * (count + 1))
    if rank > count:
        return -math.inf, math.inf
    size = np.abs(residuals)
    low = float(np.sort(centres - size)[count - rank])
    high = float(np.sort(centres + size)[rank - 1])
    return low, high


def grouped(centres: np.ndarray, residuals: np.ndarray, groups: np.ndarray, level: float = 0.9) -> tuple[float, float]:
    """The interval of a new value of a new group (here: a look that was never seen).

    Values of a group resemble each other, so that many of them still tell of one group only. Each group gives its own
    interval; the result is as wide as all but the widest of them, as many as the level allows to leave out: none of
    fewer than 19 groups at 90 %.
    """
    both = [(groups == name) for name in np.unique(groups)]
    found = [cv_plus(centres[own], residuals[own], level) for own in both]
    known = [pair for pair in found if math.isfinite(pair[0])] or [(-math.inf, math.inf)]
    left_out = max(0, len(known) - math.ceil(level * (len(known) + 1)))
    return sorted(low for low, _ in known)[left_out], sorted((high for _, high in known), reverse=True)[left_out]


def halvings(names: np.ndarray, count: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """`count` random halvings of the classes."""
    out = []
    for _ in range(count):
        order = rng.permutation(names)
        middle = len(order) // 2
        out.append((np.sort(order[:middle]), np.sort(order[middle:])))
    return out


def wilson(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The binomial interval of a share (Wilson), for how often something was covered."""
    from scipy import stats

    if not count:
        return 0.0, 1.0
    z = float(stats.norm.ppf((1 + level) / 2))
    p = hits / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
