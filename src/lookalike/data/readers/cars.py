"""Stanford Cars (Cars-196) in its three shapes: merged, devkit, and a folder a class with `split.csv`.

The official order of the classes is not alphabetical, and the retrieval halves (1–98, 99–196) follow
it: `class_id` keeps it. Boxes are left aside: retrieval uses whole images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import Columns, csv_rows, layout


@layout(
    "cars",
    "Stanford Cars (Cars-196)",
    marks=[
        ("cars_annos.mat",),
        ("devkit/cars_train_annos.mat",),
        ("cars_train_annos.mat", "cars_train"),
        ("classes.csv", "split.csv"),
    ],
    inside=["stanford_cars", "stanford-cars"],
)
def read(root: Path) -> Columns:
    if (root / "split.csv").exists():
        return _folders(root)
    if (root / "cars_annos.mat").exists():
        return _merged(root)
    return _devkit(root)


def load_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # SciPy raises almost anything at a file that is damaged
        raise LookalikeError(f"`{path}` cannot be read as a MATLAB file: {str(error).splitlines()[0]}.") from None


def _folders(root: Path) -> Columns:
    rows = csv_rows(root / "split.csv")
    names = {row["class"]: row["name"] for row in csv_rows(root / "classes.csv")}
    return {
        "path": [row["path"] for row in rows],
        "label": [names[row["class"]] for row in rows],
        "class_id": [int(row["class"]) for row in rows],
        "split": [row["official_split"] for row in rows],
    }


def _columns(paths: list[str], classes: list[int], names: list[str], tests: list[bool]) -> Columns:
    return {
        "path": paths,
        "label": [names[c - 1] for c in classes],
        "class_id": classes,
        "split": ["test" if t else "train" for t in tests],
    }


def _merged(root: Path) -> Columns:
    mat = load_mat(root / "cars_annos.mat")
    rows, names = np.atleast_1d(mat["annotations"]), [str(n) for n in np.atleast_1d(mat["class_names"])]
    paths = [str(path) for path in rows["relative_im_path"]]
    return _columns(paths, [int(c) for c in rows["class"]], names, [bool(t) for t in rows["test"]])


def _devkit(root: Path) -> Columns:
    kit = root / "devkit" if (root / "devkit").is_dir() else root
    names = [str(n) for n in np.atleast_1d(load_mat(kit / "cars_meta.mat")["class_names"])]
    labeled = [p / "cars_test_annos_withlabels.mat" for p in (root, kit)]
    files = [("cars_train", kit / "cars_train_annos.mat", False)]
    files += [("cars_test", path, True) for path in labeled if path.exists()][:1]
    paths: list[str] = []
    classes: list[int] = []
    tests: list[bool] = []
    for folder, path, test in files:
        rows = np.atleast_1d(load_mat(path)["annotations"])
        paths += [f"{folder}/{name}" for name in rows["fname"]]
        classes += [int(c) for c in rows["class"]]
        tests += [test] * len(rows)
    return _columns(paths, classes, names, tests)
