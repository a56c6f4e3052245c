"""The images of an evaluation, without those that trained a model; percentages on such images carry a warning."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.progress import say, track
from lookalike.core.run import Run
from lookalike.evaluation.arrays import Bools, Ints, as_codes

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
        return any(image.split for images in self.images.values() for image in images)

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
        others = [any(i.content and i.row_id not in (None, row_id) for i in images) for row_id, images in rows]
        unclear = [i for i, (row_id, _) in enumerate(rows) if others[i] and row_id not in contents]
        contents |= zip((rows[i][0] for i in unclear), _content_ids(table, unclear, progress), strict=True)
        splits, made = [], []
        for row_id, images in rows:
            same = [i for i in images if i.row_id in (None, row_id) or i.content in (None, contents.get(row_id))]
            made.append(next((image.made for image in same if image.made), ""))
            splits.append(made[-1] or (same[-1].split if same else None))
        return splits, made


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


@dataclass(frozen=True)
class Overlap:
    """Images that trained one of the evaluated models, or chose its best step."""

    evaluated: int
    trained: int
    models: list[str]  # that were trained on them
    unknown: list[str]  # models whose training images are not known
    left_out: bool
    identical: bool = False  # the two models are one

    def message(self, figure: str = "", *, verb: str = "measured") -> str:
        """Say which images were left out, with a figure on the others; empty if no image trained a model."""
        lines = ["Both are the same model."] if self.identical else []
        lines += [f"It is not known which images trained {name}." for name in self.unknown]
        if self.trained:
            images = self.evaluated + self.trained * self.left_out
            text = f"{self.trained:,} of these {images:,} images trained {' or '.join(self.models)}"
            rest = f"on the other {self.evaluated:,}"
            rest = f"{rest}: {figure}" if figure else f"{verb} {rest}"
            lines.append(f"{text}; {rest}." if self.left_out else f"{text}, so its figures are too high.")
        return " ".join(lines)


@dataclass(frozen=True)
class EvaluatedImages:
    """The images to evaluate, and those that only classify them."""

    table: Table
    labels: Ints | Bools
    names: list[str]
    evaluated: Bools
    known: list[KnownImages | None]  # what is known of each model's training
    made: Any  # (models, images): the split of an image that made the model, else empty
    left_out: Any  # the same of images that are not evaluated because they made a model
    include_trained: bool
    copies: bool  # leave copies out of each other's hits
    hint: str  # for errors: how many images are left out

    @cached_property
    def ids(self) -> Ints | None:
        """Content ids, by which copies are left out."""
        return as_codes(self.table.column("content_id"), len(self.table), "content ids") if self.copies else None

    def take(self, rows: Bools) -> EvaluatedImages:
        some: dict[str, Any] = {"table": self.table.take(rows), "labels": self.labels[rows]}
        return replace(self, evaluated=self.evaluated[rows], made=self.made[:, rows], **some)

    def overlap(self, names: list[str], *, identical: bool = False) -> Overlap:
        trained = (self.made[:, self.evaluated] if self.include_trained else self.left_out) != ""
        trained_models = [name for name, rows in zip(names, trained, strict=True) if rows.any()]
        unknown = [name for name, images in zip(names, self.known, strict=True) if images is None]
        counts = int(self.evaluated.sum()), int(trained.any(0).sum())
        return Overlap(*counts, trained_models, unknown, not self.include_trained, identical)


def select_images(
    data: str | Path | Table,
    sources: Sequence[Any],
    *,
    weights: str | Path | None = None,
    layout: str,
    split: str | None,
    copies: bool,
    include_trained: bool,
    with_train: bool = False,
    progress: bool,
) -> EvaluatedImages:
    """Read the images, and find those that trained one of the models.

    Without `include_trained` no image that trained a model is evaluated. Those of the table's split `train` may be
    added `with_train`, to classify by.
    """
    import pyarrow

    from lookalike.data import read_table

    known = [known_images(source) for source in sources]
    if weights is not None:
        known[-1] = None  # a file with weights says nothing of its training
    table = read_table(data, layout=layout)
    find: dict[str, Any] = {"contents": {}, "progress": progress}
    selected = np.ones(len(table), bool)
    own_split = table.has("split")
    if split is None and own_split and not include_trained:
        split = default_split(table)
    if split not in (None, "all"):
        marked, images = table, next((images for images in reversed(known) if images and images.has_splits), None)
        if not own_split and images and any(splits := images.find(table, **find)[0]):
            marked = table.with_column("split", pyarrow.array(splits, pyarrow.string()))
        selected = np.isin(table.column("row_id"), read_table(marked, split=split).column("row_id"))
    made = np.full((len(known), len(table)), "", dtype="<U5")
    for rows, images in zip(made, known, strict=True):
        if images is not None:
            rows[selected] = images.find(table.take(selected), **find)[1]
    evaluated = selected if include_trained else selected & (made == "").all(0)
    if selected.any() and not evaluated.any():
        raise LookalikeError(
            f"A model was trained on all {selected.sum():,} images, or chosen by them: give other images, or --all to "
            "measure on these."
        )
    rows = evaluated
    if with_train and own_split and not evaluated.all():
        rows = evaluated | (table.column("split") == "train")
    left_out = made[:, selected & ~evaluated]
    count = left_out.shape[1]
    hint = f" {count:,} images that trained a model are left out; --all includes them." if count else ""
    table, labels, names = _labels(table.take(rows), copies, hint)
    overlap = known, made[:, rows], left_out, include_trained
    return EvaluatedImages(table, labels, names, evaluated[rows], *overlap, copies, hint)


def default_split(table: Table) -> str | None:
    """Return the split to measure on: the table's own test split, or its validation split; None for all images."""
    from lookalike.data.readers.columns import split_counts, unused_split

    there = set(table.column("split"))
    own = next((name for name in ("test", "val") if name in there), None)
    if own is None or "train" not in there:
        if unused := unused_split(table):
            say(unused)
        return None
    counts = split_counts(table.column("split"))
    say(f"`{table.name}` has a split of its own ({counts}): measured on `{own}`; --split all measures on every image.")
    return own


def _labels(table: Table, copies: bool, hint: str) -> tuple[Table, Ints | Bools, list[str]]:
    """The labels and class names; with `copies` the table gets content ids."""
    import pyarrow

    from lookalike.data import audit
    from lookalike.data.readers.columns import hint as column_hint

    if copies and not table.has("content_id"):
        audited = audit(table, near=False).table
        ids = dict(zip(audited.column("row_id"), audited.column("content_id"), strict=True))
        table = table.with_column("content_id", [ids.get(row_id) for row_id in table.column("row_id")])
    if not table.has("label"):
        raise LookalikeError(
            f"`{table.name}` has no labels: give a folder with one subfolder per class, or a table."
            f"{column_hint(table, 'label')}"
        )
    multilabel = pyarrow.types.is_list(table.arrow["label"].type)
    labels, names = table.label_matrix() if multilabel else table.labels()
    if len(names) < 2:
        what = "1 class, so that every hit would be right" if names else "no labels"
        raise LookalikeError(f"`{table.name}` holds {what}; evaluation needs at least 2 classes.{hint}")
    return table, labels, names
