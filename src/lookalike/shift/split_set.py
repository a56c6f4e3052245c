"""The splits of a data set: how a file of them looks, and which image is on which side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, hash_bytes, read_json, stamp, write_json
from lookalike.data.table import Table
from lookalike.shift.class_swaps import DRAWS, Step, random_orders

Names = tuple[str, ...]
MEASURES = ("samples", "means", "authors")  # what the FIDs of a file were measured on; of the authors' it is not stated


@dataclass(frozen=True)
class Split:
    """Train and test classes; what is on neither side is `removed`."""

    id: int
    step: str
    """The step's name: classes a side exchanged, `R` and classes a side removed."""
    fid: float
    train: Names
    test: Names
    removed: Names = ()
    images: tuple[int, int, int] = (0, 0, 0)
    """Images in train, test and neither; those without a label are in neither."""
    validation: Names = ()
    """Train classes that the authors' file sets apart to choose the epoch on."""
    episodes: Mapping[str, Any] = field(default_factory=dict)
    """Support files of the authors' few-shot episodes: shots → episode → class → file names."""


@dataclass(frozen=True)
class SplitSet:
    data: Mapping[str, Any]
    """name, classes (name → images), unlabeled, files (hash of the sorted row ids)."""
    eye: Mapping[str, Any]
    """The measuring backbone: name, weights (fingerprint), preprocess."""
    measure: str
    """What FID is measured on, `samples` or `means`; files of different kinds are never compared."""
    splits: tuple[Split, ...]
    """By growing FID."""
    default: int
    """The id of the split that everything starts from."""
    sequence: tuple[Step, ...] = ()
    """Every step from the easiest to the last removal, chosen or not."""
    random: tuple[tuple[Names, Names], ...] = ()
    """Draws of random removal: in which order each takes the classes of train and of test at the end of swapping."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """per_step, history, removal, seed."""

    def split(self, number: int) -> Split:
        for found in self.splits:
            if found.id == number:
                return found
        raise LookalikeError(f"There is no split {number}: there are {', '.join(str(s.id) for s in self.splits)}.")

    def with_random_removals(self) -> SplitSet:
        """The same with orders of random removal where the file has none, as the authors' have: from the hardest of the
        splits with the most classes."""
        if self.random:
            return self
        most = max(len(split.test) for split in self.splits)
        last = max((split for split in self.splits if len(split.test) == most), key=lambda split: split.fid)
        return replace(self, random=tuple(random_orders(last.train, last.test, draws=DRAWS, seed=0)))

    def end_of_swapping(self) -> Split | None:
        """The split whose classes random removals start from, if it was kept."""
        whole = set(self.random[0][1]) if self.random else set()
        return next((split for split in self.splits if set(split.test) == whole), None)

    def is_removal(self, split: Split) -> bool:
        """Whether it has fewer classes than random removals start from."""
        return bool(self.random) and len(split.test) < len(self.random[0][1])

    def random_split(self, split: Split, draw: int) -> Split:
        """A removal's control: as many classes removed at random, from the same state. Its FID is that of the step."""
        step = next(step for step in self.sequence if step.name == split.step)
        gone = len(self.random[draw][0]) - len(split.train)
        train, test = (side[gone:] for side in self.random[draw])
        removed = (*split.removed, *split.train, *split.test)
        removed = tuple(name for name in removed if name not in train and name not in test)
        counts = self.data["classes"]
        known = [sum(counts[name] for name in side) for side in (train, test)]
        return Split(
            split.id, split.step, step.random[draw], train, test, removed, (*known, sum(split.images) - sum(known))
        )

    def progression(self) -> dict[str, list[tuple[float, float]]]:
        """(place in the sequence, FID) of swapping, of removal, and of random removal (mean of the draws)."""
        first = self._place_of_start()
        places = [(i - first, step) for i, step in enumerate(self.sequence)]
        out = {
            "swapping": [(i, step.fid) for i, step in places if step.kind != "removal"],
            "removal": [(i, step.fid) for i, step in places if step.kind == "removal"],
            "random removal": [(i, float(np.mean(step.random))) for i, step in places if step.random],
        }
        return {name: [(float(x), y) for x, y in points] for name, points in out.items() if points}

    def places(self) -> dict[int, float]:
        """Where in the sequence each split lies; 0 is the start."""
        names = {step.name: i - self._place_of_start() for i, step in enumerate(self.sequence)}
        return {split.id: float(names[split.step]) for split in self.splits if split.step in names}

    def _place_of_start(self) -> int:
        return next((i for i, step in enumerate(self.sequence) if step.kind == "start"), 0)

    def rows(self, table: Table, split: Split) -> dict[str, np.ndarray]:
        """The rows of `train`, `test` and `removed`: every row of the table is in one of them."""
        self.check(table)
        codes, names = table.labels()
        side = {name: place for place, own in enumerate((split.train, split.test)) for name in own}
        of_class = np.array([*(side.get(name, 2) for name in names), 2])  # the last answers for rows without a label
        return {name: np.flatnonzero(of_class[codes] == i) for i, name in enumerate(("train", "test", "removed"))}

    def check(self, table: Table) -> None:
        """Refuse splits of other classes than the table has."""
        missing = set(self.data["classes"]) - set(table.labels()[1])
        if missing:
            raise LookalikeError(
                f"The splits are of `{self.data['name']}` and name the class `{min(missing)}`, which `{table.name}` "
                "does not have: make splits from these images."
            )

    def check_comparable(self, other: SplitSet) -> None:
        """FIDs of different eyes or kinds are different quantities: refuse to put them side by side."""
        for what, own, theirs in (
            ("kinds of FID", self.measure, other.measure),
            ("measuring backbones", self.eye.get("weights"), other.eye.get("weights")),
        ):
            if own != theirs:
                raise LookalikeError(
                    f"These splits have different {what} ({own} and {theirs}), so their FIDs cannot be compared: "
                    "make both with the same options."
                )

    def to_json(self) -> dict[str, Any]:
        return stamp("splits", asdict(self))

    def save(self, path: str | Path) -> None:
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> SplitSet:
        document = check_format("splits", read_json(path, "file of splits"), path)
        try:
            return cls(
                data=document["data"],
                eye=document["eye"],
                measure=document["measure"],
                splits=tuple(_split(row) for row in document["splits"]),
                default=document["default"],
                sequence=tuple(_step(row) for row in document["sequence"]),
                random=tuple((tuple(a), tuple(b)) for a, b in document["random"]),
                settings=document["settings"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LookalikeError(f"The file of splits `{path}` is damaged: {error}.") from error


def data_facts(table: Table) -> dict[str, Any]:
    """What a file of splits says of its images; the same in whatever order the rows come."""
    codes, names = table.labels()
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    return {
        "name": table.name,
        "classes": {name: int(count) for name, count in zip(names, counts, strict=True)},
        "unlabeled": int((codes < 0).sum()),
        "files": hash_bytes(*sorted(table.column("row_id"))),
    }


def _split(row: dict[str, Any]) -> Split:
    sides = {name: tuple(row[name]) for name in ("train", "test", "removed", "images", "validation")}
    both = set(sides["train"]) & set(sides["test"])
    if both:
        raise ValueError(f"the class `{min(both)}` is on both sides of split {row['id']}")
    return Split(**{**row, **sides})


def _step(row: dict[str, Any]) -> Step:
    pairs = tuple((a, b) for a, b in row["swapped"])
    return Step(**{**row, "swapped": pairs, "removed": tuple(row["removed"]), "random": tuple(row["random"])})
