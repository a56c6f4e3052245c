"""Classes: whether there are enough of them to train, and how retrieval splits them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.data.table import Table

# The number of the last class to train on, where a data set has a convention (its official order of classes).
_HALVES = {"cub": 100, "cars": 98}


def check_classes(table: Table, minimum_classes: int = 2, minimum_images: int = 2) -> list[str]:
    """The classes with fewer images than training can use; an error when too few others are left."""
    source = _shown(table)
    codes, names = table.labels()
    if not names:
        raise LookalikeError(
            f"`{source}` has no labels; training needs at least {minimum_classes} classes: "
            "give a folder with one subfolder a class."
        )
    if len(names) < minimum_classes:
        noun = "class" if len(names) == 1 else "classes"
        raise LookalikeError(
            f"`{source}` holds {len(names)} {noun}; training needs at least {minimum_classes}: "
            "give a folder with one subfolder a class."
        )
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    small = [names[i] for i in np.flatnonzero(counts < minimum_images)]
    left = len(names) - len(small)
    if left < minimum_classes:
        raise LookalikeError(
            f"`{source}` holds {len(names):,} classes, but only {left} with at least {minimum_images} images; "
            f"training needs {minimum_classes}: add images to the classes (first: `{small[0]}`)."
        )
    return small


def retrieval_split(table: Table) -> Table:
    """`split` as retrieval wants it: the classes of `train` and of `test` have nothing in common.

    CUB and Cars are halved by their official order (1–100/101–200, 1–98/99–196); a table whose own
    splits part the classes already (SOP, In-Shop, DeepFashion2) keeps them; any other is halved in the
    natural order of its labels. The table's own split stays in `official_split`.
    """
    codes, names = table.labels()
    layout = table.notes.get("layout")
    if layout not in _HALVES and _parted(table, codes):
        own = table.column("split")
        split = own if "test" in own else np.where(own == "val", "test", own)
        return table.with_column("official_split", own).with_column("split", split)
    if len(names) < 2:
        raise LookalikeError(f"`{_shown(table)}` has {len(names)} classes; parting them needs at least 2.")
    if layout in _HALVES and table.has("class_id"):
        train = table.column("class_id") <= _HALVES[layout]
    else:
        train = codes < (len(names) + 1) // 2
    split = np.where(train, "train", "test").astype(object)
    split[codes < 0] = None
    if table.has("split"):
        table = table.with_column("official_split", table.arrow["split"])
    return table.with_column("split", split)


def _parted(table: Table, codes: np.ndarray) -> bool:
    if not table.has("split"):
        return False
    split = table.column("split")
    train, rest = (set(codes[(split == "train") == side]) - {-1} for side in (True, False))
    return bool(train and rest and not train & rest)


def _shown(table: Table) -> str:
    """What a user typed; a folder with a slash behind it, so that it is seen to be one."""
    source = str(table.notes.get("source", table.name))
    return source if source.endswith("/") or not Path(source).is_dir() else f"{source}/"
