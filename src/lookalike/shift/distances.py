"""FID between sets of classes, along a sequence in which few of them change from step to step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from lookalike.core.device import threads
from lookalike.shift import fid
from lookalike.shift.fid import Floats, Moments
from lookalike.shift.ordering import Side

Measure = Literal["samples", "means"]
_AT_ONCE = 200  # classes
_DRIFT = 1e-10  # relative; what a hundred exchanges leave behind is a thousandth of it


class ClassDistances:
    """Features by class; `measure` says whether a side's rows are its pictures or the means of its classes.

    The two are different quantities (a mean of 60 pictures varies less than a picture): never compare them.
    """

    def __init__(self, features: NDArray[np.floating], codes: NDArray[np.int64], measure: Measure = "samples") -> None:
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes))[:-1]
        by_class = np.split(np.asarray(features[order], np.float64), ends)
        self.measure = measure
        self.means: Floats = np.stack([own.mean(0) for own in by_class])
        self._rows = by_class if measure == "samples" else list(self.means[:, None])
        self._centre: Floats = np.concatenate(self._rows).mean(0)
        self.pictures = np.array([len(own) for own in by_class])

    def rows(self, side: Iterable[int]) -> Floats:
        return np.concatenate([self._rows[code] for code in side])

    def one(self, train: Side, test: Side) -> float:
        """The FID of one pair of sides, from nothing but their rows."""
        return fid.between(self.rows(train), self.rows(test))

    def along(self, steps: Sequence[tuple[Side, Side]]) -> list[float]:
        """The FID of every step. With more rows than dimensions on both sides, sums and scatters are carried on from
        step to step, so that a step costs one eigenvalue problem. The steps share out the cores."""
        if not steps:
            return []
        size = self.means.shape[1]
        with threadpool_limits(1), ThreadPoolExecutor(threads()) as pool:
            if any(sum(len(self._rows[code]) for code in side) <= size for sides in steps for side in sides):
                return list(pool.map(lambda sides: self.one(*sides), steps))
            waiting: deque[Future[float]] = deque()
            out: list[float] = []
            for last in self._carried(steps):
                waiting.append(pool.submit(fid.distance, *last))
                if len(waiting) > 2 * threads():  # so many matrices are held at a time
                    out.append(waiting.popleft().result())
            out += [future.result() for future in waiting]
            for found, side in zip(last, steps[-1], strict=True):
                fresh = self._of(side).scatter
                assert np.abs(found.scatter - fresh).max() <= _DRIFT * np.abs(fresh).max(), "the moments have drifted"
        return out

    def _carried(self, steps: Sequence[tuple[Side, Side]]) -> Iterator[tuple[Moments, Moments]]:
        known: list[tuple[set[int], Moments] | None] = [None, None]
        for sides in steps:
            for i, side in enumerate(sides):
                known[i] = set(side), self._moved(known[i], set(side))
            assert known[0] is not None and known[1] is not None
            yield known[0][1], known[1][1]

    def _moved(self, known: tuple[set[int], Moments] | None, wanted: set[int]) -> Moments:
        """The moments of some classes: from those of others by what came and went, where that is less work."""
        if known is None or len(known[0] ^ wanted) >= len(wanted):
            return self._of(wanted)
        found = known[1]
        if came := wanted - known[0]:
            found = found + self._of(came)
        if gone := known[0] - wanted:
            found = found - self._of(gone)
        return found

    def _of(self, side: Iterable[int]) -> Moments:
        """From nothing, a few classes at a time: a side of a large data set is gigabytes."""
        classes, found = sorted(side), None
        for start in range(0, len(classes), _AT_ONCE):
            part = fid.moments(self.rows(classes[start : start + _AT_ONCE]), self._centre)
            found = part if found is None else found + part
        assert found is not None
        return found
