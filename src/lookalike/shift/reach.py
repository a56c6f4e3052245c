"""A model's curve on disk, beside the model: what `shift place` needs to say how far the model can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, read_json, write_json
from lookalike.core.formats import stamp, upgrade
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.bootstrap import Interval
from lookalike.shift.estimate import PLAIN, Estimator, Point
from lookalike.shift.learning import SplitPoint, folder_signals
from lookalike.shift.nearness import FEWEST, MATCHED, Reference

CURVE, ARRAYS = "curve.json", "arrays.npz"
MOST = 1000  # pictures of a folder that signals are taken on, as in the folders the curve was learnt on
ENOUGH_PLAIN = 60  # plain folders that can stand for themselves
BEYOND_SHARE = 0.2  # of pictures that may lie farther from training than almost all held-out ones


@dataclass(frozen=True)
class Sighting:
    """What can be seen of a folder without labels."""

    pictures: int
    used: int
    """Pictures the figure is about: the folder, or as many drawn from it as the curve goes up to."""
    outside: float
    """Share of pictures farther from training than nearly all held-out ones."""
    distance: float | None = None
    spread: float = 0.0
    """Standard deviation of the distance over draws."""
    split: int | None = None
    """The split of the recipe's own curve that lies as far from its training."""
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Where a folder lies; a folder too small for a number has no `recall`."""

    seen: Sighting
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
class Reach:
    """The learnt curve of one model."""

    model: str
    """Fingerprint of the model it belongs to."""
    points: Sequence[Point]
    splits: Sequence[SplitPoint]
    """The recipe's curve, easiest first; may be empty."""
    reference: Reference
    far: float
    """Distance to the nearest training picture that 99 % of held-out pictures keep below."""
    about: dict[str, Any]
    """What it was learnt from: pictures, classes, method, seed."""

    @cached_property
    def _everywhere(self) -> tuple[Estimator, Estimator]:
        """Fits on all folders: on their signals, and on nothing."""
        return Estimator(self.points, list(self.points[0].signals)), Estimator(self.points, ())

    @cached_property
    def _nearby(self) -> tuple[Estimator, Estimator] | None:
        """The same on plain folders alone, where they can judge each other."""
        plain = [point for point in self.points if point.look == PLAIN and point.classes]
        if len(plain) < ENOUGH_PLAIN:
            return None
        return Estimator(plain, list(plain[0].signals)), Estimator(plain, ())

    def _fits(self, seen: Sighting) -> tuple[Estimator, Estimator]:
        """A folder no farther from training than any plain one is judged by those; other looks only widen it."""
        limit = max((p.signals["distance"] for p in self.points if p.look == PLAIN), default=0.0)
        near = seen.distance is not None and seen.signals["distance"] <= limit
        return self._nearby if near and self._nearby is not None else self._everywhere

    def place(self, vectors: np.ndarray, features: np.ndarray, *, level: float = 0.9) -> Placement:
        """Place a folder by its unit embeddings and the unit features before the head."""
        return self.judge(self.look_at(vectors, features), level=level)

    def look_at(self, vectors: np.ndarray, features: np.ndarray) -> Sighting:
        count, used = len(vectors), min(len(vectors), MOST)
        rows = self.reference.project(features)
        outside = float((self.reference.gaps(rows) > self.far).mean())
        if count < FEWEST:
            return Sighting(count, used, outside)
        distance, spread = self.reference.distance(rows)
        chosen = np.sort(numpy_rng(0, "folder").permutation(count)[:used])
        found = folder_signals(vectors[chosen], features[chosen], self.reference)
        return Sighting(count, used, outside, distance, spread, self._split(distance, min(used, MATCHED)), found)

    def judge(self, seen: Sighting, *, level: float = 0.9) -> Placement:
        """What is known of a folder that looks like this."""
        queries = min(max(seen.used, FEWEST), MOST)
        estimator, knowing_nothing = self._fits(seen)
        about: dict[str, Any] = {
            "seen": seen,
            "splits": len(self.splits),
            "ignoring": knowing_nothing.at({}, queries, level),
            "level": level,
        }
        if seen.distance is None:
            word = "far from" if seen.outside > BEYOND_SHARE else "near"
            sentence = (
                f"{seen.pictures} pictures are too few for a number ({FEWEST} are needed); they lie {word} training."
            )
            return Placement(recall=None, verdict="small", sentence=sentence, **about)
        found = estimator.at(seen.signals, queries, level)
        limit = max(point.signals["distance"] for point in self.points)  # a length: FID is its square
        if seen.outside > BEYOND_SHARE or seen.distance > limit**2 + 2 * seen.spread:
            why = "it lies farther from training than every folder the curve was learnt on"
            if seen.outside > BEYOND_SHARE:
                share = 100 * seen.outside
                why = f"{share:.0f} % of its pictures lie farther from training than nearly all held-out ones"
            sentence = (
                f"Beyond the curve: {why}. Should it go on as it did, expect recall@1 {found.value:.2f}, between "
                f"{found.low:.2f} and {found.high:.2f}; nothing measured stands behind that."
            )
            return Placement(recall=found, verdict="beyond", sentence=sentence, **about)
        where = "Expect"
        if seen.split is not None:
            where = f"As far from training as split {seen.split} of {len(self.splits)}; expect"
        sentence = f"{where} recall@1 {found.value:.2f}, between {found.low:.2f} and {found.high:.2f}."
        return Placement(recall=found, verdict="placed", sentence=sentence, **about)

    def _split(self, distance: float, size: int) -> int | None:
        """The split whose test side lies as far from its training at the same number of pictures."""
        if not self.splits:
            return None
        return min(self.splits, key=lambda split: abs(split.distance(size) - distance)).id

    # ---- on disk -----------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        document = {
            "model": self.model,
            "about": self.about,
            "far": self.far,
            "points": [point.to_json() for point in self.points],
            "splits": [{"id": s.id, "fid": s.fid, "recall": s.recall} for s in self.splits],
        }
        arrays: dict[str, Any] = _arrays("model", self.reference)
        for number, split in enumerate(self.splits):
            arrays |= {**_arrays(f"split{number}", split.reference), f"split{number}_test": split.test}
        with atomic_folder(folder) as part:
            write_json(part / CURVE, stamp("curve", document))
            np.savez(part / ARRAYS, **arrays)

    @classmethod
    def load(cls, folder: Path) -> Reach:
        document = upgrade("curve", read_json(folder / CURVE, "model's curve"), folder)
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                splits = [
                    SplitPoint(**row, reference=_reference(arrays, f"split{n}"), test=arrays[f"split{n}_test"])
                    for n, row in enumerate(document["splits"])
                ]
                return cls(
                    document["model"],
                    [Point.from_json(row) for row in document["points"]],
                    splits,
                    _reference(arrays, "model"),
                    document["far"],
                    document["about"],
                )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise LookalikeError(f"The curve `{folder}` is damaged; delete it, and it is learnt again.") from error


def _arrays(name: str, reference: Reference) -> dict[str, np.ndarray]:
    parts = {"mean": reference.mean, "basis": reference.basis, "rows": reference.rows}
    return {f"{name}_{part}": values for part, values in parts.items()}


def _reference(arrays: Any, name: str) -> Reference:
    return Reference(*(arrays[f"{name}_{part}"] for part in ("mean", "basis", "rows")))
