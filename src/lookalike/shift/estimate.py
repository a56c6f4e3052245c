"""From a folder's signals to the recall@1 to expect, with an interval: ridge on the logit, jackknife+ over classes.

What judges a folder was fitted on folders that share no class with it and were not seen in its look. Residuals are
taken in units of the spread to expect: that of folders with equal signals, and that of counting hits, which is large
near 0 and 1 on the logit scale and small in recall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.evaluation.bootstrap import Interval
from lookalike.shift.conformal import cv_plus

PLAIN = "plain"
PENALTY = 0.1
SPREAD = 0.5  # of folders with equal signals, on the logit scale
ENOUGH = 10  # folders that a fit is made from; one with fewer to judge it is not counted


@dataclass(frozen=True)
class Point:
    """A graded folder: what it says about itself, and how many of its queries found their class first."""

    signals: Mapping[str, float]
    recall: float
    queries: int
    look: str
    """`plain`, or the style its pictures were brought into."""
    classes: tuple[int, ...]
    """Its classes; empty where they were trained on."""

    @property
    def target(self) -> float:
        return float(logit((self.recall * self.queries + 0.5) / (self.queries + 1)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Point:
        return cls(**{**document, "classes": tuple(document["classes"])})


@dataclass(frozen=True)
class Ridge:
    """A weighted linear fit on standardised signals."""

    mean: np.ndarray
    scale: np.ndarray
    slopes: np.ndarray
    base: float

    @classmethod
    def fit(cls, x: np.ndarray, y: np.ndarray, weights: np.ndarray, penalty: float = PENALTY) -> Ridge:
        share = weights / weights.sum()
        mean = share @ x
        scale = np.sqrt(share @ np.square(x - mean))
        scale = np.where(scale > 1e-9, scale, np.inf)  # what does not vary says nothing
        rows, base = (x - mean) / scale, float(share @ y)
        inner = (rows * share[:, None]).T @ rows + penalty * np.eye(x.shape[1])
        return cls(mean, scale, np.linalg.solve(inner, (rows * share[:, None]).T @ (y - base)), base)

    def at(self, x: np.ndarray) -> float:
        return float((x - self.mean) / self.scale @ self.slopes + self.base)


class Estimator:
    """A fit for every folder from those that have nothing in common with it, and what it got wrong there.

    Without names it knows nothing of a folder: its interval is that of any folder.
    """

    def __init__(self, points: Sequence[Point], names: Sequence[str], *, penalty: float = PENALTY) -> None:
        self.names = list(names)
        x = np.array([[point.signals[name] for name in self.names] for point in points]).reshape(len(points), -1)
        y = np.array([point.target for point in points])
        queries = np.array([point.queries for point in points])
        weights = 1 / _spread(y, queries) ** 2
        self.whole = Ridge.fit(x, y, weights, penalty)
        seen = apart(points)
        kept = np.flatnonzero(seen.sum(axis=1) >= ENOUGH)
        self.fits = [Ridge.fit(x[own], y[own], weights[own], penalty) for own in seen[kept]]
        fitted = np.array([fit.at(row) for fit, row in zip(self.fits, x[kept], strict=True)])
        self.residuals = (y[kept] - fitted) / _spread(fitted, queries[kept])

    def at(self, signals: Mapping[str, float], queries: int, level: float = 0.9) -> Interval:
        """Recall@1 of a folder of so many pictures, and its interval."""
        row = np.array([signals[name] for name in self.names])
        centres = np.array([fit.at(row) for fit in self.fits])
        low, high = cv_plus(centres, self.residuals * _spread(centres, queries), level)
        value = float(np.clip(self.whole.at(row), low, high))
        return Interval(*(float(expit(v)) for v in (value, low, high)))


def apart(points: Sequence[Point]) -> np.ndarray:
    """For every folder (a row) which others may judge it: no class in common, another look unless both are plain.

    Among folders of classes that were trained on, it is the look that is new: those of the same look are left out.
    """
    most = max((max(point.classes, default=0) for point in points), default=0) + 1
    member = np.zeros((len(points), most), np.float32)
    for row, point in zip(member, points, strict=True):
        row[list(point.classes)] = 1.0
    look = np.array([point.look for point in points])
    new = np.array([bool(point.classes) for point in points])
    return np.asarray((member @ member.T == 0) & ((look[:, None] != look) | ((look == PLAIN) & new)))


def _spread(value: np.ndarray, queries: np.ndarray | int) -> np.ndarray:
    """How far a folder's logit lies from the truth of its kind: folders differ, and hits are counted."""
    p = expit(value)
    return np.asarray(np.sqrt(SPREAD**2 + 1 / (queries * np.maximum(p * (1 - p), 1e-4))))


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-np.asarray(p))


def expit(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))
