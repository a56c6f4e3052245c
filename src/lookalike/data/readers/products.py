"""Data sets of products: Stanford Online Products, In-Shop Clothes Retrieval, DeepFashion2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookalike.core.files import read_json
from lookalike.data.readers.base import Columns, boxes, layout, lines
from lookalike.data.table import natural_key


@layout(
    "sop",
    "Stanford Online Products",
    marks=[("Ebay_train.txt", "Ebay_test.txt")],
    inside=["Stanford_Online_Products"],
)
def read_sop(root: Path) -> Columns:
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
    """Queries and gallery of the test items; boxes where their list is there (docs/decisions/0012)."""
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
            out |= boxes(corners.get(image) for image in images)
            break
    return out


@layout(
    "deepfashion2",
    "DeepFashion2",
    marks=[("train/annos", "train/image"), ("validation/annos", "validation/image")],
    inside=["DeepFashion2"],
)
def read_deepfashion2(root: Path) -> Columns:
    """One row a garment. Garments of one pair and one style above 0 are the same; users' photos ask, shops' answer."""
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
    return out | boxes(corners)
