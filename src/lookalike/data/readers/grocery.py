"""Grocery Store: `path, fine, coarse` lists, names in `classes.csv`.

Images were taken in series, and those of one series look almost alike. The official test images come from other
series: they ask, and the others are what they can find.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.readers.base import Columns, csv_rows, layout, lines

_FINE, _COARSE = ("Class Name (str)", "Class ID (int)"), ("Coarse Class Name (str)", "Coarse Class ID (int)")


@layout(
    "grocery",
    "Grocery Store",
    marks=[("train.txt", "test.txt", "classes.csv", "train", "test")],
    inside=["dataset", "GroceryStoreDataset/dataset"],
)
def read(root: Path) -> Columns:
    rows = csv_rows(root / "classes.csv")
    fine, coarse = ({row[number].strip(): row[name].strip() for row in rows} for name, number in (_FINE, _COARSE))
    names = ("path", "label", "coarse", "class_id", "split", "is_query", "is_gallery")
    out: Columns = {name: [] for name in names}
    for split in ("train", "val", "test"):
        file = root / f"{split}.txt"
        for line in lines(file) if file.exists() else ():
            path, one, group = (part.strip() for part in line.rsplit(",", 2))
            out["path"].append(path)
            out["label"].append(fine[one])
            out["coarse"].append(coarse[group])
            out["class_id"].append(int(one))
            out["split"].append(split)
            out["is_query"].append(split == "test")
            out["is_gallery"].append(split != "test")
    return out
