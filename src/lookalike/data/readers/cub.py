"""CUB-200-2011: four lists by image number. Boxes and parts are left aside: retrieval uses whole images."""

from __future__ import annotations

from pathlib import Path

from lookalike.data.readers.base import Columns, layout, pairs


@layout(
    "cub",
    "CUB-200-2011",
    marks=[("images.txt", "image_class_labels.txt", "train_test_split.txt", "images")],
    inside=["CUB_200_2011", "CUB-200-2011"],
)
def read(root: Path) -> Columns:
    images, labels = pairs(root / "images.txt"), pairs(root / "image_class_labels.txt")
    names, train = pairs(root / "classes.txt"), pairs(root / "train_test_split.txt")
    return {
        "path": [f"images/{path}" for path in images.values()],
        "label": [names[labels[key]] for key in images],
        "class_id": [int(labels[key]) for key in images],
        "split": ["train" if train[key] == "1" else "test" for key in images],
    }
