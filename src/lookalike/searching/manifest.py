"""The manifest of an index: its generations, and which one is live; a document in the index's database."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import pydantic

from lookalike.core.database import DamagedDatabase, read_document, write_document
from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, stamp

NAME = "manifest"


class ModelInfo(pydantic.BaseModel):
    """The model that made the vectors.

    Args:
        name: What people call it.
        fingerprint: Hash of its weights and settings.
        parent: Fingerprint of the model it was adapted from.
    """

    name: str
    fingerprint: str
    parent: str | None = None

    @property
    def short(self) -> str:
        """Fingerprint and name as they are shown."""
        return f"{self.fingerprint[:4]} ({self.name})"


class Generation(pydantic.BaseModel):
    """Vectors of all images by one model; another model makes another generation beside it.

    Args:
        number: Number of the generation.
        model: The model.
        preprocess: Its preprocessing.
        decoder: The image decoder; pixels of different decoders are not mixed.
        dim: Embedding dimension.
        store: Name or address of the store.
        created: Time of creation.
        updated: Time of the last update.
        images: Number of images.
        planned: Number of images of the folder when the last run began.
        complete: Whether the last run was finished.
        root: The folder that paths are relative to.
        columns: Columns that can be filtered by.
        writes: Number of finished runs, which tells two states apart.
        supports_text: Whether the model embeds texts too.
        graph: What the store reports about its graph.
        checksums: Checksums of its table and of the files of its model, by name.
    """

    number: int
    model: ModelInfo
    preprocess: dict[str, Any]
    decoder: str = ""
    dim: int
    store: str
    created: str
    updated: str
    images: int = 0
    planned: int = 0
    complete: bool = False
    root: str | None = None
    columns: list[str] = []
    writes: int = 0
    supports_text: bool = False
    graph: dict[str, Any] = {}
    checksums: dict[str, str] = {}


class Manifest(pydantic.BaseModel):
    """The manifest of an index.

    Args:
        name: Name of the index.
        source: The image folder or table file, absolute.
        layout: Its layout.
        split: The split that is indexed.
        root: Folder of the images that the user named besides a table.
        labels: Whether subfolders are classes even if their images hardly look alike.
        exif: Whether date, camera and place are read from EXIF.
        without: Filters by which images were removed; they stay out.
        live: Number of the generation that answers searches.
        generations: All generations.
    """

    name: str
    source: str
    layout: str = "auto"
    split: str | None = None
    root: str | None = None
    labels: bool = False
    exif: bool = False
    without: list[list[str]] = []
    live: int = 1
    generations: list[Generation] = []

    def generation(self, number: int | None = None) -> Generation:
        """Return a generation by number (default: the live one)."""
        number = self.live if number is None else number
        for generation in self.generations:
            if generation.number == number:
                return generation
        existing = ", ".join(str(g.number) for g in self.generations) or "none"
        raise LookalikeError(f"The index `{self.name}` has no generation {number}; it has: {existing}.")

    def of_model(self, fingerprint: str, decoder: str | None = None) -> Generation | None:
        """Return the newest generation of a model, and of one decoder if that is given."""
        same = [g for g in self.generations if g.model.fingerprint == fingerprint]
        return next((g for g in reversed(same) if decoder is None or g.decoder in ("", decoder)), None)

    def write(self, folder: Path) -> None:
        """Write the manifest of an index."""
        write_document(folder, NAME, stamp("index", self.model_dump(mode="json")))


def read(folder: Path) -> Manifest:
    """Read the manifest of an index."""
    try:
        document = read_document(folder, NAME)
    except DamagedDatabase as error:
        raise DamagedDatabase(f"{error} `lookalike purge {shlex.quote(str(folder))}` deletes it.") from None
    if document is None:
        if is_prerelease(folder):
            raise LookalikeError(f"The index `{folder}` was made by a pre-release; run `lookalike index` again.")
        raise LookalikeError(f"There is no index at `{folder}`.")
    document = check_format("index", document, folder)
    try:
        return Manifest.model_validate({k: v for k, v in document.items() if k not in ("format", "kind")})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LookalikeError(f"The index `{folder}` is damaged: `{where}` in its {NAME} is missing or wrong.") from None


def is_prerelease(folder: Path) -> bool:
    """Return whether a folder holds an index of a version before the first release, which cannot be read."""
    return (folder / "index.json").is_file()


def now() -> str:
    """Return the current time as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
