"""What a model runs on: torch always, and faster runtimes where they are installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.core.errors import choose
from lookalike.models.pictures import Picture, Stream
from lookalike.models.pipeline import Runtime

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

NAMES = ("auto", "torch", "openvino", "onnx")


class TorchRuntime:
    """Runs the model itself, on whatever device it is."""

    name = "torch"

    def __init__(self, model: Embedder, layer: str, precision: str) -> None:
        self.model, self.layer, self.precision = model, layer, precision

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        device = self.model.device
        with _evaluating(self.model):
            for batch in batches:
                with torch.inference_mode(), self._autocast(device):
                    rows = self.model.at_layer(self.layer, torch.from_numpy(batch).to(device))
                yield finish(rows.float().cpu().numpy(), self.layer)

    def _autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else contextlib.nullcontext()


@contextlib.contextmanager
def _evaluating(model: Embedder) -> Iterator[None]:
    was = model.training
    if was:
        model.eval()
    try:
        yield
    finally:
        if was:
            model.train()


def finish(rows: np.ndarray, layer: str) -> np.ndarray:
    """The type every runtime answers in: float16 for the large maps of a stage, float32 else."""
    return rows.astype(np.float16 if layer.startswith("stage") else np.float32, copy=False)


def row_shape(model: Embedder, layer: str) -> tuple[int, ...]:
    if layer == "embedding":
        return (model.dim,)
    return (model.feature_dim,) if layer == "pooled" else (0,)


def select(model: Embedder, layer: str, name: str, precision: str, source: Stream) -> tuple[Runtime, Iterator[Picture]]:
    """The runtime to use, and the stream of pictures (of which some may have been looked at)."""
    choose(name, NAMES, "a runtime")
    return TorchRuntime(model, layer, precision), source.items
