"""Which images a model was trained on, as far as that is known: percentages are to be checked on others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core import folders
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.run import Run

if TYPE_CHECKING:
    from lookalike.data import Table

FILE = "trained.json"  # in a model folder that has left its run
SEEN = "The percentages were checked on images the model was trained on, so they may be too high."
UNKNOWN = "It is not known whether the model was trained on these images; if it was, the percentages may be too high."


def mark(row: str, size: int | None) -> str:
    """What an image is known again by, also when the whole collection has moved: its folder, its name and its size."""
    return hash_bytes(*row.rsplit("/", 2)[-2:], str(size))


def marks_of(table: Table) -> frozenset[str]:
    """Marks of all rows."""
    sizes = table.arrow["size"].to_pylist() if table.has("size") else [None] * len(table)
    return frozenset(map(mark, table.arrow["row_id"].to_pylist(), sizes))


def trained_on(model: Any) -> frozenset[str] | None:
    """Marks of the images that a model (or its name, folder or run) was trained on: none for public weights.

    None where it cannot be known: a trained model without its run, or weights of the user's own.
    """
    if not isinstance(model, (str, os.PathLike)):
        return _public(getattr(model, "parent", None), getattr(model, "card", {}))
    for path in (Path(model), folders.runs() / model):
        if not path.is_dir():
            continue
        if (path / FILE).is_file():
            kept = read_json(path / FILE, "list of training images")["marks"]
            return None if kept is None else frozenset(kept)
        for place in (path, path.parent):
            if Run.is_run(place):
                return _of_run(Run(place))
        if (path / "config.json").is_file():
            config = read_json(path / "config.json", "model's configuration")
            return _public(config.get("parent"), config.get("card", {}))
    return None if Path(model).is_absolute() else frozenset()


def note(model: Any, table: Table) -> str:
    """What must be said of a model's percentages that were checked on some images."""
    seen = trained_on(model)
    if not seen:
        return UNKNOWN if seen is None else ""
    return "" if seen.isdisjoint(marks_of(table)) else SEEN


def _public(parent: str | None, card: dict[str, Any]) -> frozenset[str] | None:
    own = "own file" in card.get("license", "")
    return None if parent or card.get("method") or own else frozenset()


def _of_run(run: Run) -> frozenset[str] | None:
    """The training side of the run's images, and what its starting model was trained on before."""
    from lookalike.data import Table

    place = run.path / "table.parquet"
    table = Table.load(place) if place.is_file() else None
    if table is None or not table.has("split"):
        return None
    before = trained_on(run.config["model"]["name"])
    own = marks_of(table.take(table.column("split") == "train"))
    return None if before is None else before | own
