"""ImageNet and Tiny-ImageNet: a folder a synset to train on, lists or folders to validate on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import Columns, csv_rows, layout, lines, pairs, scanned
from lookalike.data.readers.cars import load_mat

_SYNSET = "n" + "[0-9]" * 8


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
def read_tiny(root: Path) -> Columns:
    """The official layout, and the one with a folder a synset for validation too; unlabeled test images stay out."""
    columns = scanned(root, "train", "val")
    lists = root / "val" / "val_annotations.txt"
    answers = dict(line.split("\t")[:2] for line in lines(lists)) if lists.exists() else {}
    columns["split"] = pc.list_element(pc.split_pattern(columns["path"], "/", max_splits=1), 0)
    columns["label"] = _synsets(columns["path"], answers, str(root))
    if (root / "classes.csv").exists():
        words = {row["wnid"]: row["words"] for row in csv_rows(root / "classes.csv")}
    elif (root / "words.txt").exists():
        words = dict(line.split("\t", 1) for line in lines(root / "words.txt"))
    else:
        words = {}
    return columns | _words(columns["label"], words)


@layout(
    "imagenet",
    "ImageNet (ILSVRC 2012)",
    marks=[(f"train/{_SYNSET}", "val"), ("LOC_synset_mapping.txt", "ILSVRC/Data/CLS-LOC")],
)
def read(root: Path) -> Columns:
    """`train/<synset>/`, and `val/` in folders too, or flat with `LOC_val_solution.csv` or the development kit."""
    base = root / "ILSVRC" / "Data" / "CLS-LOC"
    prefix = "ILSVRC/Data/CLS-LOC/" if base.is_dir() else ""
    columns = scanned(root, *(f"{prefix}{name}" for name in ("train", "val") if (root / prefix / name).is_dir()))
    solution = root / "LOC_val_solution.csv"
    answers = _development_kit(root)
    if solution.exists():
        for row in csv_rows(solution):
            answers[f"{row['ImageId']}.JPEG"] = row["PredictionString"].split()[0]
    place = prefix.count("/")
    columns["split"] = pc.list_element(pc.split_pattern(columns["path"], "/", max_splits=place + 1), place)
    columns["label"] = _synsets(columns["path"], answers, str(root), place)
    mapping = root / "LOC_synset_mapping.txt"
    return columns | _words(columns["label"], pairs(mapping) if mapping.exists() else {})


def _development_kit(root: Path) -> dict[str, str]:
    """The synset of every validation image, by its number, as the official kit has it."""
    for place in (root / "ILSVRC2012_devkit_t12" / "data", root / "devkit" / "data"):
        truth, meta = place / "ILSVRC2012_validation_ground_truth.txt", place / "meta.mat"
        if truth.exists() and meta.exists():
            rows = np.atleast_1d(load_mat(meta)["synsets"])
            synsets = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
            return {f"ILSVRC2012_val_{i:08}.JPEG": synsets[int(n)] for i, n in enumerate(lines(truth), 1)}
    return {}


def _synsets(paths: pa.Array, answers: dict[str, str], source: str, place: int = 0) -> pa.Array:
    """The synset of every path: the folder below the split, else what the list of answers says."""
    out: list[str] = []
    for path in paths.to_pylist():
        parts = path.split("/")
        synset = answers.get(parts[-1]) or (parts[place + 1] if len(parts) > place + 2 else None)
        if synset is None or synset == "images":
            raise LookalikeError(
                f"`{source}` does not say what `{path}` shows: its list of validation labels is missing."
            )
        out.append(synset)
    return pa.array(out, pa.string())


def _words(labels: pa.Array, words: dict[str, Any]) -> Columns:
    """A facet `words` with what a synset means."""
    if not words:
        return {}
    encoded = labels.dictionary_encode()
    names = pa.array([words.get(name) for name in encoded.dictionary.to_pylist()], pa.string())
    return {"words": names.take(encoded.indices)}
