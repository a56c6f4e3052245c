"""The calibration of one model on disk, beside the model: what ``shift place`` needs to place new images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, check_format, read_json, stamp, write_json
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.bootstrap import Interval
from lookalike.shift.graded_folders import (
    MAX_IMAGES,
    MIN_IMAGES,
    Encode,
    LabeledFeatures,
    TrainingReference,
    far_limit,
    grade_folders,
)
from lookalike.shift.neighbor_features import FEATURES, folder_features
from lookalike.shift.recall_estimate import Estimator, GradedFolder, band, folder_columns

CURVE, ARRAYS = "curve.json", "arrays.npz"
MAX_OUTSIDE = 0.2  # fraction of images that may lie farther from training than almost all held-out ones
MARGIN = 1.25  # times the calibrated number of classes up to which a folder is placed
HELP = "Label some images and run `lookalike evaluate`."


@dataclass(frozen=True)
class StyleScore:
    """Linear score of an image's style: high where it does not look like the held-out images.

    Args:
        coefficients: Weights of the unit features.
        intercept: Constant.
        limit: Highest mean score of a calibration folder of plain images.
    """

    coefficients: np.ndarray
    intercept: float
    limit: float

    @classmethod
    def fit(cls, images: LabeledFeatures, *, seed: int = 0) -> StyleScore | None:
        """Tell held-out images from the same in other styles; the limit comes from classes the fit has not seen."""
        from sklearn.linear_model import LogisticRegression

        if not images.styles:
            return None
        halves = images.split_classes(seed)[0]
        fits, scores, held = [], np.zeros(len(images.labels)), images.labels[images.held]
        for own, other in (halves, halves[::-1]):
            plain = images.features[images.held[np.isin(held, own)]]
            chosen = np.flatnonzero(np.isin(images.labels[images.styled], own))[::3]
            styled = np.concatenate([rows[chosen] for rows in images.styles.values()])
            x, y = np.concatenate([plain, styled]), np.repeat([0, 1], [len(plain), len(styled)])
            fits.append(LogisticRegression(C=10.0, max_iter=200, class_weight="balanced").fit(x, y))
            rest = np.isin(images.labels, other)
            scores[rest] = fits[-1].decision_function(images.features[rest])
        rng, names, means = numpy_rng(seed, "style limit"), np.unique(held), []
        for _ in range(100):  # folders of few classes vary most
            classes = rng.permutation(names)[: max(2, len(names) // 8)]
            means.append(scores[images.held[np.isin(held, classes)]].mean())
        coefficients = np.mean([fit.coef_[0] for fit in fits], axis=0)
        return cls(coefficients, float(np.mean([float(fit.intercept_[0]) for fit in fits])), float(np.max(means)))

    def is_other(self, features: np.ndarray) -> bool:
        """Whether a folder looks different from the held-out images."""
        return bool((features @ self.coefficients + self.intercept).mean() > self.limit)


@dataclass(frozen=True)
class Placement:
    """What is known of a folder without labels, and the recall@1 to expect.

    Args:
        images: Number of images.
        used: Number of images the estimate is about.
        distance: Distance from training, the square root of the excess FID; None for too few images.
        recall: Expected recall@1 with its interval; None where nothing can be said.
        baseline: The interval for a folder about which nothing is known.
        level: Coverage the intervals aim at.
        verdict: ``placed`` or ``cannot_say``.
        reason: Why nothing can be said.
        message: The result in a sentence.
    """

    images: int
    used: int
    distance: float | None
    recall: Interval | None
    baseline: Interval
    level: float
    verdict: str
    reason: str
    message: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ShiftCurve:
    """The calibration of one model.

    Args:
        model: Fingerprint of the model.
        folders: Graded folders.
        estimator: Estimates recall without the number of classes.
        estimator_classes_known: The same where it is known.
        reference: Training images that distances are measured from.
        class_centers: Mean embeddings of the training classes.
        far: Distance to the nearest training image that 99 % of held-out images stay below.
        style: Tells images of other styles; None without styles.
        about: What it was learned from: images, classes, method, seed.
    """

    model: str
    folders: Sequence[GradedFolder]
    estimator: Estimator
    estimator_classes_known: Estimator
    reference: TrainingReference
    class_centers: np.ndarray
    far: float
    style: StyleScore | None
    about: dict[str, Any]

    @classmethod
    def fit(
        cls, model: str, images: LabeledFeatures, encode: Encode, about: dict[str, Any], *, seed: int = 0
    ) -> ShiftCurve:
        """Draw and grade folders of labeled images, and fit the estimators on them."""
        labels, apart = images.labels, not np.isin(images.held, images.train).any()
        if apart and np.isin(labels[images.held], labels[images.train]).any():
            raise LookalikeError(
                "The held-out images are of classes the model was trained on, which says nothing about new ones. Give "
                "labeled images of other classes with --data."
            )
        folders, reference, centers = grade_folders(images, encode, seed=seed)
        estimator, classes_known = Estimator.fit(folders), Estimator.fit(folders, classes_known=True)
        far, style = far_limit(images, reference), StyleScore.fit(images, seed=seed)
        about = {**about, "folders": len(folders), "styles": list(images.styles), "seed": seed}
        return cls(model, folders, estimator, classes_known, reference, centers, far, style, about)

    def place(
        self, vectors: np.ndarray, features: np.ndarray, *, level: float = 0.9, classes: int | None = None
    ) -> Placement:
        """Place a folder by its unit embeddings and the unit features before the head.

        Args:
            vectors: Unit embeddings of shape ``(n, d)``.
            features: Unit features of shape ``(n, f)``.
            level: Coverage of the interval.
            classes: Number of different classes, if known.

        Returns:
            The placement.
        """
        count, used = len(features), min(len(features), MAX_IMAGES)
        baseline = self.estimator.predict_baseline(level)
        projected = self.reference.project(features)

        def answer(recall: Interval | None, reason: str, distance: float | None = None) -> Placement:
            message = f"Cannot say: {reason}. {HELP}"
            if recall is not None:
                message = f"Expect recall@1 {recall.value:.2f}, between {recall.low:.2f} and {recall.high:.2f}."
            verdict = "placed" if recall is not None else "cannot_say"
            return Placement(count, used, distance, recall, baseline, level, verdict, reason, message)

        if count < MIN_IMAGES:
            return answer(None, f"{count} images are too few, at least {MIN_IMAGES} are needed")
        distance = self.reference.distance(projected)
        outside = float((self.reference.nearest_distances(projected) > self.far).mean())
        if outside > MAX_OUTSIDE:
            percent = f"{100 * outside:.0f} % of its images"
            return answer(None, f"{percent} lie farther from training than nearly all held-out ones", distance)
        if self.style is not None and self.style.is_other(features):
            return answer(None, "its images look different from those the model was calibrated on", distance)
        if classes is not None and (reason := self._outside_classes(classes, count)):
            return answer(None, reason, distance)
        chosen = np.sort(numpy_rng(0, "folder").permutation(count)[:used])
        own, _ = folder_features(vectors[chosen], features[chosen], self.class_centers)
        columns = folder_columns(own.tolist(), distance, used, classes)
        estimator = self.estimator if classes is None else self.estimator_classes_known
        if not estimator.in_range(columns):
            return answer(None, "its neighborhoods are unlike those of every calibration folder", distance)
        near = None if classes is None else band(used / classes)
        return answer(estimator.predict(columns, used, level, near), "", distance)

    def _outside_classes(self, classes: int, images: int) -> str:
        """Why a folder of so many classes is none of the calibrated kinds."""
        most = int(MARGIN * max(folder.count for folder in self.folders))
        if not 2 <= classes <= most:
            return f"{classes} classes are outside the 2 to {most} that the calibration can speak about"
        return "" if images >= 1.5 * classes else f"{images} images of {classes} classes are too few per class"

    def save(self, folder: Path) -> None:
        """Write the calibration to a folder."""
        document = {
            "model": self.model,
            "about": self.about,
            "far": self.far,
            "style": None if self.style is None else [self.style.intercept, self.style.limit],
            "features": list(FEATURES),
            "folders": [graded.to_json() for graded in self.folders],
        }
        arrays = {name: getattr(self.reference, name) for name in ("mean", "basis", "rows")}
        arrays["class_centers"] = self.class_centers
        if self.style is not None:
            arrays["style"] = self.style.coefficients
        arrays |= self.estimator.arrays("estimator") | self.estimator_classes_known.arrays("told")
        with atomic_folder(folder) as part:
            write_json(part / CURVE, stamp("curve", document))
            np.savez(part / ARRAYS, **arrays)

    @classmethod
    def load(cls, folder: Path) -> ShiftCurve:
        """Read the calibration from a folder."""
        document = check_format("curve", read_json(folder / CURVE, "model's curve"), folder)
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                if document["features"] != list(FEATURES) or any(
                    np.asarray(arrays[name]).dtype.kind not in "biuf" for name in arrays
                ):
                    raise ValueError("features of another version")
                style = document["style"]
                return cls(
                    document["model"],
                    [GradedFolder.from_json(row) for row in document["folders"]],
                    Estimator.from_arrays(arrays, "estimator"),
                    Estimator.from_arrays(arrays, "told"),
                    TrainingReference(*(arrays[name] for name in ("mean", "basis", "rows"))),
                    arrays["class_centers"],
                    document["far"],
                    None if style is None else StyleScore(arrays["style"], *style),
                    document["about"],
                )
        except Exception as error:  # NumPy raises almost anything at damaged bytes
            raise LookalikeError(f"The curve `{folder}` is damaged; delete it, and it is learned again.") from error
