"""From neighborhood features of a folder's images to the recall@1 to expect, with a conformal interval.

A logistic regression gives the probability that an image's nearest neighbor has its class; the mean over the folder is
its recall@1. Every folder is judged by a fit on folders that share no class with it and have another style. The
residuals of those fits, on the arcsine scale and in units of the expected spread, give the interval (CV+ by folds,
Barber et al. 2021), in which every style has the same weight, since new images may come in a style never seen.
"""

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
    """Jackknife+ interval of a new value by folds (CV+).

    Args:
        centers: ``centers[i]`` is the prediction of the new value by the fit without the i-th point's fold.
        residuals: Error of that fit on the i-th point.
        level: Coverage to aim at.

    Returns:
        Lower and upper bound; infinite with too few points for the level.

    References:
        Barber et al., "Predictive Inference with the Jackknife+", section 3.
    """
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
    """Interval of a new value that belongs to a new group (pooled distributions).

    Points of a group resemble each other and err in the same direction, so every group has the same weight,
    one more stands for the group never seen, and errors keep their sign. Each side leaves out half of what the level
    allows.

    Args:
        centers: See :func:`cv_plus`.
        residuals: Signed residuals.
        groups: Group of each point.
        level: Coverage to aim at.

    Returns:
        Lower and upper bound: the outermost with too few groups, infinite with too few points.

    References:
        Dunn et al., "Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", 2022.
    """
    quantile = (1 + level) / 2
    if math.ceil(level * (len(residuals) + 1)) > len(residuals):
        return -math.inf, math.inf
    predictions = centers + residuals
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(predictions, kind="stable")
    values, weights = predictions[order], (1 / counts[group] / (len(counts) + 1))[order]
    return -_upper(-values[::-1], weights[::-1], quantile), _upper(values, weights, quantile)


def _upper(values: np.ndarray, weights: np.ndarray, quantile: float) -> float:
    """The first sorted value at which the cumulated weight reaches the quantile, else the last."""
    return float(values[min(int(np.searchsorted(np.cumsum(weights), quantile - 1e-9)), len(values) - 1)])


PLAIN = "plain"
PENALTY = 1e-3
FOLDER_SPREAD = 0.1  # of folders whose images tell the same, on the arcsine scale
MIN_FOLDERS = 10  # folders that a fit is made from; one with fewer to fold it is not counted
SAMPLE = 60  # images of a folder that a fit is made from
STEPS, REFIT_STEPS = 12, 4  # Newton's, from nothing and from the fit on all folders


@dataclass(frozen=True)
class CurvePoint:
    """A graded folder on the model's curve.

    Args:
        distance: Distance from training, the square root of the excess FID.
        recall: Its recall@1.
        queries: Number of queries.
        style: ``plain``, or the style its images were rendered in.
        classes: Its classes; empty where the model was trained on them.
    """

    distance: float
    recall: float
    queries: int
    style: str
    classes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CurvePoint:
        return cls(**{**document, "classes": tuple(document["classes"])})


@dataclass(frozen=True)
class GradedFolder:
    """A graded folder with the features of its images and the truth about each.

    Args:
        point: The folder on the curve.
        features: Neighborhood features, one row per image.
        hits: Whether the nearest neighbor has the image's class.
        is_query: Whether the image counts; classes of one image do not.
    """

    point: CurvePoint
    features: np.ndarray
    hits: np.ndarray
    is_query: np.ndarray


@dataclass(frozen=True)
class Estimator:
    """Predicts recall@1 of a folder, with one fit per group of folders left out.

    Args:
        mean: Mean of the features.
        scale: Standard deviation of the features; infinite where constant.
        coefficients: Coefficients of the fit on all folders; the last is the constant.
        fold_coefficients: Coefficients of every fit with folders left out, one row each.
        level: Mean recall of all folders, on the arcsine scale.
        levels: Mean recall of the folders behind each fit.
        fold: Which fit judged each folder.
        residuals: Errors of those fits, in units of the expected spread.
        baseline_residuals: Errors of predicting the mean recall.
        groups: Style of each folder, as a number.
    """

    mean: np.ndarray
    scale: np.ndarray
    coefficients: np.ndarray
    fold_coefficients: np.ndarray
    level: np.ndarray
    levels: np.ndarray
    fold: np.ndarray
    residuals: np.ndarray
    baseline_residuals: np.ndarray
    groups: np.ndarray

    @classmethod
    def fit(cls, folders: Sequence[GradedFolder], *, seed: int = 0) -> Estimator:
        """Fit on graded folders."""
        points = [folder.point for folder in folders]
        truth = np.array([arcsine((p.recall * p.queries + 0.375) / (p.queries + 0.75)) for p in points])
        unit = standard_error(np.array([point.queries for point in points]))
        x, y, owner, weights = _sample(folders, seed)
        fraction = weights / weights.sum()
        mean = fraction @ x
        scale = np.sqrt(fraction @ np.square(x - mean))
        scale = np.where(scale > 1e-9, scale, np.inf)  # what does not vary says nothing
        x = _standard(x, mean, scale)
        coefficients = logistic(x, y, weights, np.zeros(x.shape[1]), STEPS)
        independent_of = independent(points)
        judged = np.flatnonzero(independent_of.sum(axis=1) >= MIN_FOLDERS)
        masks, fold = np.unique(independent_of[judged], axis=0, return_inverse=True)

        def fit(mask: np.ndarray) -> np.ndarray:
            own = mask[owner]
            return logistic(x[own], y[own], weights[own], coefficients, REFIT_STEPS)

        with numpy_thread_pool() as pool:  # a fit a core
            fold_coefficients = np.array(list(pool.map(fit, masks))).reshape(len(masks), x.shape[1])
        levels = np.array([truth[mask].mean() for mask in masks])
        predictions = [
            arcsine(_mean(_standard(folders[k].features, mean, scale), fold_coefficients[j : j + 1])[0])
            for k, j in zip(judged.tolist(), fold.tolist(), strict=True)
        ]
        groups = np.unique([points[k].style for k in judged], return_inverse=True)[1]
        residuals, baseline_residuals = truth[judged] - np.array(predictions), truth[judged] - levels[fold]
        level, unit = truth.mean(), unit[judged]
        return cls(
            mean,
            scale,
            coefficients,
            fold_coefficients,
            level,
            levels,
            fold,
            residuals / unit,
            baseline_residuals / unit,
            groups,
        )

    def predict(self, features: np.ndarray, queries: int, level: float = 0.9) -> Interval:
        """Recall@1 of a folder of this many queries, with its interval."""
        rows = _standard(features, self.mean, self.scale)
        value = arcsine(_mean(rows, self.coefficients[None])[0])
        return self._interval(value, arcsine(_mean(rows, self.fold_coefficients)), self.residuals, queries, level)

    def predict_baseline(self, queries: int, level: float = 0.9) -> Interval:
        """The same for a folder about which nothing is known."""
        return self._interval(float(self.level), self.levels, self.baseline_residuals, queries, level)

    def _interval(
        self, value: float, predictions: np.ndarray, residuals: np.ndarray, queries: int, level: float
    ) -> Interval:
        centers, off = predictions[self.fold], residuals * standard_error(queries)
        many = len(np.unique(self.groups)) > 1
        low, high = grouped_interval(centers, off, self.groups, level) if many else cv_plus(centers, off, level)
        return Interval(*(from_arcsine(v) for v in (float(np.clip(value, low, high)), low, high)))

    # ---- on disk -----------------------------------------------------------------------------------------------

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}_{part.name}": getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], name: str) -> Estimator:
        return cls(*(arrays[f"{name}_{part.name}"] for part in fields(cls)))


def independent(points: Sequence[CurvePoint]) -> np.ndarray:
    """Which folders may judge each folder: no class in common, and another style unless both are plain.

    For folders of trained classes the style is what is new, so those of the same style are left out.

    Args:
        points: The folders.

    Returns:
        Boolean matrix of shape ``(folders, folders)``.
    """
    most = max((max(point.classes, default=0) for point in points), default=0) + 1
    member = np.zeros((len(points), most), np.float32)
    for row, point in zip(member, points, strict=True):
        row[list(point.classes)] = 1.0
    style = np.array([point.style for point in points])
    new = np.array([bool(point.classes) for point in points])
    return np.asarray((member @ member.T == 0) & ((style[:, None] != style) | ((style == PLAIN) & new)))


def logistic(x: np.ndarray, y: np.ndarray, weights: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    """Weighted logistic regression by Newton's method, with an L2 penalty on all but the constant.

    Args:
        x: Standardized features with a column of ones at the end.
        y: Targets, 0 or 1.
        weights: Weight of each row.
        start: Coefficients to start from.
        steps: Newton steps.

    Returns:
        The coefficients.
    """
    shrink = PENALTY * weights.sum() * np.append(np.ones(x.shape[1] - 1), 0.0)
    slopes = start.copy()
    for _ in range(steps):
        p = expit(x @ slopes)
        slope = x.T @ (weights * (y - p)) - shrink * slopes
        bend = (x * (weights * np.maximum(p * (1 - p), 1e-4))[:, None]).T @ x
        slopes += np.linalg.solve(bend + np.diag(shrink + 1e-9), slope)
    return slopes


def _sample(folders: Sequence[GradedFolder], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(features, hit, folder, weight) of some queries of every folder; all folders weigh the same."""
    rows: list[tuple[np.ndarray, ...]] = []
    for number, folder in enumerate(folders):
        queries = np.flatnonzero(folder.is_query)
        some = numpy_rng(seed, "sample of a folder", number).permutation(queries)[:SAMPLE]
        ones = np.ones(len(some))
        rows.append((folder.features[some], folder.hits[some], number * ones, ones / max(len(some), 1)))
    x, y, owner, weights = (np.concatenate(part) for part in zip(*rows, strict=True))
    return x.astype(np.float64), y.astype(np.float64), owner.astype(np.int64), weights


def _standard(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.hstack([(rows - mean) / scale, np.ones((len(rows), 1))])


def _mean(rows: np.ndarray, fold_coefficients: np.ndarray) -> np.ndarray:
    """Mean predicted probability of the images by each fit."""
    return np.asarray(expit(rows @ fold_coefficients.T).mean(axis=0))


def standard_error(queries: Any) -> Any:
    """Expected spread of a folder's recall on the arcsine scale: between folders, and by counting."""
    return np.sqrt(FOLDER_SPREAD**2 + 0.25 / queries)


def arcsine(p: Any) -> Any:
    """The arcsine scale, on which counting hits has the same variance everywhere."""
    return np.arcsin(np.sqrt(p))


def from_arcsine(value: float) -> float:
    """The fraction that belongs to a value on the arcsine scale."""
    return float(np.sin(np.clip(value, 0, np.pi / 2)) ** 2)
