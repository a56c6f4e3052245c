"""From the features of a folder to the recall@1 to expect, with an interval.

A ridge regression predicts the folder's recall@1 on the arcsine scale, on which counting has the same variance
everywhere. Every calibration folder is judged by a fit on folders that have no class in common with it; the residuals
of those fits give the interval (CV+ by folds, Barber et al. 2021). Kinds of folders, by their images per class, weigh
the same, so that the interval holds in all of them and not only on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.bootstrap import Interval

BANDS = (3.5, 5.5, 10.0, 20.0)  # images per class that separate the kinds of folders
PENALTY = 0.03
FOLDER_SPREAD = 0.1  # of folders with the same features, on the arcsine scale
MIN_FOLDERS = 30  # folders that a fit is made from; a folder with fewer to judge it is not counted
CLIP = 4.0  # standard deviations beyond which a feature says no more


@dataclass(frozen=True)
class GradedFolder:
    """A folder of known classes: what it is, what can be seen of it without labels, and its recall@1.

    Args:
        classes: Codes of its classes.
        excluded: Classes that the fit which judges it must not have seen.
        count: Number of its classes.
        images: Number of its images.
        distance: Distance from training, the square root of the excess FID.
        recall: Fraction of its images whose nearest neighbor has their class.
        features: See :func:`lookalike.shift.neighbor_features.folder_features`.
    """

    classes: tuple[int, ...]
    excluded: tuple[int, ...]
    count: int
    images: int
    distance: float
    recall: float
    features: tuple[float, ...]

    def columns(self, *, classes_known: bool) -> list[float]:
        """The features of a fit, with the number of classes if it is known."""
        return folder_columns(self.features, self.distance, self.images, self.count if classes_known else None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GradedFolder:
        lists = {name: tuple(document[name]) for name in ("classes", "excluded", "features")}
        return cls(**{**document, **lists})


def folder_columns(features: Sequence[float], distance: float, images: int, classes: int | None) -> list[float]:
    """Columns of the regression for one folder."""
    known = [] if classes is None else [float(np.log(classes)), float(np.log(images / classes))]
    return [*features, distance, *known]


def band(images_per_class: float) -> int:
    """Number of the kind of a folder by its images per class."""
    return int(np.searchsorted(BANDS, images_per_class))


def judging_folders(folders: Sequence[GradedFolder]) -> np.ndarray:
    """Which folders may judge each folder: those with none of its excluded classes."""
    most = max((max((*f.classes, *f.excluded), default=0) for f in folders), default=0) + 1
    member, excluded = np.zeros((2, len(folders), most), np.float32)
    for k, folder in enumerate(folders):
        member[k, list(folder.classes)] = 1.0
        excluded[k, list(folder.excluded)] = 1.0
    return np.asarray(excluded @ member.T == 0)


@dataclass(frozen=True)
class Estimator:
    """Predicts recall@1 of a folder, with one fit per calibration folder that leaves out what it shares with it.

    Args:
        mean: Mean of the columns.
        scale: Standard deviation of the columns; infinite where constant.
        coefficients: Coefficients of the fit on all folders; the last is the constant.
        fold_coefficients: Coefficients of the fit that judged each folder, one row each.
        residuals: Errors of those fits, in units of the expected spread.
        truth: Recall of the folders on the arcsine scale.
        kinds: Kind of each folder, see :func:`band`.
        precision: Inverse covariance of the standardized columns.
        limit: Largest Mahalanobis distance of a calibration folder.
    """

    mean: np.ndarray
    scale: np.ndarray
    coefficients: np.ndarray
    fold_coefficients: np.ndarray
    residuals: np.ndarray
    truth: np.ndarray
    kinds: np.ndarray
    precision: np.ndarray
    limit: np.ndarray

    @classmethod
    def fit(cls, folders: Sequence[GradedFolder], *, classes_known: bool = False) -> Estimator:
        """Fit on graded folders, with or without their number of classes."""
        x = np.array([folder.columns(classes_known=classes_known) for folder in folders])
        images = np.array([folder.images for folder in folders])
        truth = arcsine((np.array([f.recall for f in folders]) * images + 0.375) / (images + 0.75))
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 1e-9, scale, np.inf)  # what does not vary says nothing
        rows = _standard(x, mean, scale)
        masks = judging_folders(folders)
        judged = np.flatnonzero(masks.sum(axis=1) >= MIN_FOLDERS)
        if len(judged) < MIN_FOLDERS:
            raise LookalikeError(
                f"Only {len(judged)} of {len(folders)} folders of held-out images can be judged by others: too few to "
                "learn how far the model can be trusted. Give more labeled images with --data."
            )
        kinds = np.array([band(folder.images / folder.count) for folder in folders])
        _, kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        weights = 1 / counts[kind]
        folds = np.array([ridge(rows[m], truth[m], weights[m]) for m in masks[judged]])
        errors = truth[judged] - np.einsum("ij,ij->i", rows[judged], folds)
        precision = np.linalg.inv((np.cov(rows[:, :-1].T) + np.eye(x.shape[1])) / 2)
        limit = np.array(np.sqrt(np.einsum("ij,jk,ik->i", rows[:, :-1], precision, rows[:, :-1]).max()))
        residuals, whole = errors / standard_error(images[judged]), ridge(rows, truth, weights)
        return cls(mean, scale, whole, folds, residuals, truth[judged], kinds[judged], precision, limit)

    def predict(self, columns: Sequence[float], images: int, level: float, near: int | None = None) -> Interval:
        """Recall@1 of a folder with its interval; with a band, folders of far bands do not count."""
        row = _standard(np.array([columns]), self.mean, self.scale)[0]
        values = self.fold_coefficients @ row + self.residuals * standard_error(images)
        weights = self._weights(near)
        low, high = (weighted_quantile(values, weights, q) for q in ((1 - level) / 2, (1 + level) / 2))
        value = float(np.clip(row @ self.coefficients, low, high))
        return Interval(*(from_arcsine(bound) for bound in (value, low, high)))

    def predict_baseline(self, level: float) -> Interval:
        """The same for a folder about which nothing is known."""
        weights = self._weights(None)
        bounds = (weighted_quantile(self.truth, weights, q) for q in (0.5, (1 - level) / 2, (1 + level) / 2))
        return Interval(*(from_arcsine(bound) for bound in bounds))

    def in_range(self, columns: Sequence[float]) -> bool:
        """Whether a folder lies among the calibration folders."""
        row = _standard(np.array([columns]), self.mean, self.scale)[0, :-1]
        return bool(np.sqrt(row @ self.precision @ row) <= self.limit)

    def _weights(self, near: int | None) -> np.ndarray:
        """All kinds weigh the same."""
        _, kind, counts = np.unique(self.kinds, return_inverse=True, return_counts=True)
        far = np.zeros(len(kind), bool)
        if near is not None:
            far = np.abs(self.kinds - near) > 1
        return np.asarray(np.where(far & ~far.all(), 0.0, 1 / counts[kind]))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}_{part.name}": getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], name: str) -> Estimator:
        return cls(*(arrays[f"{name}_{part.name}"] for part in fields(cls)))


def ridge(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted ridge regression; the last column of ``x`` is the constant, which is not penalized."""
    shrink = np.append(np.full(x.shape[1] - 1, PENALTY * weights.sum()), 1e-9)
    weighted = (x * weights[:, None]).T
    return np.asarray(np.linalg.solve(weighted @ x + np.diag(shrink), weighted @ y))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantile: float) -> float:
    """The first sorted value at which the cumulated weight reaches the quantile."""
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(cumulated, quantile - 1e-9)), len(values) - 1)])


def _standard(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.hstack([np.clip((rows - mean) / scale, -CLIP, CLIP), np.ones((len(rows), 1))])


def standard_error(images: Any) -> Any:
    """Expected spread of a folder's recall on the arcsine scale: between folders, and by counting."""
    return np.sqrt(FOLDER_SPREAD**2 + 0.25 / images)


def arcsine(p: Any) -> Any:
    """The arcsine scale, on which counting hits has the same variance everywhere."""
    return np.arcsin(np.sqrt(p))


def from_arcsine(value: float) -> float:
    """The fraction that belongs to a value on the arcsine scale."""
    return float(np.sin(np.clip(value, 0, np.pi / 2)) ** 2)
