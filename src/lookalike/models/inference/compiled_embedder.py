"""Embed a few images with a converted model, without loading torch: a search starts in a second instead of five."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, hash_bytes, read_json
from lookalike.data.decoding import Preprocess, UnreadableImage, decode, prepare
from lookalike.models.inference import openvino_compiled
from lookalike.models.inference.inputs import Failure


def config_checksum(config: Mapping[str, Any]) -> str:
    """Return what the `config_checksum` of a model's configuration must be."""
    return hash_bytes(json.dumps({key: value for key, value in config.items() if key != "config_checksum"}))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model folder, or raise if it is not the one that was saved."""
    config = check_format("model", read_json(folder / "config.json", "model's configuration"), folder)
    if config.get("config_checksum") != config_checksum(config):
        raise LookalikeError(
            f"The model `{folder}` is damaged: `config.json` is incomplete or was changed. "
            "Put a whole copy in its place, or train the model again."
        )
    return config


class CompiledEmbedder:
    """The embeddings of a model folder that was converted to OpenVINO before; see `open`.

    Args:
        preprocess: Input format of the model.
        path: The converted model.
    """

    def __init__(self, preprocess: Preprocess, path: Path) -> None:
        self.preprocess = preprocess
        self.runtime = openvino_compiled.OpenVINORuntime(path, "embedding", largest=1)

    @classmethod
    def open(cls, folder: Path) -> CompiledEmbedder | None:
        """Open a model folder, or return None if it was not converted yet or the conversion is damaged."""
        try:
            config = read_config(folder)
            path = openvino_compiled.model_path(config["fingerprint"], "embedding")
            return cls(Preprocess.from_json(config["preprocess"]), path) if (path / "model.xml").is_file() else None
        except (LookalikeError, RuntimeError, ImportError, KeyError, TypeError):
            return None  # loading it with torch says what is wrong, or makes it again

    def encode(self, images: Sequence[Any], *, on_error: str = "skip") -> tuple[np.ndarray, list[Failure]]:
        """Compute the unit vectors of the readable images, and list the others."""
        crops, failures = [], []
        for index, image in enumerate(images):
            try:
                crops.append(_load_crop(image, self.preprocess))
            except UnreadableImage as error:
                failures.append(Failure(index, f"image {index}", error.reason))
        rows = list(self.runtime.run(crop[None] for crop in crops))
        return (np.concatenate(rows) if rows else np.empty((0, 0), np.float32)), failures


def _load_crop(image: Any, preprocess: Preprocess) -> np.ndarray:
    if preprocess.interpolation == "lanczos":
        return prepare(image, preprocess)
    pixels = central_part(decode(image, min_side=preprocess.size / preprocess.crop), preprocess)
    return resample(pixels, preprocess.size, preprocess.interpolation)


def central_part(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Cut out the central part of decoded pixels that becomes the input: a square, unless the model squashes."""
    height, width = pixels.shape[:2]
    across, down = (max(int(side), 1) for side in preprocess.region(width, height))
    top, left = (height - down) // 2, (width - across) // 2
    return pixels[top : top + down, left : left + across]


def resample(pixels: np.ndarray, size: int, interpolation: str) -> np.ndarray:
    """Resize 8-bit pixels to a square as torch does with antialiasing, in whole numbers: the same to the last bit.

    Shape:
        - pixels: ``(height, width, 3)``, uint8.
        - output: ``(size, size, 3)``, uint8.
    """
    for axis in (1, 0):
        if pixels.shape[axis] == size:
            continue
        weights, bits = _weights(pixels.shape[axis], size, interpolation)
        sums = np.moveaxis(np.tensordot(weights, pixels.astype(np.float64), (1, axis)), 0, axis)
        pixels = np.clip((sums.astype(np.int64) + (1 << bits - 1)) >> bits, 0, 255).astype(np.uint8)
    return pixels


def _weights(side: int, size: int, interpolation: str) -> tuple[np.ndarray, int]:
    """Weights of every old pixel for every new one, ``(size, side)``, as multiples of two to the minus `bits`."""
    scale = side / size
    stretch = max(scale, 1.0)
    support = (2.0 if interpolation == "bicubic" else 1.0) * stretch
    center = scale * (np.arange(size)[:, None] + 0.5)
    place = np.arange(side)
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    last = np.minimum((center + support + 0.5).astype(np.int64), side)
    x = np.abs((place - center + 0.5) * (1.0 / stretch))
    if interpolation == "bicubic":  # Keys' kernel with a = -0.5
        kernel = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)
        kernel[x >= 2] = 0
    else:
        kernel = np.maximum(1 - x, 0)
    kernel = np.where((place >= first) & (place < last), kernel, 0)
    kernel /= kernel.sum(1, keepdims=True)
    bits = next(n for n in range(23) if n == 22 or math.floor(0.5 + kernel.max() * (1 << n + 1)) >= 1 << 15)
    return np.trunc(kernel * (1 << bits) + np.copysign(0.5, kernel)), bits
