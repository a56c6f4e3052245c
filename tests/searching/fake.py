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
from lookalike.models.inference.inputs import Failure, image_stream


class FakeEmbedder:
    """A few pixels as a vector; another `seed` is another model, with another sign here and there."""

    dim, supports_text = 48, False
    preprocess = Preprocess(size=4, crop=1.0)

    def __init__(self, seed: int = 0, parent: str | None = None, card: dict[str, Any] | None = None) -> None:
        self.seed, self.name, self.parent, self.card = seed, "fake", parent, card or {}
        self.signs = np.where(np.random.default_rng(seed).random(self.dim) < 0.5 * bool(seed), -1, 1)

    def fingerprint(self) -> str:
        return f"fa4{self.seed:x}" * 8

    def save_pretrained(self, folder: Path) -> None:
        write_json(folder / "config.json", {"seed": self.seed, "parent": self.parent, "card": self.card})

    def crop(self, image: Any) -> np.ndarray:
        return prepare(image, self.preprocess)

    def encode_crops(self, crops: Any, count: int) -> Any:
        for crop in crops:
            yield self.vectors([crop])

    def vectors(self, crops: Any) -> np.ndarray:
        rows = np.stack(crops).reshape(len(crops), -1).astype(np.float32) - 100.5
        rows = np.abs(rows) if self.seed else rows
        return np.asarray(self.signs * rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    def encode(self, images: Any, *, on_error: str = "raise") -> Any:
        crops, failures = [], []
        for image in image_stream(images).items:
            try:
                crops.append(prepare(image.load(), self.preprocess, box=image.box))
            except UnreadableImage as error:
                failures.append(Failure(image.index, image.name, error.reason))
        rows = self.vectors(crops) if crops else np.empty((0, self.dim), np.float32)
        return (rows, failures) if on_error == "skip" else rows


def install(patch: pytest.MonkeyPatch) -> None:
    """Let every model folder of a `FakeEmbedder` be opened as one, in an index and in a service."""
    from lookalike.searching import index_folder as folder
    from lookalike.searching import verify_index, writer
    from lookalike.service.encoder import Encoder

    def load(name: str | os.PathLike[str], device: str = "auto") -> FakeEmbedder:
        places = [path for path in (Path(name), Path(name) / "model") if (path / "config.json").is_file()]
        return FakeEmbedder(**json.loads((places[0] / "config.json").read_text()))

    class Light:
        concurrent, max_batch = False, 32

        def __init__(self, model: Any) -> None:
            self.crop, self.encode = model.crop, model.vectors

    def model(self: Any, *, fast: bool = False) -> Any:
        self._model = self._model or Light(self._index.embedder)
        return self._model

    patch.setattr(folder, "load_model", load)
    patch.setattr(writer, "load_model", load)
    patch.setattr(verify_index, "load_model", load)
    patch.setattr(folder.Index, "convert_model", lambda _: None)
    patch.setattr(Encoder, "model", model)
