"""Data sets with several domains: PACS, DomainNet-126, VisDA-C."""

from __future__ import annotations

from pathlib import Path

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import Columns, layout, path_label, scan_folders

_PACS = ("art_painting", "cartoon", "photo", "sketch")
_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


@layout("pacs", "PACS", marks=[_PACS], inside=["PACS", "pacs_data", "kfold", "PACS/kfold"])
def read_pacs(root: Path) -> Columns:
    """Read `<domain>/<class>/`; the published lists, if present, give train and val (their `test` is everything)."""
    columns = scan_folders(root, *_PACS)
    parts = [path.split("/") for path in columns["path"].to_pylist()]
    columns["domain"] = [p[0] for p in parts]
    columns["label"] = [p[1] if len(p) > 2 else None for p in parts]
    splits: dict[str, str] = {}
    published = "Train val splits and h5py files pre-read"
    for place in (root / name for name in (".", "pacs_label", "splits", "image_list", published, f"../{published}")):
        for domain in _PACS:
            for name, split in (("train", "train"), ("crossval", "val")):
                file = place / f"{domain}_{name}_kfold.txt"
                if file.exists():
                    splits |= {path: split for path, _ in path_label(file)}
    if splits:
        columns["split"] = [splits.get("/".join(p)) for p in parts]
    return columns


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
    out: Columns = {"path": [], "label": [], "class_id": [], "domain": [], "split": []}
    lists = root / "image_list" if (root / "image_list").is_dir() else root
    if not any(
        (lists / f"{domain}_{name}.txt").exists() for domain in _DOMAINNET for name in ("list", "train", "test")
    ):
        columns = scan_folders(root, *(domain for domain in _DOMAINNET if (root / domain).is_dir()))
        parts = [path.split("/") for path in columns["path"].to_pylist()]
        return {**columns, "label": [p[1] if len(p) > 2 else None for p in parts], "domain": [p[0] for p in parts]}
    for domain in _DOMAINNET:
        for name, split in (("list", None), ("train", "train"), ("test", "test")):
            file = lists / f"{domain}_{name}.txt"
            for path, number in path_label(file) if file.exists() else ():
                out["path"].append(path)
                out["label"].append(_folder(path, 1, file))
                out["class_id"].append(int(number))
                out["domain"].append(domain)
                out["split"].append(split)
    if not any(out["split"]):
        del out["split"]
    return out


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
    out: Columns = {"path": [], "label": [], "class_id": [], "domain": [], "split": []}
    names: dict[int, str] = {}
    for folder, split, domain in (
        ("train", "train", "synthetic"),
        ("validation", "val", "real"),
        ("test", "test", "real"),
    ):
        inner, outer = root / folder / "image_list.txt", root / f"{folder}_list.txt"
        file = inner if inner.exists() else outer
        for path, number in path_label(file) if file.exists() else ():
            path = path.removeprefix(f"{folder}/")
            if split != "test":  # the test images lie in folders named trunk00, trunk01, …
                names.setdefault(int(number), _folder(path, 0, file))
            out["path"].append(f"{folder}/{path}")
            out["class_id"].append(int(number))
            out["domain"].append(domain)
            out["split"].append(split)
    out["label"] = [names.get(number, str(number)) for number in out["class_id"]]
    return out


def _folder(path: str, place: int, file: Path) -> str:
    parts = path.split("/")
    if len(parts) <= place + 1:
        raise LookalikeError(f"`{file}` names `{path}`, which does not lie in a folder of its class.")
    return parts[place]
