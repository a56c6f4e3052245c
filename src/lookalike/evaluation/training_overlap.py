"""Which images a model was trained on: they are left out of its evaluation, and percentages on them carry a warning."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lookalike.core import folders
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.progress import track
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


class KnownImage(NamedTuple):
    """An image that a model's run knows."""

    row_id: str | None  # None if only its key is known
    content: str | None  # content id
    split: str | None
    made: str  # the split if the image made the model, else empty


@dataclass(frozen=True)
class KnownImages:
    """The images that a model's run knows, by key; images of different folders may have one key.

    A run that kept its starting model has splits, but its own images made nothing.
    """

    images: dict[str, list[KnownImage]] = field(default_factory=dict)

    @property
    def made(self) -> dict[str, str]:
        """The split (`train` or `val`) of the images that made the model, by key."""
        named = {key: {image.made for image in images} for key, images in self.images.items()}
        return {key: split for split in reversed(TRAINED) for key, splits in named.items() if split in splits}

    @property
    def has_splits(self) -> bool:
        return any(image.split for image in chain.from_iterable(self.images.values()))

    def find(
        self, table: Table, contents: dict[str, str | None] | None = None, *, progress: bool = False
    ) -> tuple[list[str | None], list[str]]:
        """Find the images of a table: the split of each, and the split of those that made the model (else empty).

        An image with the same row id is the same one. Under another row id it may have been moved, or only have the
        name and size of another: the pixels decide. Content ids that were computed are stored in ``contents``.
        """
        contents = {} if contents is None else contents
        known = [self.images.get(key, []) for key in image_keys(table)]
        rows = list(zip(table.arrow["row_id"].to_pylist(), known, strict=True))
        for row_id, images in rows:
            contents |= [(row_id, image.content) for image in images if image.row_id == row_id and image.content]
        unclear = [i for i, row in enumerate(rows) if row[0] not in contents and _needs_pixels(*row)]
        contents |= zip((rows[i][0] for i in unclear), _content_ids(table, unclear, progress), strict=True)
        splits, made = [], []
        for row_id, images in rows:
            same = [i for i in images if i.row_id in (None, row_id) or i.content in (None, contents.get(row_id))]
            made.append(next((image.made for image in same if image.made), ""))
            splits.append(made[-1] or (same[-1].split if same else None))
        return splits, made


def _needs_pixels(row_id: str, images: list[KnownImage]) -> bool:
    return any(image.content and image.row_id not in (None, row_id) for image in images)


def _content_ids(table: Table, rows: list[int], progress: bool) -> list[str | None]:
    """The content ids of some rows; None where an image cannot be read."""
    from lookalike.data import content_id
    from lookalike.data.image_reader import read_images

    rows_shown = track(rows, "Comparing with trained images", shown=progress)
    read = read_images(lambda i: content_id(table.open_bytes(i), box=table.box(i)), rows_shown)
    return [value if isinstance(value, str) else None for value in read]


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
            one = [KnownImage(None, None, None, "train")]
            return None if keys is None else KnownImages(dict.fromkeys(keys, one))
        for folder in (path, path.parent):
            if Run.is_run(folder):
                return _of_run(Run(folder), path)
        if (path / "config.json").is_file():
            config = read_json(path / "config.json", "model's configuration")
            return _of_public(config.get("parent"), config.get("card", {}))
    return None if Path(model).is_absolute() else KnownImages()


def training_images(model: Any) -> frozenset[str] | None:
    """Find the keys of the images a model was trained on; None if they cannot be known."""
    known = known_images(model)
    return None if known is None else frozenset(key for key, split in known.made.items() if split == "train")


def overlap_note(known: KnownImages | None, made: Container[str]) -> str:
    """Write the warning, if any, on percentages checked on images that :meth:`KnownImages.find` says ``made`` of."""
    if known is None:
        return UNKNOWN
    return SEEN if "train" in made else ""


def _of_public(parent: str | None, card: dict[str, Any]) -> KnownImages | None:
    own = "own file" in card.get("license", "")
    return None if parent or card.get("method") or own else KnownImages()


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
    beside = model != run.path and model.name == "trained"  # the trained model of a run that kept its starting model
    trained = beside or run.result.get("selected", "trained") == "trained"
    images = defaultdict(list, {key: [*known] for key, known in before.images.items()})
    contents = table.arrow["content_id"].to_pylist() if table.has("content_id") else [None] * len(table)
    columns = table.arrow["row_id"].to_pylist(), contents, table.arrow["split"].to_pylist()
    for key, row_id, content, split in zip(image_keys(table), *columns, strict=True):
        images[key].append(KnownImage(row_id, content, split, split if trained and split in TRAINED else ""))
    return KnownImages(dict(images))
