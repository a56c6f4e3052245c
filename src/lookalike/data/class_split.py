"""Classes: whether there are enough of them to train on, and how they are split for retrieval."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.data.table import Table

# The number of the last class to train on, where a data set has a convention (its official order of classes).
_HALVES = {"cub": 100, "cars": 98}


def check_classes(table: Table, minimum_classes: int = 2, minimum_images: int = 2) -> list[str]:
    """Check that there are enough classes to train on.

    Args:
        table: The images, with labels.
        minimum_classes: How many classes training needs.
        minimum_images: How many images each of them needs.

    Returns:
        The classes with fewer images than that, which training cannot use.

    Raises:
        LookalikeError: Too few other classes are left.

    Example:
        >>> la.data.check_classes(la.read_table("photos"), minimum_classes=4)
        []
    """
    from lookalike.data.readers.columns import hint

    source, (codes, names) = _shown(table), table.labels()
    if len(names) < minimum_classes:
        what = f"holds {len(names)} class{'es' * (len(names) > 1)}" if names else "has no labels"
        unit = "" if names else " classes"
        raise LookalikeError(
            f"`{source}` {what}; training needs at least {minimum_classes}{unit}: "
            f"give a folder with one subfolder a class.{'' if names else hint(table, 'label')}"
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
    """Split a table for retrieval: the classes of `train` and `test` do not overlap.

    CUB and Cars are halved in their official order (1–100/101–200, 1–98/99–196). A table whose splits separate
    the classes already (SOP, In-Shop, DeepFashion2) keeps them. Any other is halved in the natural order of
    its labels. The original split is kept as `official_split`.

    Args:
        table: The images, with labels.

    Returns:
        The table with a new column `split`.

    Example:
        >>> table = la.data.retrieval_split(la.read_table("photos"))
        >>> sorted(set(table.where("split", "test").column("label")))
        ['class-02', 'class-03']
    """
    codes, names = table.labels()
    layout = table.notes.get("layout")
    own = table.column("split") if table.has("split") else np.full(len(table), "")
    train, rest = (set(codes[(own == "train") == side]) - {-1} for side in (True, False))
    if layout not in _HALVES and train and rest and not train & rest:
        split = own if "test" in own else np.where(own == "val", "test", own)
        return table.with_column("official_split", own).with_column("split", split)
    if len(names) < 2:
        raise LookalikeError(f"`{_shown(table)}` has {len(names)} classes; parting them needs at least 2.")
    if layout in _HALVES and table.has("class_id"):
        first = table.column("class_id") <= _HALVES[layout]
    else:
        first = codes < (len(names) + 1) // 2
    split = np.where(first, "train", "test").astype(object)
    split[codes < 0] = None
    if table.has("split"):
        table = table.with_column("official_split", table.arrow["split"])
    return table.with_column("split", split)


def _shown(table: Table) -> str:
    """Return the source as the user typed it; a folder ends with a slash."""
    source = str(table.notes.get("source", table.name))
    return source if source.endswith("/") or not Path(source).is_dir() else f"{source}/"
