"""Product data sets: Stanford Online Products, In-Shop Clothes Retrieval, DeepFashion2, Grocery Store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from lookalike.core.files import read_json
from lookalike.data.readers.base import Rows, csv_rows, layout, lines
from lookalike.data.table import natural_key


@layout(
    "sop",
    "Stanford Online Products",
    marks=[("Ebay_train.txt", "Ebay_test.txt")],
    inside=["Stanford_Online_Products"],
    columns="path label coarse class_id split",
)
def read_sop(root: Path) -> Rows:
    """Read Stanford Online Products; the kind of product is the coarse label."""
    for split in ("train", "test"):
        for line in lines(root / f"Ebay_{split}.txt", skip=1):
            _, label, _, path = line.split(maxsplit=3)
            yield path, label, path.partition("/")[0].removesuffix("_final"), int(label), split


_IN_SHOP: dict[str, Any] = {
    "marks": [("Eval/list_eval_partition.txt",), ("list_eval_partition.txt",)],
    "inside": ["In-shop Clothes Retrieval Benchmark"],
    "columns": "path label coarse split is_query is_gallery box",
}
_DEEPFASHION2: dict[str, Any] = {
    "marks": [("train/annos", "train/image"), ("validation/annos", "validation/image")],
    "inside": ["DeepFashion2"],
    "columns": "path label coarse split domain is_query is_gallery pair_id style category_id box",
}


@layout("in-shop", "In-Shop Clothes Retrieval (DeepFashion)", **_IN_SHOP)
def read_in_shop(root: Path, boxes: bool = False) -> Rows:
    """Read In-Shop with the queries and the gallery of its test items: whole images, or the boxes of the clothes."""
    partition = next(p for p in (root / "Eval", root) if (p / "list_eval_partition.txt").exists())
    folder = "Img/" if (root / "Img" / "img").is_dir() else ""
    corners: dict[str, list[int]] = {}
    if boxes:
        file = next((p for p in (root / "Anno", root) if (p / "list_bbox_inshop.txt").exists()), root)
        listed = (line.split() for line in lines(file / "list_bbox_inshop.txt", skip=2))
        corners = {image: [int(n) for n in box] for image, _, _, *box in listed}
    for line in lines(partition / "list_eval_partition.txt", skip=2):
        image, item, status = line.split()
        split, kind = "train" if status == "train" else "test", "/".join(image.split("/")[1:3])
        yield folder + image, item, kind, split, status == "query", status == "gallery", corners.get(image)


@layout("deepfashion2", "DeepFashion2", **_DEEPFASHION2)
def read_deepfashion2(root: Path, by_category: bool = False) -> Rows:
    """Read DeepFashion2, one row per garment.

    Garments of one pair with the same style above 0 (`by_category`: and the same category) are the same product.
    Photos of users are the queries, photos of shops the gallery.
    """
    for folder, split in (("train", "train"), ("validation", "val")):
        for file in sorted((root / folder / "annos").glob("*.json")):
            about: dict[str, Any] = read_json(file, "annotation")
            pair, source = int(about["pair_id"]), about["source"]
            for key in sorted((k for k in about if k.startswith("item")), key=natural_key):
                item = about[key]
                style, path = int(item["style"]), f"{folder}/image/{file.stem}.jpg"
                category = int(item["category_id"])
                product = (pair, category, style) if by_category else (pair, style)
                label = "-".join(map(str, product)) if style > 0 else None
                query, gallery = (split == "val" and (source == "user") == user for user in (True, False))
                facts = (pair, style, category, item["bounding_box"])
                yield path, label, item["category_name"], split, source, query and style > 0, gallery, *facts


layout("in-shop-boxes", "In-Shop, cut out by its boxes", **_IN_SHOP)(partial(read_in_shop, boxes=True))
layout("deepfashion2-category", "DeepFashion2, a class a pair, category and style", **_DEEPFASHION2)(
    partial(read_deepfashion2, by_category=True)
)


@layout(
    "grocery",
    "Grocery Store",
    marks=[("train.txt", "test.txt", "classes.csv", "train", "test")],
    inside=["dataset", "GroceryStoreDataset/dataset"],
    columns="path label coarse class_id split is_query is_gallery",
)
def read_grocery(root: Path) -> Rows:
    """Read Grocery Store: `path, fine, coarse` lists, with names in `classes.csv`.

    Images were taken in series, and those of one series look almost alike. The official test images come from
    other series: they are the queries, all others the gallery.
    """
    classes = csv_rows(root / "classes.csv")
    fine = {row["Class ID (int)"].strip(): row["Class Name (str)"].strip() for row in classes}
    coarse = {row["Coarse Class ID (int)"].strip(): row["Coarse Class Name (str)"].strip() for row in classes}
    for split in ("train", "val", "test"):
        file = root / f"{split}.txt"
        for line in lines(file) if file.exists() else ():
            path, one, group = (part.strip() for part in line.rsplit(",", 2))
            yield path, fine[one], coarse[group], int(one), split, split == "test", split != "test"
