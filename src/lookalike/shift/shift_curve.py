"""A model's curve on disk, beside the model: what `shift place` needs to say how far the model can be trusted."""

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
from lookalike.shift.graded_folders import FEWEST, MATCHED, SplitPoint, TrainingReference, length
from lookalike.shift.neighbor_features import NAMES, evidence
from lookalike.shift.recall_estimate import PLAIN, CurvePoint, Estimator, GradedFolder

CURVE, ARRAYS = "curve.json", "arrays.npz"
MOST = 1000  # images of a folder that are looked at, as in the folders the curve was learned on
ENOUGH_PLAIN = 60  # plain folders that can stand for themselves
BEYOND_SHARE = 0.2  # of images that may lie farther from training than almost all held-out ones


@dataclass(frozen=True)
class FolderPosition:
    """What can be seen of a folder without labels."""

    images: int
    used: int
    """Images the figure is about: the folder, or as many drawn from it as the curve goes up to."""
    outside: float
    """Share of images farther from training than nearly all held-out ones."""
    distance: float | None = None
    spread: float = 0.0
    """Standard deviation of the distance over draws."""
    split: int | None = None
    """The split of the recipe's own curve that lies as far from its training."""


@dataclass(frozen=True)
class Placement:
    """Where a folder lies; a folder too small for a number has no `recall`."""

    seen: FolderPosition
    splits: int
    """How many splits the recipe's curve has."""
    recall: Interval | None
    ignoring: Interval
    """The interval of a folder one knows nothing about."""
    level: float
    verdict: str
    """`placed`, `beyond` the curve (the interval is an extrapolation then), or too `small` for a number."""
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ShiftCurve:
    """The learned curve of one model."""

    model: str
    """Fingerprint of the model it belongs to."""
    points: Sequence[CurvePoint]
    everywhere: Estimator
    """Learned on all folders."""
    nearby: Estimator | None
    """On plain folders alone, where they can judge each other."""
    splits: Sequence[SplitPoint]
    """The recipe's curve, easiest first; may be empty."""
    reference: TrainingReference
    kinds: np.ndarray
    """Mean embeddings of the classes of training."""
    far: float
    """Distance to the nearest training image that 99 % of held-out images keep below."""
    about: dict[str, Any]
    """What it was learned from: images, classes, method, seed."""

    @classmethod
    def learn(cls, model: str, folders: Sequence[GradedFolder], **parts: Any) -> ShiftCurve:
        """Fit what judges new folders on graded ones."""
        plain = [folder for folder in folders if folder.point.look == PLAIN and folder.point.classes]
        nearby = Estimator.learn(plain) if len(plain) >= ENOUGH_PLAIN else None
        return cls(model, [folder.point for folder in folders], Estimator.learn(folders), nearby, **parts)

    def place(self, vectors: np.ndarray, features: np.ndarray, *, level: float = 0.9) -> Placement:
        """Place a folder by its unit embeddings and the unit features before the head."""
        seen = self.look_at(features)
        chosen = np.sort(numpy_rng(0, "folder").permutation(seen.images)[: seen.used])
        told = evidence(vectors[chosen], features[chosen], self.kinds) if seen.distance is not None else None
        return self._judge(seen, told, level)

    def look_at(self, features: np.ndarray) -> FolderPosition:
        """How far a folder lies from training."""
        count, used = len(features), min(len(features), MOST)
        rows = self.reference.project(features)
        outside = float((self.reference.gaps(rows) > self.far).mean())
        if count < FEWEST:
            return FolderPosition(count, used, outside)
        distance, spread = self.reference.distance(rows)
        return FolderPosition(count, used, outside, distance, spread, self._split(distance, min(used, MATCHED)))

    def _estimator(self, seen: FolderPosition) -> Estimator:
        """A folder no farther from training than any plain one is judged by those; other looks only widen it."""
        limit = max((point.distance for point in self.points if point.look == PLAIN), default=0.0)
        near = seen.distance is not None and length(seen.distance) <= limit
        return self.nearby if near and self.nearby is not None else self.everywhere

    def _judge(self, seen: FolderPosition, told: np.ndarray | None, level: float) -> Placement:
        queries = min(max(seen.used, FEWEST), MOST)
        estimator = self._estimator(seen)
        about: dict[str, Any] = {
            "seen": seen,
            "splits": len(self.splits),
            "ignoring": estimator.ignoring(queries, level),
            "level": level,
        }
        if told is None or seen.distance is None:
            word = "far from" if seen.outside > BEYOND_SHARE else "near"
            sentence = f"{seen.images} images are too few for a number ({FEWEST} are needed); they lie {word} training."
            return Placement(recall=None, verdict="small", sentence=sentence, **about)
        found = estimator.at(told, queries, level)
        limit = max(point.distance for point in self.points)
        if seen.outside > BEYOND_SHARE or seen.distance > limit**2 + 2 * seen.spread:
            why = "it lies farther from training than every folder the curve was learned on"
            if seen.outside > BEYOND_SHARE:
                share = f"{100 * seen.outside:.0f} %"
                why = f"{share} of its images lie farther from training than nearly all held-out ones"
            sentence = (
                f"Beyond the curve: {why}. Should it go on as it did, expect recall@1 {found.value:.2f}, between "
                f"{found.low:.2f} and {found.high:.2f}; nothing measured stands behind that."
            )
            return Placement(recall=found, verdict="beyond", sentence=sentence, **about)
        on = "" if seen.split is None else f"split {seen.split} of {len(self.splits)}"
        where = f"As far from training as {on}; expect" if on else "Expect"
        if length(seen.distance) < min(point.distance for point in self.points):
            best = max(point.recall for point in self.points)  # nothing measured stands behind more
            found = Interval(min(found.value, best), min(found.low, best), found.high)
            where = (
                "Nearer to training than every folder the curve was learned on, so the near end of the curve is taken"
            )
            where += f" ({on}); expect" if on else "; expect"
        sentence = f"{where} recall@1 {found.value:.2f}, between {found.low:.2f} and {found.high:.2f}."
        return Placement(recall=found, verdict="placed", sentence=sentence, **about)

    def _split(self, distance: float, size: int) -> int | None:
        """The split whose test side lies as far from its training at the same number of images."""
        if not self.splits:
            return None
        return min(self.splits, key=lambda split: abs(split.distance(size) - distance)).id

    # ---- on disk -----------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        document = {
            "model": self.model,
            "about": self.about,
            "far": self.far,
            "evidence": list(NAMES),
            "points": [point.to_json() for point in self.points],
            "splits": [{"id": s.id, "fid": s.fid, "recall": s.recall} for s in self.splits],
        }
        arrays: dict[str, Any] = {**_arrays("model", self.reference), "kinds": self.kinds}
        for name, estimator in (("everywhere", self.everywhere), ("nearby", self.nearby)):
            arrays |= estimator.arrays(name) if estimator is not None else {}
        for number, split in enumerate(self.splits):
            arrays |= {**_arrays(f"split{number}", split.reference), f"split{number}_test": split.test}
        with atomic_folder(folder) as part:
            write_json(part / CURVE, stamp("curve", document))
            np.savez(part / ARRAYS, **arrays)

    @classmethod
    def load(cls, folder: Path) -> ShiftCurve:
        document = check_format("curve", read_json(folder / CURVE, "model's curve"), folder)
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                splits = [
                    SplitPoint(**row, reference=_reference(arrays, f"split{n}"), test=arrays[f"split{n}_test"])
                    for n, row in enumerate(document["splits"])
                ]
                if document["evidence"] != list(NAMES):
                    raise ValueError("evidence of another version")
                return cls(
                    document["model"],
                    [CurvePoint.from_json(row) for row in document["points"]],
                    Estimator.of(arrays, "everywhere"),
                    Estimator.of(arrays, "nearby") if "nearby_whole" in arrays else None,
                    splits,
                    _reference(arrays, "model"),
                    arrays["kinds"],
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
