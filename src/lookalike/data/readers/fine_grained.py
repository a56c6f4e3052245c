"""Fine-grained data sets: CUB-200-2011, Stanford Cars, FGVC-Aircraft, Stanford Dogs.

Boxes and parts are ignored: retrieval uses whole images. `class_id` keeps the official order of the classes,
which the retrieval halves of CUB and Cars follow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lookalike.data.readers.base import Rows, csv_rows, layout, load_mat, pairs


@layout(
    "cub",
    "CUB-200-2011",
    marks=[("images.txt", "image_class_labels.txt", "train_test_split.txt", "images")],
    inside=["CUB_200_2011", "CUB-200-2011"],
)
def read_cub(root: Path) -> Rows:
    """Read CUB-200-2011 from its four lists by image number."""
    labels, names, train = (pairs(root / f"{n}.txt") for n in ("image_class_labels", "classes", "train_test_split"))
    for key, path in pairs(root / "images.txt").items():
        yield f"images/{path}", names[labels[key]], int(labels[key]), "train" if train[key] == "1" else "test"


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
def read_cars(root: Path) -> Rows:
    """Read Stanford Cars as one merged list, as the development kit, or as class folders with `split.csv`."""
    if (root / "split.csv").exists():
        named = {row["class"]: row["name"] for row in csv_rows(root / "classes.csv")}
        for r in csv_rows(root / "split.csv"):
            yield r["path"], named[r["class"]], int(r["class"]), r["official_split"]
        return
    if (root / "cars_annos.mat").exists():
        mat = load_mat(root / "cars_annos.mat")
        rows = np.atleast_1d(mat["annotations"])
        parts = [("", "relative_im_path", rows, np.where(rows["test"], "test", "train"))]
    else:
        kit = root / "devkit" if (root / "devkit").is_dir() else root
        mat = load_mat(kit / "cars_meta.mat")
        labeled = [path / "cars_test_annos_withlabels.mat" for path in (root, kit)]
        files = [("train", kit / "cars_train_annos.mat"), *[("test", p) for p in labeled if p.exists()][:1]]
        loaded = [(split, np.atleast_1d(load_mat(path)["annotations"])) for split, path in files]
        parts = [(f"cars_{split}/", "fname", rows, np.full(len(rows), split)) for split, rows in loaded]
    names = [str(name) for name in np.atleast_1d(mat["class_names"])]
    for folder, column, rows, splits in parts:
        for path, number, split in zip(rows[column], rows["class"], splits, strict=True):
            yield f"{folder}{path}", names[int(number) - 1], int(number), str(split)


@layout(
    "aircraft",
    "FGVC-Aircraft",
    marks=[("images_variant_test.txt", "images")],
    inside=["data", "fgvc-aircraft-2013b/data"],
    columns="path label coarse manufacturer split",
)
def read_aircraft(root: Path) -> Rows:
    """Read FGVC-Aircraft: variants as labels, families as coarse labels, manufacturers as a further column."""
    for split in ("train", "val", "test"):
        files = [root / f"images_{kind}_{split}.txt" for kind in ("variant", "family", "manufacturer")]
        variants, families, makers = (pairs(path) if path.exists() else {} for path in files)
        for image, variant in variants.items():
            yield f"images/{image}.jpg", variant, families.get(image), makers.get(image), split


@layout(
    "dogs",
    "Stanford Dogs",
    marks=[("train_list.mat", "test_list.mat"), ("lists/train_list.mat", "lists/test_list.mat")],
    inside=["stanford_dogs", "StanfordDogs"],
)
def read_dogs(root: Path) -> Rows:
    """Read Stanford Dogs: two MATLAB lists over one folder per breed."""
    lists = root / "lists" if (root / "lists").is_dir() else root
    images = next((name for name in ("Images", "images") if (root / name).is_dir()), "Images")
    for split in ("train", "test"):
        mat = load_mat(lists / f"{split}_list.mat")
        for path, number in zip(np.atleast_1d(mat["file_list"]), np.atleast_1d(mat["labels"]), strict=True):
            yield f"{images}/{path}", str(path).partition("/")[0].partition("-")[2], int(number), split
