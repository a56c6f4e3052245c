"""The model as one graph, for the runtimes and for export: uint8 N×S×S×3 in, rows out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

# Raise when the graph changes in a way that the fingerprint does not tell.
VERSION = 1


class RuntimeUnavailable(LookalikeError):
    """A fast runtime is not installed, or does not take this model."""


class Program(nn.Module):
    """Normalization, backbone, pooling, head and the final length of one, up to a layer."""

    def __init__(self, model: Embedder, layer: str = "embedding") -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self.training = model.training

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.at_layer(self.layer, pixels)

    def example(self, count: int = 2) -> Tensor:
        side = self.model.preprocess.size
        noise = seeds.numpy_rng(0, "example").integers(0, 256, (count, side, side, 3))
        return torch.from_numpy(noise.astype(np.uint8))


def key(model: Embedder, layer: str, runtime: str, version: str) -> str:
    """The name of a compiled model in the cache: another model, layer, size or version has another name."""
    digest = hash_bytes(model.fingerprint(layer), layer, runtime, version, torch.__version__, str(VERSION))
    return f"{runtime}-{digest}"


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    was = model.training
    if was:
        model.eval()
    try:
        yield
    finally:
        if was:
            model.train()


def finish(rows: np.ndarray, layer: str, precision: str = "f32") -> np.ndarray:
    """The form every runtime answers in: float16 for the large maps of a stage, float32 else."""
    if layer.startswith("stage"):
        return rows.astype(np.float16, copy=False)
    rows = rows.astype(np.float32, copy=False)
    if layer == "embedding" and precision != "f32":  # lengths are a little off after rounding
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows


def difference(model: Embedder, layer: str, run: Any) -> float:
    """The largest difference between torch and `run` on noise, relative to the largest value (unit rows: absolute)."""
    program = Program(model, layer)
    pixels = program.example()
    with evaluating(model), torch.inference_mode():
        wanted = program(pixels).float().cpu().numpy()
    got = np.asarray(run(pixels.numpy()), np.float32)
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    scale = 1.0 if layer == "embedding" else max(float(np.abs(wanted).max()), 1e-12)
    return float(np.abs(got - wanted).max()) / scale
