"""Classification: CUB-200-2011, Stanford Cars and Dogs, FGVC-Aircraft, ImageNet, Tiny-ImageNet, VOC 2007, MIT-67.

Boxes and parts are ignored: retrieval uses whole images. `class_id` keeps the official order of the classes, which the
retrieval halves of CUB and Cars follow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_bytes
from lookalike.data.readers.base import Columns, Rows, csv_rows, layout, lines, load_mat, pairs, scan_folders

MAX_ANNOTATION = 10_000_000  # bytes of the objects of one image
_SYNSET = "n" + "[0-9]" * 8


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


@layout(
    "tiny-imagenet",
    "Tiny-ImageNet",
    marks=[
        ("val/val_annotations.txt", "train"),
        ("wnids.txt", "train", "val"),
        ("classes.csv", f"train/{_SYNSET}", f"val/{_SYNSET}"),
    ],
    inside=["tiny-imagenet-200"],
)
def read_tiny_imagenet(root: Path) -> Columns:
    """Read Tiny-ImageNet as published, or with one folder per synset for validation too; test images have no labels."""
    columns = scan_folders(root, "train", "val")
    lists = root / "val" / "val_annotations.txt"
    val_labels = dict(line.split("\t")[:2] for line in lines(lists)) if lists.exists() else {}
    columns["split"] = pc.list_element(pc.split_pattern(columns["path"], "/", max_splits=1), 0)
    columns["label"] = _synsets(columns["path"], val_labels, str(root))
    words: dict[str, str] = {}
    if (root / "classes.csv").exists():
        words = {row["wnid"]: row["words"] for row in csv_rows(root / "classes.csv")}
    elif (root / "words.txt").exists():
        words = dict(line.split("\t", 1) for line in lines(root / "words.txt"))
    return columns | _words(columns["label"], words)


@layout(
    "imagenet",
    "ImageNet (ILSVRC 2012)",
    marks=[(f"train/{_SYNSET}", "val"), ("LOC_synset_mapping.txt", "ILSVRC/Data/CLS-LOC")],
)
def read_imagenet(root: Path) -> Columns:
    """Read `train/<synset>/` and `val/`: in folders, or flat with `LOC_val_solution.csv` or the development kit."""
    base = root / "ILSVRC" / "Data" / "CLS-LOC"
    prefix = "ILSVRC/Data/CLS-LOC/" if base.is_dir() else ""
    columns = scan_folders(root, *(f"{prefix}{name}" for name in ("train", "val") if (root / prefix / name).is_dir()))
    solution = root / "LOC_val_solution.csv"
    val_labels = _development_kit(root)
    if solution.exists():
        for row in csv_rows(solution):
            val_labels[f"{row['ImageId']}.JPEG"] = row["PredictionString"].split()[0]
    place = prefix.count("/")
    columns["split"] = pc.list_element(pc.split_pattern(columns["path"], "/", max_splits=place + 1), place)
    columns["label"] = _synsets(columns["path"], val_labels, str(root), place)
    mapping = root / "LOC_synset_mapping.txt"
    return columns | _words(columns["label"], pairs(mapping) if mapping.exists() else {})


def _development_kit(root: Path) -> dict[str, str]:
    """Return the synset of every validation image, by its file name, from the official development kit."""
    for place in (root / "ILSVRC2012_devkit_t12" / "data", root / "devkit" / "data"):
        truth, meta = place / "ILSVRC2012_validation_ground_truth.txt", place / "meta.mat"
        if truth.exists() and meta.exists():
            rows = np.atleast_1d(load_mat(meta)["synsets"])
            synsets = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
            return {f"ILSVRC2012_val_{i:08}.JPEG": synsets[int(n)] for i, n in enumerate(lines(truth), 1)}
    return {}


def _synsets(paths: pa.Array, val_labels: dict[str, str], source: str, place: int = 0) -> pa.Array:
    """Return the synset of every path: the folder below the split, or what the list of validation labels says."""
    out: list[str] = []
    for path in paths.to_pylist():
        parts = path.split("/")
        synset = val_labels.get(parts[-1]) or (parts[place + 1] if len(parts) > place + 2 else None)
        if synset is None or synset == "images":
            raise LookalikeError(f"`{source}` has no label for `{path}`: its list of validation labels is missing.")
        out.append(synset)
    return pa.array(out, pa.string())


def _words(labels: pa.Array, words: dict[str, Any]) -> Columns:
    """Return a column `words` with what each synset means."""
    if not words:
        return {}
    encoded = labels.dictionary_encode()
    names = pa.array([words.get(name) for name in encoded.dictionary.to_pylist()], pa.string())
    return {"words": names.take(encoded.indices)}


@layout(
    "voc07",
    "PASCAL VOC 2007",
    marks=[("JPEGImages", "Annotations", "ImageSets/Main")],
    inside=["VOC2007", "VOCdevkit/VOC2007"],
    columns="path label difficult split",
)
def read_voc07(root: Path) -> Rows:
    """Read PASCAL VOC 2007: several labels per image, from the annotations.

    `label` has the classes of all clearly visible objects, `difficult` those that only difficult objects have.
    The official metric leaves an image out of the classes that are difficult in it.
    """
    lists = root / "ImageSets" / "Main"
    halves = (lists / "train.txt").exists() and (lists / "val.txt").exists()
    splits = {"train": "train", "val": "val", "test": "test"} if halves else {"trainval": "train", "test": "test"}
    for name, split in splits.items():
        file = lists / f"{name}.txt"
        for line in lines(file) if file.exists() else ():
            image = line.split()[0]
            objects = read_voc_objects(root / "Annotations" / f"{image}.xml")
            plain = {name for name, difficult in objects if not difficult}
            yield f"JPEGImages/{image}.jpg", sorted(plain), sorted({name for name, _ in objects} - plain), split


def read_voc_objects(path: Path) -> list[tuple[str, bool]]:
    """Return name and difficulty of every object; a document type is refused, so no entity can be defined."""

    class Annotation(ElementTree.TreeBuilder):
        def doctype(self, *_: object) -> None:
            raise LookalikeError(f"`{path}` declares a document type; annotations with one are not read.")

    try:
        data = read_bytes(path, limit=MAX_ANNOTATION)
        # Without a document type there are no entities that could grow.
        parser = ElementTree.XMLParser(target=Annotation())  # nosec B314
        objects = ElementTree.fromstring(data, parser).findall("object")  # nosec B314
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise LookalikeError(f"The annotation `{path}` {reason}.") from None
    except ElementTree.ParseError as error:
        raise LookalikeError(f"The annotation `{path}` is damaged: {error}.") from None
    return [(one.findtext("name", "").strip(), one.findtext("difficult", "").strip() == "1") for one in objects]


@layout("mit-67", "MIT-67 indoor scenes", marks=[("TrainImages.txt", "TestImages.txt")], columns="path label split")
def read_mit67(root: Path) -> Rows:
    """Read MIT-67: two lists over one folder per class."""
    folder = next((f"{name}/" for name in ("Images", "images") if (root / name).is_dir()), "")
    for split in ("train", "test"):
        for path in map(str.strip, lines(root / f"{split.title()}Images.txt")):
            yield folder + path, path.partition("/")[0], split
