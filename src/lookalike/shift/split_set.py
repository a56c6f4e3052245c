"""Splits of a data set: the file they are stored in, and which image is on which side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, hash_bytes, read_json, stamp, write_json
from lookalike.data.table import Table
from lookalike.shift.class_swaps import DRAWS, Names, Step, random_orders


@dataclass(frozen=True)
class Split:
    """Train and test classes of one split.

    Args:
        id: Number of the split, 1 is the easiest.
        step: Name of its step: classes per side swapped, or ``R`` and classes per side removed.
        fid: FID between the sides.
        train: Training classes.
        test: Test classes.
        removed: Classes on neither side.
        images: Number of images in train, test and neither; images without a label are in neither.
        validation: Training classes that the authors' file reserves for choosing the epoch.
        episodes: Support images of the authors' few-shot episodes: shots → episode → class → file names.

    Example:
        >>> split = la.shift.Split(1, "0", 12.5, train=("cat", "dog"), test=("fox", "owl"))
        >>> len(split.test)
        2
    """

    id: int
    step: str
    fid: float
    train: Names
    test: Names
    removed: Names = ()
    images: tuple[int, int, int] = (0, 0, 0)
    validation: Names = ()
    episodes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitSet:
    """Splits of growing difficulty of one data set, with the whole sequence they were chosen from.

    Args:
        data: ``name``, ``classes`` (name → images), ``unlabeled`` and ``files`` (hash of the sorted row ids).
        reference_model: The model whose features FID is measured on: ``name``, ``weights`` (fingerprint),
            ``preprocess``.
        measure: What FID is measured on: ``samples``, ``means`` or ``authors`` (their file does not say). FIDs of
            different measures cannot be compared.
        splits: The splits, by growing FID.
        default: Id of the split that everything starts from.
        sequence: Every step from the easiest to the last removal, chosen or not.
        random: Random removals: the order in which each draw removes the classes of train and test at the end of
            swapping.
        settings: ``per_step``, ``history``, ``removal``, ``seed``.

    Example:
        >>> easy = la.shift.Split(1, "0", 1.0, train=("a", "b"), test=("c", "d"))
        >>> hard = la.shift.Split(2, "1", 3.0, train=("a", "c"), test=("b", "d"))
        >>> splits = la.shift.SplitSet({"name": "x", "classes": {}}, {"name": "m"}, "samples", (easy, hard), default=1)
        >>> splits.save("splits.json")
        >>> la.shift.SplitSet.load("splits.json").split(2).fid
        3.0
    """

    data: Mapping[str, Any]
    reference_model: Mapping[str, Any]
    measure: str
    splits: tuple[Split, ...]
    default: int
    sequence: tuple[Step, ...] = ()
    random: tuple[tuple[Names, Names], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def split(self, number: int) -> Split:
        """The split with this id."""
        for split in self.splits:
            if split.id == number:
                return split
        raise LookalikeError(f"There is no split {number}; choose one of {', '.join(str(s.id) for s in self.splits)}.")

    def with_random_removals(self) -> SplitSet:
        """The same set with orders of random removal, where the file (such as the authors') has none.

        They start from the hardest of the splits with the most classes.
        """
        if self.random:
            return self
        most = max(len(split.test) for split in self.splits)
        last = max((split for split in self.splits if len(split.test) == most), key=lambda split: split.fid)
        return replace(self, random=tuple(random_orders(last.train, last.test, draws=DRAWS, seed=0)))

    def end_of_swapping(self) -> Split | None:
        """The split from which random removals start, if it is among the chosen ones."""
        classes = set(self.random[0][1]) if self.random else set()
        return next((split for split in self.splits if set(split.test) == classes), None)

    def is_removal(self, split: Split) -> bool:
        """Whether the split has fewer classes than random removals start from."""
        return bool(self.random) and len(split.test) < len(self.random[0][1])

    def progression(self) -> dict[str, list[tuple[float, float]]]:
        """(position in the sequence, FID) of swapping, of removal, and of random removal (mean of the draws)."""
        steps = [(i - self._start(), step) for i, step in enumerate(self.sequence)]
        out = {
            "swapping": [(i, step.fid) for i, step in steps if step.kind != "removal"],
            "removal": [(i, step.fid) for i, step in steps if step.kind == "removal"],
            "random removal": [(i, float(np.mean(step.random))) for i, step in steps if step.random],
        }
        return {name: [(float(x), y) for x, y in points] for name, points in out.items() if points}

    def positions(self) -> dict[int, float]:
        """Position of each split in the sequence; the start is 0."""
        steps = {step.name: i - self._start() for i, step in enumerate(self.sequence)}
        return {split.id: float(steps[split.step]) for split in self.splits if split.step in steps}

    def _start(self) -> int:
        return next((i for i, step in enumerate(self.sequence) if step.kind == "start"), 0)

    def rows(self, table: Table, split: Split) -> dict[str, np.ndarray]:
        """Row numbers of ``train``, ``test`` and ``removed``; every row of the table is in exactly one of them."""
        self.check(table)
        codes, names = table.labels()
        side_of = {name: i for i, side in enumerate((split.train, split.test)) for name in side}
        side = np.array([*(side_of.get(name, 2) for name in names), 2])  # index −1 stands for rows without a label
        return {name: np.flatnonzero(side[codes] == i) for i, name in enumerate(("train", "test", "removed"))}

    def check(self, table: Table) -> None:
        """Raise if the table lacks a class of the splits."""
        missing = set(self.data["classes"]) - set(table.labels()[1])
        if missing:
            raise LookalikeError(
                f"The splits of `{self.data['name']}` name the class `{min(missing)}`, which `{table.name}` does not "
                "have. Make splits from these images."
            )

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return stamp("splits", asdict(self))

    def save(self, path: str | Path) -> None:
        """Write the splits to a JSON file."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> SplitSet:
        """Read the splits from a JSON file."""
        document = check_format("splits", read_json(path, "file of splits"), path)
        try:
            splits = pydantic.TypeAdapter(cls).validate_python(
                {name: value for name, value in document.items() if name not in ("format", "kind")}
            )
            pydantic.TypeAdapter(dict[str, int]).validate_python(splits.data["classes"])
            for split in splits.splits:
                if both := set(split.train) & set(split.test):
                    raise ValueError(f"the class `{min(both)}` is on both sides of split {split.id}")
        except (KeyError, ValueError, RecursionError) as error:
            first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
            reason = f"`{'.'.join(map(str, first['loc']))}` is missing or wrong" if first else error
            raise LookalikeError(f"The file of splits `{path}` is damaged: {reason}.") from error
        return splits


def data_facts(table: Table) -> dict[str, Any]:
    """What a file of splits stores about its images; independent of the order of the rows."""
    codes, names = table.labels()
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    return {
        "name": table.name,
        "classes": {name: int(count) for name, count in zip(names, counts, strict=True)},
        "unlabeled": int((codes < 0).sum()),
        "files": hash_bytes(*sorted(table.column("row_id"))),
    }
