"""Estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from scipy.special import expit

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import numpy_thread_pool
from lookalike.evaluation.bootstrap import Interval


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


def grouped_interval(
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


PLAIN = "plain"
PENALTY = 1e-3
SPREAD = 0.1  # of folders whose images tell the same, on the arcsine scale
ENOUGH = 10  # folders that a fit is made from; one with fewer to judge it is not counted
SAMPLE = 60  # images of a folder that a fit is made from
STEPS, MORE = 12, 4  # Newton's, from nothing and from the fit on all folders


@dataclass(frozen=True)
class CurvePoint:
    """A graded folder: how far it lies, and how many of its queries found their class first."""

    distance: float
    """A length: the square root of the excess FID."""
    recall: float
    queries: int
    look: str
    """`plain`, or the style its images were brought into."""
    classes: tuple[int, ...]
    """Its classes; empty where they were trained on."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CurvePoint:
        return cls(**{**document, "classes": tuple(document["classes"])})


@dataclass(frozen=True)
class GradedFolder:
    """A graded folder with what its images tell, and the truth about each."""

    point: CurvePoint
    evidence: np.ndarray
    found: np.ndarray
    """Whose nearest neighbor shows its class."""
    asked: np.ndarray
    """Who counts: classes of one image do not."""


@dataclass(frozen=True)
class Estimator:
    """A fit for every folder from those that have nothing in common with it, and what it got wrong there."""

    mean: np.ndarray
    scale: np.ndarray
    whole: np.ndarray
    """Slopes of the fit on all folders; the last is the constant."""
    fits: np.ndarray
    """Slopes of every other fit, a row each."""
    level: np.ndarray
    """What all folders say of one that nothing is known of, on the arcsine scale."""
    levels: np.ndarray
    """What the folders behind each fit say of it."""
    judge: np.ndarray
    """Which fit judged each folder."""
    residuals: np.ndarray
    blind: np.ndarray
    """Residuals of knowing nothing."""
    groups: np.ndarray
    """The look of each folder, as a number."""

    @classmethod
    def learn(cls, folders: Sequence[GradedFolder], *, seed: int = 0) -> Estimator:
        points = [folder.point for folder in folders]
        truth = np.array([angle((p.recall * p.queries + 0.375) / (p.queries + 0.75)) for p in points])
        unit = spread(np.array([point.queries for point in points]))
        x, y, owner, weights = _sample(folders, seed)
        share = weights / weights.sum()
        mean = share @ x
        scale = np.sqrt(share @ np.square(x - mean))
        scale = np.where(scale > 1e-9, scale, np.inf)  # what does not vary says nothing
        x = _standard(x, mean, scale)
        whole = logistic(x, y, weights, np.zeros(x.shape[1]), STEPS)
        seen = apart(points)
        kept = np.flatnonzero(seen.sum(axis=1) >= ENOUGH)
        masks, judge = np.unique(seen[kept], axis=0, return_inverse=True)

        def fit(mask: np.ndarray) -> np.ndarray:
            own = mask[owner]
            return logistic(x[own], y[own], weights[own], whole, MORE)

        with numpy_thread_pool() as pool:  # a fit a core
            fits = np.array(list(pool.map(fit, masks))).reshape(len(masks), x.shape[1])
        levels = np.array([truth[mask].mean() for mask in masks])
        said = [
            angle(_mean(_standard(folders[k].evidence, mean, scale), fits[j : j + 1])[0])
            for k, j in zip(kept.tolist(), judge.tolist(), strict=True)
        ]
        groups = np.unique([points[k].look for k in kept], return_inverse=True)[1]
        residuals, blind = truth[kept] - np.array(said), truth[kept] - levels[judge]
        level, unit = truth.mean(), unit[kept]
        return cls(mean, scale, whole, fits, level, levels, judge, residuals / unit, blind / unit, groups)

    def at(self, evidence: np.ndarray, queries: int, level: float = 0.9) -> Interval:
        """Recall@1 of a folder of so many images, and its interval."""
        rows = _standard(evidence, self.mean, self.scale)
        value = angle(_mean(rows, self.whole[None])[0])
        return self._interval(value, angle(_mean(rows, self.fits)), self.residuals, queries, level)

    def ignoring(self, queries: int, level: float = 0.9) -> Interval:
        """The same of a folder one knows nothing about."""
        return self._interval(float(self.level), self.levels, self.blind, queries, level)

    def _interval(self, value: float, said: np.ndarray, residuals: np.ndarray, queries: int, level: float) -> Interval:
        centers, off = said[self.judge], residuals * spread(queries)
        many = len(np.unique(self.groups)) > 1
        low, high = grouped_interval(centers, off, self.groups, level) if many else cv_plus(centers, off, level)
        return Interval(*(share(v) for v in (float(np.clip(value, low, high)), low, high)))

    # ---- on disk -----------------------------------------------------------------------------------------------

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}_{part.name}": getattr(self, part.name) for part in fields(self)}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], name: str) -> Estimator:
        return cls(*(arrays[f"{name}_{part.name}"] for part in fields(cls)))


def apart(points: Sequence[CurvePoint]) -> np.ndarray:
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


def logistic(x: np.ndarray, y: np.ndarray, weights: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    """Slopes of a weighted logistic regression by Newton's method; all but the last (the constant) are shrunk."""
    shrink = PENALTY * weights.sum() * np.append(np.ones(x.shape[1] - 1), 0.0)
    slopes = start.copy()
    for _ in range(steps):
        p = expit(x @ slopes)
        slope = x.T @ (weights * (y - p)) - shrink * slopes
        bend = (x * (weights * np.maximum(p * (1 - p), 1e-4))[:, None]).T @ x
        slopes += np.linalg.solve(bend + np.diag(shrink + 1e-9), slope)
    return slopes


def _sample(folders: Sequence[GradedFolder], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(evidence, hit, folder, weight) of some queries of every folder; all folders weigh the same."""
    rows: list[tuple[np.ndarray, ...]] = []
    for number, folder in enumerate(folders):
        asked = np.flatnonzero(folder.asked)
        some = numpy_rng(seed, "sample of a folder", number).permutation(asked)[:SAMPLE]
        ones = np.ones(len(some))
        rows.append((folder.evidence[some], folder.found[some], number * ones, ones / max(len(some), 1)))
    x, y, owner, weights = (np.concatenate(part) for part in zip(*rows, strict=True))
    return x.astype(np.float64), y.astype(np.float64), owner.astype(np.int64), weights


def _standard(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.hstack([(rows - mean) / scale, np.ones((len(rows), 1))])


def _mean(rows: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """The mean over images that each fit gives."""
    return np.asarray(expit(rows @ fits.T).mean(axis=0))


def spread(queries: Any) -> Any:
    """How far a folder lies from the truth of its kind: folders differ, and hits are counted."""
    return np.sqrt(SPREAD**2 + 0.25 / queries)


def angle(p: Any) -> Any:
    """The arcsine scale, on which counting hits spreads alike everywhere."""
    return np.arcsin(np.sqrt(p))


def share(value: float) -> float:
    return float(np.sin(np.clip(value, 0, np.pi / 2)) ** 2)
