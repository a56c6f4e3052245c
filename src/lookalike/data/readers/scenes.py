"""MIT-67 (indoor scenes): two lists over a folder a class."""

from __future__ import annotations

from pathlib import Path

from lookalike.data.readers.base import Columns, layout, lines


@layout("mit-67", "MIT-67 indoor scenes", marks=[("TrainImages.txt", "TestImages.txt")])
def read(root: Path) -> Columns:
    folder = next((f"{name}/" for name in ("Images", "images") if (root / name).is_dir()), "")
    out: Columns = {"path": [], "label": [], "split": []}
    for split, file in (("train", "TrainImages.txt"), ("test", "TestImages.txt")):
        for line in lines(root / file):
            path = line.strip()
            out["path"].append(folder + path)
            out["label"].append(path.partition("/")[0])
            out["split"].append(split)
    return out
