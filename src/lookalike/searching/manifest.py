"""`index.json`: what an index is, which generations it has, and which one answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pydantic

from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, read_json, stamp, write_json

NAME = "index.json"


class ModelInfo(pydantic.BaseModel):
    """Which model made the vectors."""

    name: str
    fingerprint: str
    parent: str | None = None

    @property
    def short(self) -> str:
        return f"{self.fingerprint[:4]} ({self.name})"


class Generation(pydantic.BaseModel):
    """One set of vectors, all from one model; a new model makes a new generation beside the old one."""

    number: int
    model: ModelInfo
    preprocess: dict[str, Any]
    decoder: str = ""  # which decoder the pixels came from: vectors of two are not mixed (decision 0005)
    dim: int
    store: str  # a name of the registry, or an address
    created: str
    updated: str
    images: int = 0
    complete: bool = False  # False while an indexing run is at work, or after one was killed
    root: str | None = None  # the folder that its paths are relative to; None in indexes of earlier versions
    columns: list[str] = []  # what can be filtered by
    writes: int = 0  # finished runs: what tells two states of it apart
    supports_text: bool = False  # the model embeds texts too
    built: dict[str, Any] = {}  # what the store says of its graph


class Manifest(pydantic.BaseModel):
    name: str
    source: str  # the image folder or table file, absolute
    layout: str = "auto"
    split: str | None = None
    without: list[list[str]] = []  # rules by which images were removed, and stay out
    live: int = 1
    generations: list[Generation] = []

    def generation(self, number: int | None = None) -> Generation:
        wanted = self.live if number is None else number
        for generation in self.generations:
            if generation.number == wanted:
                return generation
        have = ", ".join(str(g.number) for g in self.generations) or "none"
        raise LookalikeError(f"The index `{self.name}` has no generation {wanted}; there are: {have}.")

    def of_model(self, fingerprint: str, decoder: str | None = None) -> Generation | None:
        """The newest generation made by a model, and from the pixels of one decoder if that is given."""
        decoders = None if decoder is None else ("", decoder)
        for generation in reversed(self.generations):
            if generation.model.fingerprint == fingerprint and (decoders is None or generation.decoder in decoders):
                return generation
        return None

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, stamp("index", self.model_dump(mode="json")), private=True)


def read(folder: Path) -> Manifest:
    mend = "Delete that folder and make the index again."
    document = check_format("index", read_json(folder / NAME, "index", mend=mend), folder)
    try:
        return Manifest.model_validate({k: v for k, v in document.items() if k not in ("format", "kind")})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LookalikeError(f"The index `{folder}` is damaged: `{where}` in its {NAME} is missing or wrong.") from None


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
