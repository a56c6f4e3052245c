"""The model as one graph, for tracing, conversion and export, and the check of what was made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.models.embedder import Embedder


class ModelGraph(nn.Module):
    """The model from pixels up to a layer as one module, for tracing, conversion and export.

    Shape:
        - pixels: ``(N, S, S, 3)``, uint8, RGB.
        - output: ``(N, D)``, or the feature map of a stage.
    """

    def __init__(self, model: Embedder, layer: str = "embedding") -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self.training = model.training

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.layer_output(self.layer, pixels)

    def example(self, count: int = 2) -> Tensor:
        """Random pixels for tracing and for the parity check; the same ones every time."""
        side = self.model.preprocess.size
        noise = seeds.numpy_rng(0, "example").integers(0, 256, (count, side, side, 3))
        return torch.from_numpy(noise.astype(np.uint8))


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for the duration of the block."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def parity_error(model: Embedder, layer: str, run: Callable[[np.ndarray], Any], count: int = 2) -> float:
    """Largest absolute difference between a converted model and torch on random pixels.

    For layers other than the embedding it is relative to the largest value; infinity if shapes disagree or values are
    not finite.
    """
    graph = ModelGraph(model, layer)
    pixels = graph.example(count)
    with eval_mode(model), torch.inference_mode():
        expected = graph(pixels.to(model.device)).float().cpu().numpy()
    actual = np.asarray(run(pixels.numpy()), np.float32)
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return float("inf")
    scale = 1.0 if layer == "embedding" else max(float(np.abs(expected).max()), 1e-12)
    return float(np.abs(actual - expected).max()) / scale
