"""Splits of the images into training, validation and test; by default the test classes are not trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data.readers.columns import split_counts, unused_split
from lookalike.data.table import Table
from lookalike.training.settings import DataSettings

# Layouts whose own split is one for classification; in retrieval the classes are halved instead.
_HALVED = ("cub", "cars")
Sides = tuple[np.ndarray, np.ndarray]
_ENOUGH = 6  # classes with two images: fewer cannot be parted into three sides of at least two


@dataclass(frozen=True)
class Division:
    """Row numbers to train on, to select the best step by, and to measure the result on, with remarks for the user.

    `rule` is how the test rows were chosen: `table`, `halves`, `classes`, `images` or `none`.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    rule: str
    notes: list[str] = field(default_factory=list)

    def mark(self, table: Table) -> Table:
        """The table with this split in the column `split`; a split of its own moves to `official_split`."""
        out = np.full(len(table), None, object)
        out[self.train], out[self.validation], out[self.test] = "train", "val", "test"
        if table.has("split") and not table.has("official_split"):
            table = table.with_column("official_split", table.arrow["split"])
        return table.with_column("split", pa.array(out, pa.string()))

    def with_unlabeled(self, table: Table) -> Division:
        """The split with all unlabeled images in the training set, for methods without labels."""
        free = np.flatnonzero(table.labels()[0] < 0)
        return replace(self, train=np.union1d(self.train, free))

    def follow(self, table: Table) -> Division:
        """The same split of a marked table from which some rows were removed."""
        split = table.column("split") if table.has("split") else np.full(len(table), None, object)
        train, held, test = (np.flatnonzero(split == name) for name in ("train", "val", "test"))
        return replace(self, train=train, validation=held, test=test)


def divide(table: Table, data: DataSettings) -> Division:
    """Split the rows of a table as the settings say; `auto` takes the best rule that the table allows.

    Without labels all rows are training rows. Raises `LookalikeError` if the rule does not fit the table, as for a
    missing split column or too few classes.

    Example:
        >>> from lookalike.data import read_table
        >>> from lookalike.training.settings import DataSettings
        >>> from lookalike.training.split import divide
        >>> division = divide(read_table("photos"), DataSettings(split="images", validation_fraction=0))
        >>> len(division.train), len(division.test), division.rule
        (16, 8, 'images')
    """
    codes, names = table.labels()
    if not names:
        every = np.arange(len(table))
        return Division(every, every[:0], every[:0], "none", ["There are no labels: all images train, none test."])
    rule, spare, notes = _rule(table, codes, data), None, []
    if rule in ("table", "halves"):
        train, spare, test = _own_split(table, rule)
        if rule == "table":
            notes.append(f"The split is the data's own: {split_counts(table.column('split'))}.")
        train = train[codes[train] >= 0]
    else:
        if data.split == "auto" and (unused := unused_split(table)):
            notes.append(unused)
        draw = _by_class if rule == "classes" else _by_image
        train, test = draw(np.flatnonzero(codes >= 0), codes, data.test_fraction, data.split_seed, "test")
    tested = set(codes[test]) - {-1}
    if seen := set(codes[train]) & tested:
        notes.append(f"{len(seen)} of {len(tested)} test classes are also trained on, with other images.")
    fraction, validation = data.validation_fraction, train[:0]
    if fraction and spare is not None and _pairs(codes[spare]) >= 2:
        validation = spare
    elif fraction and _pairs(codes[train]) >= _ENOUGH:
        train, validation = _by_class(train, codes, fraction, data.split_seed, "validation")
    elif fraction:
        train, validation = _by_image(train, codes, fraction, data.split_seed, "validation")
        notes.append("There are too few classes to hold some out: the best step is chosen on images of known classes.")
    return Division(np.sort(train), np.sort(validation), np.sort(test), rule, notes)


def _rule(table: Table, codes: np.ndarray, data: DataSettings) -> str:
    if data.split == "table" and not table.has("split"):
        raise LookalikeError(
            f"`{table.name}` has no split of its own; leave `data.split` at auto, or choose `classes`."
        )
    if data.split != "auto":
        return data.split
    if table.notes.get("layout") in _HALVED:
        return "halves"
    if table.has("split") and {"train"} < set(table.column("split")) & {"train", "val", "test"}:
        return "table"
    return "classes" if _pairs(codes) >= _ENOUGH else "images"


def _own_split(table: Table, rule: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """(train, val or None, test) of the table's split column, or of its classes halved."""
    from lookalike.data import retrieval_split

    split = (retrieval_split(table) if rule == "halves" else table).column("split")
    sides = {name: np.flatnonzero(split == name) for name in ("train", "val", "test")}
    if not len(sides["train"]):
        there = ", ".join(sorted({str(s) for s in split if s is not None}))
        raise LookalikeError(f"The split of `{table.name}` has no `train`: there is {there}.")
    train, held_out, test = sides.values()
    return (train, held_out if len(held_out) else None, test) if len(test) else (train, None, held_out)


def _pairs(codes: np.ndarray) -> int:
    """Number of classes with two images or more."""
    return int((np.unique(codes[codes >= 0], return_counts=True)[1] >= 2).sum())


def _by_class(rows: np.ndarray, codes: np.ndarray, fraction: float, seed: int, what: str) -> Sides:
    """(trained, held out): whole classes at random, at least two with a pair on each side.

    Classes with a single image are distributed as well: they cannot be queries, but are distractors in the gallery.
    """
    if fraction == 0:
        return rows, rows[:0]
    values, counts = np.unique(codes[rows], return_counts=True)
    pairs, single = values[counts >= 2], values[counts < 2]
    if len(pairs) < 4:
        raise LookalikeError(
            f"Only {len(pairs)} classes have two images or more; parting classes into training and {what} needs 4. "
            "Set `data.split` to images."
        )
    held: list[np.ndarray] = []
    for number, (group, least) in enumerate(((pairs, 2), (single, 0))):
        count = min(max(round(fraction * len(group)), least), len(group) - least)
        held.append(numpy_rng(seed, what, "classes", number).permutation(group)[: max(count, 0)])
    out = np.isin(codes[rows], np.concatenate(held))
    return rows[~out], rows[out]


def _by_image(rows: np.ndarray, codes: np.ndarray, fraction: float, seed: int, what: str) -> Sides:
    """(trained, held out): some images of every class with four or more, at least two on each side."""
    held = [rows[:0]]
    for code in np.unique(codes[rows]) if fraction else ():
        group = rows[codes[rows] == code]
        if len(group) >= 4:
            count = min(max(round(fraction * len(group)), 2), len(group) - 2)
            held.append(numpy_rng(seed, what, "pictures", code).permutation(group)[:count])
    out = np.isin(rows, np.concatenate(held))
    return rows[~out], rows[out]
