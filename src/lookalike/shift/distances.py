"""FID between sets of classes, along a sequence in which few of them change from step to step."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lookalike.core.device import threads
from lookalike.evaluation._ranking.parallel import crew
from lookalike.shift import fid
from lookalike.shift.fid import Floats, Moments
from lookalike.shift.ordering import Side

Measure = Literal["samples", "means"]
_AT_ONCE = 200  # classes
_WATCHED = 16  # columns
_DRIFT = 1e-10  # relative; what a hundred exchanges leave behind is a thousandth of it


class ClassDistances:
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

    def one(self, train: Side, test: Side) -> float:
        """The FID of one pair of sides, from nothing but their rows."""
        return fid.between(self.rows(train), self.rows(test))

    def along(self, steps: Sequence[tuple[Side, Side]]) -> list[float]:
        """The FID of every step. With more rows than dimensions on both sides, sums and scatters are carried on from
        step to step, so that a step costs one eigenvalue problem. The steps share out the cores."""
        if not steps:
            return []
        size = self.means.shape[1]
        with crew() as pool:
            if any(sum(len(self._rows[code]) for code in side) <= size for sides in steps for side in sides):
                return list(pool.map(lambda sides: self.one(*sides), steps))
            waiting: deque[Future[float]] = deque()
            out: list[float] = []
            known = list(pool.map(self._of, steps[0]))
            for before, sides in zip((steps[0], *steps), steps, strict=False):
                known = list(map(self._moved, known, before, sides))
                waiting.append(pool.submit(fid.distance, *known))
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
        return functools.reduce(operator.add, (fid.moments(rows, self._center) for rows in self._parts(side)))

    def _parts(self, side: Iterable[int]) -> Iterator[Floats]:
        """Rows of a few classes at a time: a side of a large data set is gigabytes."""
        classes = sorted(side)
        return (self.rows(classes[start : start + _AT_ONCE]) for start in range(0, len(classes), _AT_ONCE))
