"""Fréchet distance (FID) between two sets of features, and between two sets of classes.

FID = |m₁−m₂|² + tr S₁ + tr S₂ − 2 tr (S₁S₂)^½ with covariances of divisor n−1. No matrix root is computed: with
S = FᵀF the last trace is the sum of the singular values of F₁F₂ᵀ, also with fewer samples than dimensions. The plain
form is ``scipy.linalg.sqrtm`` in ``tests/naive/shift.py``, which the tests compare with.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack  # at module level, so that whoever limits BLAS threads finds it loaded

from lookalike.core.device import threads
from lookalike.core.progress import Progress
from lookalike.evaluation._ranking.screening import numpy_thread_pool

Floats = NDArray[np.float64]
Side = tuple[int, ...]
Measure = Literal["samples", "means"]
_CLASSES_PER_BLOCK = 200
_CHECKED_COLUMNS = 16
_DRIFT = 1e-10  # relative; a hundred updates leave about a thousandth of it


@dataclass(frozen=True)
class Moments:
    """Count, sum and scatter of some rows about a center; moments about the same center add.

    Args:
        count: Number of rows.
        total: Σ (x − center), shape ``(d,)``.
        scatter: Σ (x − center)(x − center)ᵀ, shape ``(d, d)``.
        center: A point near the mean, against cancellation, shape ``(d,)``.
    """

    count: int
    total: Floats
    scatter: Floats
    center: Floats

    def exchanged(self, added: Floats, removed: Floats) -> Moments:
        """Moments after adding some rows and removing others, by one matrix product."""
        rows = np.concatenate([added, removed]) - self.center
        signed = rows * np.repeat((1.0, -1.0), (len(added), len(removed)))[:, None]
        scatter = self.scatter.copy()
        # BLAS is column-major: the transposed views need no copy, and the scatter is symmetric.
        blas.dgemm(1.0, signed.T, rows.T, trans_b=True, beta=1.0, c=scatter.T, overwrite_c=True)
        return Moments(self.count + len(added) - len(removed), self.total + signed.sum(0), scatter, self.center)

    def __add__(self, other: Moments) -> Moments:
        if self.center is not other.center:
            raise ValueError("moments about different centers cannot be added")
        return Moments(self.count + other.count, self.total + other.total, self.scatter + other.scatter, self.center)

    @property
    def mean(self) -> Floats:
        return self.center + self.total / self.count

    def covariance(self) -> Floats:
        covariance: Floats = np.outer(self.total, self.total / self.count)
        np.subtract(self.scatter, covariance, out=covariance)
        covariance /= self.count - 1
        return covariance


def moments(features: NDArray[np.floating], center: Floats | None = None) -> Moments:
    """Moments of the rows of a matrix."""
    rows = np.asarray(features, np.float64)
    if center is None:
        center = rows.mean(0)
    rows = rows - center
    return Moments(len(rows), rows.sum(0), rows.T @ rows, center)


def moments_distance(a: Moments, b: Moments) -> float:
    """FID from the moments of both sides, whatever their centers."""
    _check_counts(a.count, b.count)
    first, second = a.covariance(), b.covariance()
    traces = float(np.trace(first) + np.trace(second))
    if min(a.count, b.count) > len(first) and (lower := _cholesky(first)) is not None:
        root = _root_trace(lower, second)
    else:
        root = _nuclear_norm(_factor(first, a.count - 1) @ _factor(second, b.count - 1).T)
    return _sum_terms(a.mean - b.mean, traces, root)


def frechet_distance(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """FID of two sets of features, by the cheapest exact way for their sizes.

    Args:
        x: Features of shape ``(n, d)``, n ≥ 2.
        y: Features of shape ``(m, d)``, m ≥ 2.

    Returns:
        The distance, at least 0.

    Raises:
        ValueError: If a side has fewer than 2 rows.

    References:
        Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", eq. 6.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> round(frechet_distance(x, x + 0.5), 6)  # only the means differ: 8 × 0.5²
        2.0
    """
    _check_counts(len(x), len(y))
    if min(len(x), len(y)) > np.shape(x)[1]:
        return moments_distance(moments(x), moments(y))
    (first, m1), (second, m2) = _centered(x), _centered(y)
    traces = float(np.vdot(first, first) + np.vdot(second, second))
    if max(len(first), len(second)) <= first.shape[1]:
        root = _nuclear_norm(first @ second.T)
    else:  # replace the larger side by its triangular factor, which has at most d rows
        small, large = sorted((first, second), key=len)
        triangle: Floats = np.linalg.qr(large).R
        root = _nuclear_norm(small @ triangle.T)
    return _sum_terms(m1 - m2, traces, root)


def _sum_terms(gap: Floats, traces: float, root: float) -> float:
    """Sum of the three terms; rounding below zero is clipped."""
    return max(float(gap @ gap) + traces - 2 * root, 0.0)


def _check_counts(*counts: int) -> None:
    if min(counts) < 2:
        raise ValueError("a covariance needs at least 2 rows per side")


def _centered(x: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Rows A with AᵀA = S, and their mean."""
    rows = np.asarray(x, np.float64)
    mean = rows.mean(0)
    return (rows - mean) / np.sqrt(len(rows) - 1), mean


def _nuclear_norm(product: Floats) -> float:
    return float(np.linalg.svd(product, compute_uv=False).sum())


def _factor(covariance: Floats, rank: int) -> Floats:
    """F with FᵀF = S and as many rows as S has rank; zero eigenvalues come back as noise whose root is not small."""
    values, vectors = np.linalg.eigh(covariance)
    nonzero = values > max(values[-1], 0.0) * len(values) * np.finfo(np.float64).eps
    nonzero[: max(len(values) - rank, 0)] = False
    factor: Floats = (vectors[:, nonzero] * np.sqrt(values[nonzero])).T
    return factor


def _cholesky(covariance: Floats) -> Floats | None:
    """L with LLᵀ = S, or None where S is singular in spite of enough rows (dead or repeated dimensions)."""
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    pivots = np.diag(lower)
    singular = pivots.min() ** 2 <= pivots.max() ** 2 * len(lower) * np.finfo(np.float64).eps
    return None if singular else np.asarray(lower, dtype=np.float64)


def _root_trace(lower: Floats, second: Floats) -> float:
    """Trace of (S₁S₂)^½ as Σ√λ of LᵀS₂L with S₁ = LLᵀ: half the cost of singular values. Overwrites ``second``."""
    # LAPACK is column-major: the transposed views need no copy, and S₂ is symmetric.
    product, _ = lapack.dsygst(second.T, lower.T, itype=2, lower=0, overwrite_a=1)  # fills the upper half
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(product.T, UPLO="L"), 0)).sum())


class ClassFID:
    """FID between sets of classes, along a sequence in which few classes change from step to step.

    FID of samples and FID of class means are different quantities (a mean of 60 images varies less than an image)
    and must never be compared.

    Args:
        features: Features of shape ``(n, d)``.
        codes: Class of each row, ``0 … classes − 1``.
        measure: ``"samples"``: the rows of a side are its images; ``"means"``: the means of its classes.

    Example:
        >>> features, codes = np.random.default_rng(0).normal(size=(60, 4)), np.repeat(np.arange(6), 10)
        >>> fid = ClassFID(features, codes)
        >>> one, along = fid.between((0, 1, 2), (3, 4, 5)), fid.along([((0, 1, 2), (3, 4, 5))])
        >>> bool(np.isclose(one, along[0]))
        True
    """

    def __init__(self, features: NDArray[np.floating], codes: NDArray[np.int64], measure: Measure = "samples") -> None:
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes))[:-1]
        by_class = np.split(np.asarray(features[order], np.float64), ends)
        self.measure = measure
        self.means: Floats = np.stack([rows.mean(0) for rows in by_class])
        self.images = np.array([len(rows) for rows in by_class])
        self._by_class = by_class if measure == "samples" else list(self.means[:, None])
        self._center: Floats = np.concatenate(self._by_class).mean(0)

    def rows(self, side: Iterable[int]) -> Floats:
        """The rows of some classes."""
        return np.concatenate([self.means[:0], *(self._by_class[code] for code in side)])

    def between(self, train: Side, test: Side) -> float:
        """FID between two sets of classes, computed from their rows."""
        return frechet_distance(self.rows(train), self.rows(test))

    def along(
        self, steps: Sequence[tuple[Side, Side]], what: str = "Measuring FID", *, progress: bool = False
    ) -> list[float]:
        """FID of every step.

        With more rows than dimensions on both sides, the moments are updated from step to step, so that a step costs
        one eigenvalue problem. The steps are computed in parallel.
        """
        if not steps:
            return []
        size = self.means.shape[1]
        with numpy_thread_pool() as pool, Progress(what, len(steps), shown=progress) as bar:
            out: list[float] = []

            def add(value: float) -> None:
                out.append(value)
                bar.advance()

            if any(sum(len(self._by_class[code]) for code in side) <= size for sides in steps for side in sides):
                for value in pool.map(lambda sides: self.between(*sides), steps):
                    add(value)
                return out
            waiting: deque[Future[float]] = deque()
            current = list(pool.map(self._moments, steps[0]))
            for before, sides in zip((steps[0], *steps), steps, strict=False):
                current = list(map(self._updated, current, before, sides))
                waiting.append(pool.submit(moments_distance, *current))
                if len(waiting) > 2 * threads():  # bounds the number of matrices in memory
                    add(waiting.popleft().result())
            for future in waiting:
                add(future.result())
        for moments_of_side, side in zip(current, steps[-1], strict=True):
            self._check_drift(moments_of_side, side)
        return out

    def _updated(self, current: Moments, before: Side, after: Side) -> Moments:
        """Moments of ``after``, from those of ``before`` where that is less work."""
        added, removed = set(after) - set(before), set(before) - set(after)
        if len(added) + len(removed) >= len(after):
            return self._moments(after)
        if not added and not removed:
            return current
        return current.exchanged(self.rows(sorted(added)), self.rows(sorted(removed)))

    def _check_drift(self, current: Moments, side: Side) -> None:
        """Compare a few columns of the updated scatter with freshly computed ones."""
        columns = np.linspace(0, self.means.shape[1] - 1, _CHECKED_COLUMNS, dtype=int)
        fresh = sum(rows[:, columns].T @ rows for rows in (block - self._center for block in self._blocks(side)))
        error = np.abs(current.scatter[columns] - fresh).max()
        assert error <= _DRIFT * np.abs(fresh).max(), "the updated moments have drifted"

    def _moments(self, side: Iterable[int]) -> Moments:
        return functools.reduce(operator.add, (moments(rows, self._center) for rows in self._blocks(side)))

    def _blocks(self, side: Iterable[int]) -> Iterator[Floats]:
        """Rows of a few classes at a time: a side of a large data set is gigabytes."""
        classes = sorted(side)
        for start in range(0, len(classes), _CLASSES_PER_BLOCK):
            yield self.rows(classes[start : start + _CLASSES_PER_BLOCK])
