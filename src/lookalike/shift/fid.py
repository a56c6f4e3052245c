"""Fréchet distance (FID) between sets of features, and between sets of classes."""

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
from scipy.linalg import blas, lapack  # loaded here: who limits its threads must find it

from lookalike.core.device import threads
from lookalike.evaluation._ranking.parallel import crew

Floats = NDArray[np.float64]
Side = tuple[int, ...]


@dataclass(frozen=True)
class Moments:
    """Count, sum and scatter of some rows about a center; of two disjoint sets about the same one they add."""

    count: int
    total: Floats
    """Σ (x − center)."""
    scatter: Floats
    """Σ (x − center)(x − center)ᵀ."""
    center: Floats
    """Near the mean, against cancellation."""

    def exchanged(self, came: Floats, gone: Floats) -> Moments:
        """With some rows more and some of its own less: one product, and no second matrix beside the answer's."""
        rows = np.concatenate([came, gone]) - self.center
        signed = rows * np.repeat((1.0, -1.0), (len(came), len(gone)))[:, None]
        scatter = self.scatter.copy()
        # BLAS wants columns: turned round they are in that order without a copy, and the scatter is symmetric.
        blas.dgemm(1.0, signed.T, rows.T, trans_b=True, beta=1.0, c=scatter.T, overwrite_c=True)
        return Moments(self.count + len(came) - len(gone), self.total + signed.sum(0), scatter, self.center)

    def __add__(self, other: Moments) -> Moments:
        if self.center is not other.center:
            raise ValueError("moments about different centers cannot be added")
        return Moments(self.count + other.count, self.total + other.total, self.scatter + other.scatter, self.center)

    @property
    def mean(self) -> Floats:
        return self.center + self.total / self.count

    def covariance(self) -> Floats:
        spread: Floats = np.outer(self.total, self.total / self.count)
        np.subtract(self.scatter, spread, out=spread)
        spread /= self.count - 1
        return spread


def moments(features: NDArray[np.floating], center: Floats | None = None) -> Moments:
    """Moments of rows, about their own mean if no center is given."""
    rows = np.asarray(features, np.float64)
    if center is None:
        center = rows.mean(0)
    rows = rows - center
    return Moments(len(rows), rows.sum(0), rows.T @ rows, center)


def moments_distance(a: Moments, b: Moments) -> float:
    """FID from moments, whatever their centers."""
    _enough(a.count, b.count)
    first, second = a.covariance(), b.covariance()
    traces = float(np.trace(first) + np.trace(second))
    if min(a.count, b.count) > len(first) and (lower := _cholesky(first)) is not None:
        root = _root_of_full(lower, second)
    else:
        root = _nuclear(_factor(first, a.count - 1) @ _factor(second, b.count - 1).T)
    return _assemble(a.mean - b.mean, traces, root)


def frechet_distance(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """FID of two sets of rows, by the cheapest exact way for their sizes."""
    _enough(len(x), len(y))
    if min(len(x), len(y)) > np.shape(x)[1]:
        return moments_distance(moments(x), moments(y))
    (first, m1), (second, m2) = _centered(x), _centered(y)
    traces = float(np.vdot(first, first) + np.vdot(second, second))
    if max(len(first), len(second)) <= first.shape[1]:
        root = _nuclear(first @ second.T)
    else:  # the larger side by its triangular factor, which is no higher than wide
        small, large = sorted((first, second), key=len)
        triangle: Floats = np.linalg.qr(large).R
        root = _nuclear(small @ triangle.T)
    return _assemble(m1 - m2, traces, root)


def _assemble(gap: Floats, traces: float, root: float) -> float:
    """The sum of the parts; what rounding leaves below zero is zero."""
    return max(float(gap @ gap) + traces - 2 * root, 0.0)


def _enough(*counts: int) -> None:
    if min(counts) < 2:
        raise ValueError("a covariance needs at least 2 rows a side")


def _centered(x: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Rows A with AᵀA = S, and their mean."""
    rows = np.asarray(x, np.float64)
    mean = rows.mean(0)
    return (rows - mean) / np.sqrt(len(rows) - 1), mean


def _nuclear(product: Floats) -> float:
    return float(np.linalg.svd(product, compute_uv=False).sum())


def _factor(covariance: Floats, rank: int) -> Floats:
    """F with FᵀF = S and as many rows as S has rank: a zero eigenvalue comes back as noise, whose root is not small."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values[-1], 0.0) * len(values) * np.finfo(np.float64).eps
    kept[: max(len(values) - rank, 0)] = False
    factor: Floats = (vectors[:, kept] * np.sqrt(values[kept])).T
    return factor


def _cholesky(covariance: Floats) -> Floats | None:
    """L with LLᵀ = S; None where S is singular, though there were rows enough: dead or repeated dimensions."""
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    pivots = np.diag(lower)
    singular = pivots.min() ** 2 <= pivots.max() ** 2 * len(lower) * np.finfo(np.float64).eps
    return None if singular else np.asarray(lower, dtype=np.float64)


def _root_of_full(lower: Floats, second: Floats) -> float:
    """tr (S₁S₂)^½ as Σ√λ of LᵀS₂L with S₁ = LLᵀ: half the cost of singular values, a tenth of that of a matrix root.

    `second` is used up.
    """
    # LAPACK wants columns: turned round, both are in that order without a copy, and S₂ is symmetric.
    product, _ = lapack.dsygst(second.T, lower.T, itype=2, lower=0, overwrite_a=1)  # its upper half is filled
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(product.T, UPLO="L"), 0)).sum())


Measure = Literal["samples", "means"]
_AT_ONCE = 200  # classes
_WATCHED = 16  # columns
_DRIFT = 1e-10  # relative; what a hundred exchanges leave behind is a thousandth of it


class ClassFID:
    """Features by class; `measure` says whether a side's rows are its images or the means of its classes.

    The two are different quantities (a mean of 60 images varies less than an image): never compare them.
    """

    def __init__(self, features: NDArray[np.floating], codes: NDArray[np.int64], measure: Measure = "samples") -> None:
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes))[:-1]
        by_class = np.split(np.asarray(features[order], np.float64), ends)
        self.measure = measure
        self.means: Floats = np.stack([own.mean(0) for own in by_class])
        self._rows = by_class if measure == "samples" else list(self.means[:, None])
        self._center: Floats = np.concatenate(self._rows).mean(0)
        self._none: Floats = self.means[:0]
        self.images = np.array([len(own) for own in by_class])

    def rows(self, side: Iterable[int]) -> Floats:
        return np.concatenate([self._none, *(self._rows[code] for code in side)])

    def between(self, train: Side, test: Side) -> float:
        """The FID of one pair of sides, from nothing but their rows."""
        return frechet_distance(self.rows(train), self.rows(test))

    def along(self, steps: Sequence[tuple[Side, Side]]) -> list[float]:
        """The FID of every step. With more rows than dimensions on both sides, sums and scatters are carried on from
        step to step, so that a step costs one eigenvalue problem. The steps share out the cores."""
        if not steps:
            return []
        size = self.means.shape[1]
        with crew() as pool:
            if any(sum(len(self._rows[code]) for code in side) <= size for sides in steps for side in sides):
                return list(pool.map(lambda sides: self.between(*sides), steps))
            waiting: deque[Future[float]] = deque()
            out: list[float] = []
            known = list(pool.map(self._of, steps[0]))
            for before, sides in zip((steps[0], *steps), steps, strict=False):
                known = list(map(self._moved, known, before, sides))
                waiting.append(pool.submit(moments_distance, *known))
                if len(waiting) > 2 * threads():  # so many matrices are held at a time
                    out.append(waiting.popleft().result())
            out += [future.result() for future in waiting]
        for found, side in zip(known, steps[-1], strict=True):
            self._check(found, side)
        return out

    def _moved(self, known: Moments, before: Side, wanted: Side) -> Moments:
        """The moments of some classes, from those of others by what came and went where that is less work."""
        came, gone = set(wanted) - set(before), set(before) - set(wanted)
        if len(came) + len(gone) >= len(wanted):
            return self._of(wanted)
        return known.exchanged(self.rows(sorted(came)), self.rows(sorted(gone))) if came or gone else known

    def _check(self, found: Moments, side: Side) -> None:
        """That nothing was lost on the way, by a few columns of the scatter from nothing."""
        some = np.linspace(0, self.means.shape[1] - 1, _WATCHED, dtype=int)
        fresh = sum(rows[:, some].T @ rows for rows in (part - self._center for part in self._parts(side)))
        off = np.abs(found.scatter[some] - fresh).max()
        assert off <= _DRIFT * np.abs(fresh).max(), "the moments have drifted"

    def _of(self, side: Iterable[int]) -> Moments:
        return functools.reduce(operator.add, (moments(rows, self._center) for rows in self._parts(side)))

    def _parts(self, side: Iterable[int]) -> Iterator[Floats]:
        """Rows of a few classes at a time: a side of a large data set is gigabytes."""
        classes = sorted(side)
        return (self.rows(classes[start : start + _AT_ONCE]) for start in range(0, len(classes), _AT_ONCE))
