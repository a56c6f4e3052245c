"""Stanford Dogs: two MATLAB lists over a folder a breed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lookalike.data.readers.base import Columns, layout
from lookalike.data.readers.cars import load_mat


@layout(
    "dogs",
    "Stanford Dogs",
    marks=[("train_list.mat", "test_list.mat"), ("lists/train_list.mat", "lists/test_list.mat")],
    inside=["stanford_dogs", "StanfordDogs"],
)
def read(root: Path) -> Columns:
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
