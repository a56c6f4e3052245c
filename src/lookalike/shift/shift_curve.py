"""A model's curve on disk, beside the model: what ``shift place`` needs to place new images."""

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
from lookalike.shift.graded_folders import MATCHED, MIN_TO_PLACE, SplitPoint, TrainingReference, root_fid
from lookalike.shift.neighbor_features import FEATURES, neighbor_features
from lookalike.shift.recall_estimate import PLAIN, CurvePoint, Estimator, GradedFolder

CURVE, ARRAYS = "curve.json", "arrays.npz"
MAX_IMAGES = 1000  # images of a folder that are looked at, as in the folders the curve was learned on
MIN_PLAIN_FOLDERS = 60  # plain folders that can stand for themselves
MAX_OUTSIDE = 0.2  # of images that may lie farther from training than almost all held-out ones


@dataclass(frozen=True)
class FolderPosition:
    """What can be measured of a folder without labels.

    Args:
        images: Number of images.
        used: Number of images the estimate is about: at most as many as the graded folders have.
        outside: Fraction of images farther from training than nearly all held-out ones.
        distance: Excess FID from training; None for too few images.
        spread: Standard deviation of the distance over draws.
        split: The split of the recipe's curve at the same distance from its training side.
    """

    images: int
    used: int
    outside: float
    distance: float | None = None
    spread: float = 0.0
    split: int | None = None


@dataclass(frozen=True)
class Placement:
    """Where a folder lies on a model's curve, and the recall@1 to expect.

    Args:
        position: What was measured of the folder.
        splits: Number of splits of the recipe's curve.
        recall: Expected recall@1 with its interval; None for too few images.
        baseline: The interval for a folder about which nothing is known.
        level: Coverage of the intervals.
        verdict: ``placed``, ``out_of_range`` (the interval is an extrapolation), or ``too_few`` images.
        message: The result in a sentence.
    """

    position: FolderPosition
    splits: int
    recall: Interval | None
    baseline: Interval
    level: float
    verdict: str
    message: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ShiftCurve:
    """The learned curve of one model.

    Args:
        model: Fingerprint of the model.
        points: Graded folders.
        general: Estimator fitted on all folders.
        plain: Estimator fitted on plain folders alone, where there are enough.
        splits: The recipe's curve, easiest first; may be empty.
        reference: Training images that distances are measured from.
        class_centers: Mean embeddings of the training classes.
        far: Distance to the nearest training image that 99 % of held-out images stay below.
        about: What it was learned from: images, classes, method, seed.
    """

    model: str
    points: Sequence[CurvePoint]
    general: Estimator
    plain: Estimator | None
    splits: Sequence[SplitPoint]
    reference: TrainingReference
    class_centers: np.ndarray
    far: float
    about: dict[str, Any]

    @classmethod
    def fit(cls, model: str, folders: Sequence[GradedFolder], **parts: Any) -> ShiftCurve:
        """Fit the estimators on graded folders."""
        plain_folders = [folder for folder in folders if folder.point.style == PLAIN and folder.point.classes]
        plain = Estimator.fit(plain_folders) if len(plain_folders) >= MIN_PLAIN_FOLDERS else None
        return cls(model, [folder.point for folder in folders], Estimator.fit(folders), plain, **parts)

    def place(self, vectors: np.ndarray, features: np.ndarray, *, level: float = 0.9) -> Placement:
        """Place a folder by its unit embeddings and the unit features before the head."""
        position = self.locate(features)
        chosen = np.sort(numpy_rng(0, "folder").permutation(position.images)[: position.used])
        evidence = (
            neighbor_features(vectors[chosen], features[chosen], self.class_centers)
            if position.distance is not None
            else None
        )
        return self._judge(position, evidence, level)

    def locate(self, features: np.ndarray) -> FolderPosition:
        """Distance of a folder from training."""
        count, used = len(features), min(len(features), MAX_IMAGES)
        rows = self.reference.project(features)
        outside = float((self.reference.nearest_distances(rows) > self.far).mean())
        if count < MIN_TO_PLACE:
            return FolderPosition(count, used, outside)
        distance, spread = self.reference.distance(rows)
        return FolderPosition(count, used, outside, distance, spread, self._split(distance, min(used, MATCHED)))

    def _estimator(self, position: FolderPosition) -> Estimator:
        """Folders within the range of plain ones are judged by those; other styles only widen the interval."""
        limit = max((point.distance for point in self.points if point.style == PLAIN), default=0.0)
        near = position.distance is not None and root_fid(position.distance) <= limit
        return self.plain if near and self.plain is not None else self.general

    def _judge(self, position: FolderPosition, evidence: np.ndarray | None, level: float) -> Placement:
        queries = min(max(position.used, MIN_TO_PLACE), MAX_IMAGES)
        estimator = self._estimator(position)
        about: dict[str, Any] = {
            "position": position,
            "splits": len(self.splits),
            "baseline": estimator.predict_baseline(queries, level),
            "level": level,
        }
        if evidence is None or position.distance is None:
            where = "far from" if position.outside > MAX_OUTSIDE else "near"
            message = f"{position.images} images are too few for an estimate; at least {MIN_TO_PLACE} are needed."
            message += f" They lie {where} training."
            return Placement(recall=None, verdict="too_few", message=message, **about)
        recall = estimator.predict(evidence, queries, level)
        limit = max(point.distance for point in self.points)
        if position.outside > MAX_OUTSIDE or position.distance > limit**2 + 2 * position.spread:
            why = "it lies farther from training than every folder the curve was learned on"
            if position.outside > MAX_OUTSIDE:
                percent = f"{100 * position.outside:.0f} %"
                why = f"{percent} of its images lie farther from training than nearly all held-out ones"
            message = (
                f"Out of range: {why}. Extrapolated recall@1: {recall.value:.2f}, between {recall.low:.2f} and "
                f"{recall.high:.2f}; no measurement supports it."
            )
            return Placement(recall=recall, verdict="out_of_range", message=message, **about)
        on = "" if position.split is None else f"split {position.split} of {len(self.splits)}"
        where = f"As far from training as {on}; expect" if on else "Expect"
        if root_fid(position.distance) < min(point.distance for point in self.points):
            best = max(point.recall for point in self.points)  # nothing measured stands behind more
            recall = Interval(min(recall.value, best), min(recall.low, best), recall.high)
            where = "Nearer to training than every folder the curve was learned on, so its near end is used"
            where += f" ({on}); expect" if on else "; expect"
        message = f"{where} recall@1 {recall.value:.2f}, between {recall.low:.2f} and {recall.high:.2f}."
        return Placement(recall=recall, verdict="placed", message=message, **about)

    def _split(self, distance: float, size: int) -> int | None:
        """The split whose test side lies as far from its training side, at the same number of images."""
        if not self.splits:
            return None
        return min(self.splits, key=lambda split: abs(split.distance(size) - distance)).id

    # ---- on disk -----------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the curve to a folder."""
        document = {
            "model": self.model,
            "about": self.about,
            "far": self.far,
            "features": list(FEATURES),
            "points": [point.to_json() for point in self.points],
            "splits": [{"id": s.id, "fid": s.fid, "recall": s.recall} for s in self.splits],
        }
        arrays: dict[str, Any] = {**_arrays("model", self.reference), "class_centers": self.class_centers}
        for name, estimator in (("general", self.general), ("plain", self.plain)):
            arrays |= estimator.arrays(name) if estimator is not None else {}
        for number, split in enumerate(self.splits):
            arrays |= {**_arrays(f"split{number}", split.reference), f"split{number}_test": split.test}
        with atomic_folder(folder) as part:
            write_json(part / CURVE, stamp("curve", document))
            np.savez(part / ARRAYS, **arrays)

    @classmethod
    def load(cls, folder: Path) -> ShiftCurve:
        """Read the curve from a folder."""
        document = check_format("curve", read_json(folder / CURVE, "model's curve"), folder)
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                splits = [
                    SplitPoint(**row, reference=_reference(arrays, f"split{n}"), test=arrays[f"split{n}_test"])
                    for n, row in enumerate(document["splits"])
                ]
                if document["features"] != list(FEATURES):
                    raise ValueError("features of another version")
                return cls(
                    document["model"],
                    [CurvePoint.from_json(row) for row in document["points"]],
                    Estimator.from_arrays(arrays, "general"),
                    Estimator.from_arrays(arrays, "plain") if "plain_coefficients" in arrays else None,
                    splits,
                    _reference(arrays, "model"),
                    arrays["class_centers"],
                    document["far"],
                    document["about"],
                )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise LookalikeError(f"The curve `{folder}` is damaged; delete it, and it is learned again.") from error


def _arrays(name: str, reference: TrainingReference) -> dict[str, np.ndarray]:
    parts = {"mean": reference.mean, "basis": reference.basis, "rows": reference.rows}
    return {f"{name}_{part}": values for part, values in parts.items()}


def _reference(arrays: Any, name: str) -> TrainingReference:
    return TrainingReference(*(arrays[f"{name}_{part}"] for part in ("mean", "basis", "rows")))
