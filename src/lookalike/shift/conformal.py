"""Intervals that hold without a model of the errors: jackknife+ by folds (CV+, Barber et al. 2021).

A fold is left out with everything that resembles it (here: the classes of its folders), so that a residual is what
the fit gets wrong on classes it has never seen. Folds that share classes cover 71–80 % where 90 % are promised.
"""

from __future__ import annotations

import math

import numpy as np


def cv_plus(centers: np.ndarray, residuals: np.ndarray, level: float = 0.9) -> tuple[float, float]:
    """The interval of a new value. `centers[i]` is what the fit without the i-th point's fold says of the new one,
    `residuals[i]` how far that fit was from the i-th point. Too few points for the level: no bounds."""
    count = len(residuals)
    rank = math.ceil(level * (count + 1))
    if rank > count:
        return -math.inf, math.inf
    size = np.abs(residuals)
    low = float(np.sort(centers - size)[count - rank])
    high = float(np.sort(centers + size)[rank - 1])
    return low, high


def over_groups(
    centers: np.ndarray, residuals: np.ndarray, groups: np.ndarray, level: float = 0.9
) -> tuple[float, float]:
    """The interval of a new value of a new group (Dunn et al. 2022: pooled distributions).

    Points of a group resemble each other (here: folders in one look), and err on one side together, so that many of
    them still tell of one group only: every group has the same weight, one more stands for the group that was never
    seen, and errors keep their sign. Each side leaves out half of what the level allows. Where there are too few groups
    to leave any out, the bounds are the outermost; too few points: no bounds.
    """
    wanted = (1 + level) / 2
    if math.ceil(level * (len(residuals) + 1)) > len(residuals):
        return -math.inf, math.inf
    said = centers + residuals
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(said, kind="stable")
    values, weights = said[order], (1 / counts[group] / (len(counts) + 1))[order]
    return -_upper(-values[::-1], weights[::-1], wanted), _upper(values, weights, wanted)


def _upper(values: np.ndarray, weights: np.ndarray, wanted: float) -> float:
    """The first of sorted values by which so much weight is reached, else the last."""
    return float(values[min(int(np.searchsorted(np.cumsum(weights), wanted - 1e-9)), len(values) - 1)])


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
