"""Which images a model was trained on: they are left out of its evaluation, and percentages on them carry a warning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lookalike.core import folders
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.run import Run

if TYPE_CHECKING:
    from lookalike.data import Table

FILE = "training_images.json"  # in a model folder that was copied out of its run
TRAINED = ("train", "val")  # the splits that made the model: its weights, and which step was kept
SEEN = "The percentages were checked on images the model was trained on, so they may be too high."
UNKNOWN = "It is not known whether the model was trained on these images; if it was, the percentages may be too high."


def image_key(row_id: str, size: int | None) -> str:
    """Compute a key of an image that survives moving the collection: a hash of its folder, name and size."""
    return hash_bytes(*row_id.rsplit("/", 2)[-2:], str(size))


def image_keys(table: Table) -> list[str]:
    """Compute the key of each image of a table."""
    sizes = table.arrow["size"].to_pylist() if table.has("size") else [None] * len(table)
    return list(map(image_key, table.arrow["row_id"].to_pylist(), sizes))


class KnownImages(NamedTuple):
    """The images that a model's run knows, by key: their splits, and of those that made the model `train` or `val`.

    A run that kept its starting model has splits, but its own images made nothing.
    """

    splits: dict[str, str]
    made: dict[str, str]


def known_images(model: Any) -> KnownImages | None:
    """Find the images that a model's run knows.

    Empty for public weights. None if it cannot be known: a trained model without its run, or a user's own weights.
    """
    if not isinstance(model, (str, os.PathLike)):
        return _of_public(getattr(model, "parent", None), getattr(model, "card", {}))
    for path in (Path(model), folders.runs() / model):
        if not path.is_dir():
            continue
        if (path / FILE).is_file():
            keys = read_json(path / FILE, "list of training images")["images"]
            return None if keys is None else KnownImages({}, dict.fromkeys(keys, "train"))
        for folder in (path, path.parent):
            if Run.is_run(folder):
                return _of_run(Run(folder), path)
        if (path / "config.json").is_file():
            config = read_json(path / "config.json", "model's configuration")
            return _of_public(config.get("parent"), config.get("card", {}))
    return None if Path(model).is_absolute() else KnownImages({}, {})


def training_images(model: Any) -> frozenset[str] | None:
    """Find the keys of the images a model was trained on; None if they cannot be known."""
    known = known_images(model)
    return None if known is None else frozenset(key for key, split in known.made.items() if split == "train")


def overlap_note(known: KnownImages | None, table: Table) -> str:
    """Write the warning on percentages checked on these images by a model with these :func:`known_images`, if any."""
    if known is None:
        return UNKNOWN
    return SEEN if any(known.made.get(key) == "train" for key in image_keys(table)) else ""


def _of_public(parent: str | None, card: dict[str, Any]) -> KnownImages | None:
    own = "own file" in card.get("license", "")
    return None if parent or card.get("method") or own else KnownImages({}, {})


def _of_run(run: Run, model: Path) -> KnownImages | None:
    """The split of the run; images that made its starting model are training images still."""
    from lookalike.data import Table

    path = run.path / "table.parquet"
    table = Table.load(path) if path.is_file() else None
    if table is None or not table.has("split"):
        return None
    before = known_images(run.config["model"]["name"])
    if before is None:
        return None
    own = dict(zip(image_keys(table), table.arrow["split"].to_pylist(), strict=True))
    beside = model != run.path and model.name == "trained"  # the trained model of a run that kept its starting model
    trained = beside or run.result.get("selected", "trained") == "trained"
    made = {key: split for key, split in own.items() if trained and split in TRAINED} | before.made
    return KnownImages(before.splits | own | before.made, made)
