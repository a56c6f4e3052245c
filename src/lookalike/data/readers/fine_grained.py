"""Fine-grained data sets: CUB-200-2011, Stanford Cars, FGVC-Aircraft, Stanford Dogs.

Boxes and parts are ignored: retrieval uses whole images. `class_id` keeps the official order of the classes,
which the retrieval halves of CUB and Cars follow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lookalike.data.readers.base import Columns, csv_rows, layout, load_mat, pairs


@layout(
    "cub",
    "CUB-200-2011",
    marks=[("images.txt", "image_class_labels.txt", "train_test_split.txt", "images")],
    inside=["CUB_200_2011", "CUB-200-2011"],
)
def read_cub(root: Path) -> Columns:
    """Read CUB-200-2011 from its four lists by image number."""
    images, labels = pairs(root / "images.txt"), pairs(root / "image_class_labels.txt")
    names, train = pairs(root / "classes.txt"), pairs(root / "train_test_split.txt")
    return {
        "path": [f"images/{path}" for path in images.values()],
        "label": [names[labels[key]] for key in images],
        "class_id": [int(labels[key]) for key in images],
        "split": ["train" if train[key] == "1" else "test" for key in images],
    }


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
def read_cars(root: Path) -> Columns:
    """Read Stanford Cars as one merged list, as the development kit, or as class folders with `split.csv`."""
    if (root / "split.csv").exists():
        return _cars_folders(root)
    if (root / "cars_annos.mat").exists():
        return _cars_merged(root)
    return _cars_devkit(root)


def _cars_folders(root: Path) -> Columns:
    rows = csv_rows(root / "split.csv")
    names = {row["class"]: row["name"] for row in csv_rows(root / "classes.csv")}
    return {
        "path": [row["path"] for row in rows],
        "label": [names[row["class"]] for row in rows],
        "class_id": [int(row["class"]) for row in rows],
        "split": [row["official_split"] for row in rows],
    }


def _cars_columns(paths: list[str], classes: list[int], names: list[str], tests: list[bool]) -> Columns:
    return {
        "path": paths,
        "label": [names[c - 1] for c in classes],
        "class_id": classes,
        "split": ["test" if t else "train" for t in tests],
    }


def _cars_merged(root: Path) -> Columns:
    mat = load_mat(root / "cars_annos.mat")
    rows, names = np.atleast_1d(mat["annotations"]), [str(n) for n in np.atleast_1d(mat["class_names"])]
    paths = [str(path) for path in rows["relative_im_path"]]
    return _cars_columns(paths, [int(c) for c in rows["class"]], names, [bool(t) for t in rows["test"]])


def _cars_devkit(root: Path) -> Columns:
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
    return _cars_columns(paths, classes, names, tests)


@layout(
    "aircraft",
    "FGVC-Aircraft",
    marks=[("images_variant_test.txt", "images")],
    inside=["data", "fgvc-aircraft-2013b/data"],
)
def read_aircraft(root: Path) -> Columns:
    """Read FGVC-Aircraft: variants as labels, families as coarse labels, manufacturers as a further column."""
    out: Columns = {"path": [], "label": [], "coarse": [], "manufacturer": [], "split": []}
    for split in ("train", "val", "test"):
        files = {kind: root / f"images_{kind}_{split}.txt" for kind in ("variant", "family", "manufacturer")}
        if not files["variant"].exists():
            continue
        kinds = {kind: pairs(path) if path.exists() else {} for kind, path in files.items()}
        for image, variant in kinds["variant"].items():
            out["path"].append(f"images/{image}.jpg")
            out["label"].append(variant)
            out["coarse"].append(kinds["family"].get(image))
            out["manufacturer"].append(kinds["manufacturer"].get(image))
            out["split"].append(split)
    return out


@layout(
    "dogs",
    "Stanford Dogs",
    marks=[("train_list.mat", "test_list.mat"), ("lists/train_list.mat", "lists/test_list.mat")],
    inside=["stanford_dogs", "StanfordDogs"],
)
def read_dogs(root: Path) -> Columns:
    """Read Stanford Dogs: two MATLAB lists over one folder per breed."""
    lists = root / "lists" if (root / "lists").is_dir() else root
    images = next((name for name in ("Images", "images") if (root / name).is_dir()), "Images")
    out: Columns = {"path": [], "label": [], "class_id": [], "split": []}
    for split in ("train", "test"):
        mat = load_mat(lists / f"{split}_list.mat")
        files = [str(path) for path in np.atleast_1d(mat["file_list"])]
        out["path"] += [f"{images}/{path}" for path in files]
        out["label"] += [path.partition("/")[0].partition("-")[2] for path in files]
        out["class_id"] += [int(label) for label in np.atleast_1d(mat["labels"])]
        out["split"] += [split] * len(files)
    return out
