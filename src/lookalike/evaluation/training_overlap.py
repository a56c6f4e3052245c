"""Which images a model was trained on, so that percentages checked on the same images carry a warning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core import folders
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.run import Run

if TYPE_CHECKING:
    from lookalike.data import Table

FILE = "training_images.json"  # in a model folder that was copied out of its run
SEEN = "The percentages were checked on images the model was trained on, so they may be too high."
UNKNOWN = "It is not known whether the model was trained on these images; if it was, the percentages may be too high."


def image_key(row_id: str, size: int | None) -> str:
    """Compute a key of an image that survives moving the collection: a hash of its folder, name and size."""
    return hash_bytes(*row_id.rsplit("/", 2)[-2:], str(size))


def image_keys(table: Table) -> frozenset[str]:
    """Compute the keys of all images of a table."""
    sizes = table.arrow["size"].to_pylist() if table.has("size") else [None] * len(table)
    return frozenset(map(image_key, table.arrow["row_id"].to_pylist(), sizes))


def training_images(model: Any) -> frozenset[str] | None:
    """Find the keys of the images a model was trained on.

    Args:
        model: An embedder, or the name, folder or run of one.

    Returns:
        The keys; none for public weights. None if it cannot be known: a trained model without its run, or weights
        from a file of the user's.
    """
    if not isinstance(model, (str, os.PathLike)):
        return _of_public(getattr(model, "parent", None), getattr(model, "card", {}))
    for path in (Path(model), folders.runs() / model):
        if not path.is_dir():
            continue
        if (path / FILE).is_file():
            keys = read_json(path / FILE, "list of training images")["images"]
            return None if keys is None else frozenset(keys)
        for folder in (path, path.parent):
            if Run.is_run(folder):
                return _of_run(Run(folder))
        if (path / "config.json").is_file():
            config = read_json(path / "config.json", "model's configuration")
            return _of_public(config.get("parent"), config.get("card", {}))
    return None if Path(model).is_absolute() else frozenset()


def overlap_note(model: Any, table: Table) -> str:
    """Write the warning on percentages that were checked on some images; empty if there is nothing to warn of."""
    seen = training_images(model)
    if not seen:
        return UNKNOWN if seen is None else ""
    return "" if seen.isdisjoint(image_keys(table)) else SEEN


def _of_public(parent: str | None, card: dict[str, Any]) -> frozenset[str] | None:
    own = "own file" in card.get("license", "")
    return None if parent or card.get("method") or own else frozenset()


def _of_run(run: Run) -> frozenset[str] | None:
    """The training images of the run, and those its starting model was trained on before."""
    from lookalike.data import Table

    path = run.path / "table.parquet"
    table = Table.load(path) if path.is_file() else None
    if table is None or not table.has("split"):
        return None
    before = training_images(run.config["model"]["name"])
    own = image_keys(table.take(table.column("split") == "train"))
    return None if before is None else before | own
