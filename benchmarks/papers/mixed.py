"""`mixed`: the classes of the small sets, cut to five images each: many classes, few images, as in SOP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lookalike.core import folders
from lookalike.core.files import hash_bytes
from lookalike.core.seeds import numpy_rng

if TYPE_CHECKING:
    from lookalike.data import Table

SETS = ("cub", "cars", "grocery", "tinyimagenet100", "pool")
IMAGES = 5
HELD_OUT = 1 / 3


def mixed(data: str | Path) -> Table:
    """The joined table with its split by classes, read once and kept in the cache."""
    from lookalike.data import Table

    name = hash_bytes("mixed 1", str(Path(data).absolute()))
    path = folders.cache("tables") / f"{name}.parquet"
    if not path.exists():
        join(Path(data)).save(path)
    return Table.load(path)


def join(data: Path) -> Table:
    """Five images of every class of every set, drawn once for all; a third of the classes is the test."""
    from lookalike.data import Table

    paths, labels = [], []
    sizes: list[int] = []
    for name in SETS:
        places, codes, names, own = _read(data, name)
        for code, label in enumerate(names):
            rows = np.flatnonzero(codes == code)
            if len(rows) < IMAGES:
                continue
            rng = numpy_rng(0, "mixed", name, label)
            for row in np.sort(rng.permutation(rows)[:IMAGES]):
                paths.append(f"{name}/{places[row]}")
                labels.append(f"{name}/{label}")
                sizes.append(int(own[row]))
    classes = sorted(set(labels))
    test = set(numpy_rng(0, "mixed", "test").permutation(classes)[: round(HELD_OUT * len(classes))])
    split = ["test" if label in test else "train" for label in labels]
    columns = {"path": paths, "label": labels, "split": split, "size": sizes}
    return Table.from_columns(columns, name="mixed", root=data)


def _read(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Paths, label codes, label names and file sizes of one set."""
    from lookalike.data import read_table

    if name == "pool":  # its labels are those of the sources it was drawn from
        import csv

        with (data / name / "pool.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        texts = np.array([f"{row['source']}/{row['source_label']}" for row in rows])
        names, codes = np.unique(texts, return_inverse=True)
        places = np.array([row["path"] for row in rows])
        sizes = np.array([(data / name / place).stat().st_size for place in places])
        return places, codes, names.tolist(), sizes
    table = read_table(data / name)
    codes, labels = table.labels()
    return table.column("path"), codes, labels, table.column("size")
