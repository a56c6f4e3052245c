"""Models that need no torch: for processes that are killed before they would have loaded it, and for quick tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.files import write_json
from lookalike.data import Preprocess, UnreadableImage, prepare
from lookalike.models.inference.inputs import Failure, stream


class FakeEmbedder:
    """A few pixels as a vector; another `seed` is another model, with another sign here and there."""

    dim, reads_words = 48, False
    preprocess = Preprocess(size=4, crop=1.0)

    def __init__(self, seed: int = 0, parent: str | None = None, card: dict[str, Any] | None = None) -> None:
        self.seed, self.name, self.parent, self.card = seed, "fake", parent, card or {}
        self.signs = np.where(np.random.default_rng(seed).random(self.dim) < 0.5 * bool(seed), -1, 1)

    def fingerprint(self) -> str:
        return f"fa4{self.seed:x}" * 8

    def save_pretrained(self, folder: Path) -> None:
        write_json(folder / "config.json", {"seed": self.seed, "parent": self.parent, "card": self.card})

    def square(self, image: Any) -> np.ndarray:
        return prepare(image, self.preprocess)

    def encode_squares(self, squares: Any, count: int) -> Any:
        for square in squares:
            yield self.rows([square])

    def rows(self, squares: Any) -> np.ndarray:
        rows = np.stack(squares).reshape(len(squares), -1).astype(np.float32) - 100.5
        rows = np.abs(rows) if self.seed else rows
        return np.asarray(self.signs * rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    def encode(self, images: Any, *, on_error: str = "raise") -> Any:
        squares, failures = [], []
        for image in stream(images).items:
            try:
                squares.append(prepare(image.load(), self.preprocess, box=image.box))
            except UnreadableImage as error:
                failures.append(Failure(image.index, image.name, error.reason))
        rows = self.rows(squares) if squares else np.empty((0, self.dim), np.float32)
        return (rows, failures) if on_error == "skip" else rows


def install(patch: pytest.MonkeyPatch) -> None:
    """Let every model folder of a `FakeEmbedder` be opened as one, in an index and in a service."""
    from lookalike.searching import index_folder as folder
    from lookalike.searching import writer
    from lookalike.service.encoder import Encoder

    def load(name: str | os.PathLike[str], device: str = "auto") -> FakeEmbedder:
        places = [path for path in (Path(name), Path(name) / "model") if (path / "config.json").is_file()]
        return FakeEmbedder(**json.loads((places[0] / "config.json").read_text()))

    class Light:
        streams, most = False, 32

        def __init__(self, model: Any) -> None:
            self.square, self.rows = model.square, model.rows

    def model(self: Any, *, fast: bool = False) -> Any:
        self._squares = self._squares or Light(self._index.embedder)
        return self._squares

    patch.setattr(folder, "load_model", load)
    patch.setattr(writer, "load_model", load)
    patch.setattr(Encoder, "model", model)
