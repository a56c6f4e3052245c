"""Data sets with several domains: PACS, DomainNet-126, VisDA-C."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import Columns, from_rows, layout, path_label, scan_folders

_PACS = ("art_painting", "cartoon", "photo", "sketch")
_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def _domain_folders(root: Path, *domains: str) -> Columns:
    """Read all images of `<domain>/<class>/`."""
    columns = scan_folders(root, *domains)
    parts = [path.split("/") for path in columns["path"].to_pylist()]
    return {**columns, "domain": [p[0] for p in parts], "label": [p[1] if len(p) > 2 else None for p in parts]}


@layout("pacs", "PACS", marks=[_PACS], inside=["PACS", "pacs_data", "kfold", "PACS/kfold"])
def read_pacs(root: Path) -> Columns:
    """Read `<domain>/<class>/`; the published lists, if present, give train and val (their `test` is everything)."""
    columns = _domain_folders(root, *_PACS)
    splits: dict[str, str] = {}
    published = "Train val splits and h5py files pre-read"
    for place in (".", "pacs_label", "splits", "image_list", published, f"../{published}"):
        for domain in _PACS:
            for name, split in (("train", "train"), ("crossval", "val")):
                file = root / place / f"{domain}_{name}_kfold.txt"
                if file.exists():
                    splits |= {path: split for path, _ in path_label(file)}
    return {**columns, "split": [splits.get(path) for path in columns["path"].to_pylist()]} if splits else columns


@layout(
    "domainnet",
    "DomainNet-126",
    marks=[
        ("real_list.txt",),
        ("sketch_list.txt",),
        ("image_list/real_list.txt",),
        ("image_list/sketch_list.txt",),
        ("real_train.txt", "real"),
        ("sketch_train.txt", "sketch"),
        ("clipart", "painting", "real", "sketch"),
    ],
    inside=["domainnet-126", "DomainNet-126"],
)
def read_domainnet(root: Path) -> Columns:
    """Read `<domain>_list.txt`, or `_train` and `_test` lists, or else all of `<domain>/<class>/`."""
    lists = root / "image_list" if (root / "image_list").is_dir() else root
    kinds = (("list", None), ("train", "train"), ("test", "test"))
    named = [(lists / f"{domain}_{name}.txt", domain, split) for domain in _DOMAINNET for name, split in kinds]
    files = [one for one in named if one[0].exists()]
    if not files:
        return _domain_folders(root, *(domain for domain in _DOMAINNET if (root / domain).is_dir()))
    rows = (
        (path, _folder(path, 1, file), int(number), domain, split)
        for file, domain, split in files
        for path, number in path_label(file)
    )
    return from_rows("path label class_id domain split", rows)


@layout(
    "visda",
    "VisDA-C",
    marks=[
        ("train/image_list.txt", "validation/image_list.txt"),
        ("train_list.txt", "validation_list.txt", "train", "validation"),
    ],
    inside=["VISDA-C", "visda", "visda17"],
)
def read_visda(root: Path) -> Columns:
    """Read rendered images as the training split, photographs as validation and test splits."""
    names: dict[int, str] = {}
    splits = {"train": ("synthetic", "train"), "validation": ("real", "val"), "test": ("real", "test")}

    def rows() -> Iterator[tuple[Any, ...]]:
        for folder, sides in splits.items():
            inner, outer = root / folder / "image_list.txt", root / f"{folder}_list.txt"
            file = inner if inner.exists() else outer
            for path, number in path_label(file) if file.exists() else ():
                path = path.removeprefix(f"{folder}/")
                if folder != "test":  # the test images lie in folders named trunk00, trunk01, …
                    names.setdefault(int(number), _folder(path, 0, file))
                yield f"{folder}/{path}", int(number), *sides

    out = from_rows("path class_id domain split", rows())
    return {**out, "label": [names.get(number, str(number)) for number in out.get("class_id", ())]}


def _folder(path: str, place: int, file: Path) -> str:
    parts = path.split("/")
    if len(parts) <= place + 1:
        raise LookalikeError(f"`{file}` names `{path}`, which does not lie in a folder of its class.")
    return parts[place]
