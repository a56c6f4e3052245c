"""Product data sets: Stanford Online Products, In-Shop Clothes Retrieval, DeepFashion2, Grocery Store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookalike.core.files import read_json
from lookalike.data.readers.base import Columns, box_columns, csv_rows, layout, lines
from lookalike.data.table import natural_key


@layout(
    "sop",
    "Stanford Online Products",
    marks=[("Ebay_train.txt", "Ebay_test.txt")],
    inside=["Stanford_Online_Products"],
)
def read_sop(root: Path) -> Columns:
    """Read Stanford Online Products; the kind of product is the coarse label."""
    out: Columns = {"path": [], "label": [], "coarse": [], "class_id": [], "split": []}
    for split in ("train", "test"):
        for line in lines(root / f"Ebay_{split}.txt", skip=1):
            _, label, _, path = line.split(maxsplit=3)
            out["path"].append(path)
            out["label"].append(label)
            out["coarse"].append(path.partition("/")[0].removesuffix("_final"))
            out["class_id"].append(int(label))
            out["split"].append(split)
    return out


@layout(
    "in-shop",
    "In-Shop Clothes Retrieval (DeepFashion)",
    marks=[("Eval/list_eval_partition.txt",), ("list_eval_partition.txt",)],
    inside=["In-shop Clothes Retrieval Benchmark"],
)
def read_in_shop(root: Path) -> Columns:
    """Read In-Shop with the queries and the gallery of its test items, and boxes if their list is there."""
    partition = next(p for p in (root / "Eval", root) if (p / "list_eval_partition.txt").exists())
    folder = "Img/" if (root / "Img" / "img").is_dir() else ""
    out: Columns = {name: [] for name in ("path", "label", "coarse", "split", "is_query", "is_gallery")}
    images = []
    for line in lines(partition / "list_eval_partition.txt", skip=2):
        image, item, status = line.split()
        images.append(image)
        out["path"].append(folder + image)
        out["label"].append(item)
        out["coarse"].append("/".join(image.split("/")[1:3]))
        out["split"].append("train" if status == "train" else "test")
        out["is_query"].append(status == "query")
        out["is_gallery"].append(status == "gallery")
    for place in (root / "Anno", root):
        if (place / "list_bbox_inshop.txt").exists():
            corners = {}
            for line in lines(place / "list_bbox_inshop.txt", skip=2):
                image, _, _, *box = line.split()
                corners[image] = [int(n) for n in box]
            out |= box_columns(corners.get(image) for image in images)
            break
    return out


@layout(
    "deepfashion2",
    "DeepFashion2",
    marks=[("train/annos", "train/image"), ("validation/annos", "validation/image")],
    inside=["DeepFashion2"],
)
def read_deepfashion2(root: Path) -> Columns:
    """Read DeepFashion2, one row per garment.

    Garments of one pair with the same style above 0 are the same product. Photos of users are the queries,
    photos of shops the gallery.
    """
    names = ("path", "label", "coarse", "split", "domain", "is_query", "is_gallery", "pair_id", "style", "category_id")
    out: Columns = {name: [] for name in names}
    corners = []
    for folder, split in (("train", "train"), ("validation", "val")):
        for file in sorted((root / folder / "annos").glob("*.json")):
            about: dict[str, Any] = read_json(file, "annotation")
            for key in sorted((k for k in about if k.startswith("item")), key=natural_key):
                item = about[key]
                style = int(item["style"])
                user = about["source"] == "user"
                out["path"].append(f"{folder}/image/{file.stem}.jpg")
                out["label"].append(f"{about['pair_id']}-{style}" if style > 0 else None)
                out["coarse"].append(item["category_name"])
                out["split"].append(split)
                out["domain"].append(about["source"])
                out["is_query"].append(split == "val" and user and style > 0)
                out["is_gallery"].append(split == "val" and not user)
                out["pair_id"].append(int(about["pair_id"]))
                out["style"].append(style)
                out["category_id"].append(int(item["category_id"]))
                corners.append(item["bounding_box"])
    return out | box_columns(corners)


_GROCERY_FINE = ("Class Name (str)", "Class ID (int)")
_GROCERY_COARSE = ("Coarse Class Name (str)", "Coarse Class ID (int)")


@layout(
    "grocery",
    "Grocery Store",
    marks=[("train.txt", "test.txt", "classes.csv", "train", "test")],
    inside=["dataset", "GroceryStoreDataset/dataset"],
)
def read_grocery(root: Path) -> Columns:
    """Read Grocery Store: `path, fine, coarse` lists, with names in `classes.csv`.

    Images were taken in series, and those of one series look almost alike. The official test images come from
    other series: they are the queries, all others the gallery.
    """
    rows = csv_rows(root / "classes.csv")
    fine, coarse = (
        {row[number].strip(): row[name].strip() for row in rows} for name, number in (_GROCERY_FINE, _GROCERY_COARSE)
    )
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
