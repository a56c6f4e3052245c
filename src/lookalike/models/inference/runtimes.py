"""What a model runs on: torch always, and faster runtimes where they are installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.models.inference import forks, onnx_runtime, openvino_runtime
from lookalike.models.inference.graph import RuntimeUnavailable, evaluating, finish
from lookalike.models.inference.inputs import ImageInput, Stream, peek
from lookalike.models.inference.pipeline import Runtime
from lookalike.models.inference.torch_fused import fused

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

NAMES = ("auto", "torch", "openvino", "onnx")
FAST: dict[str, Callable[..., Runtime]] = {
    "openvino": openvino_runtime.OpenVINORuntime,
    "onnx": onnx_runtime.OnnxRuntime,
}

ENOUGH = 256  # images from which on converting a model (some two seconds, once) pays
GLANCE = 32  # a generator that gives as many is taken for a long one
_refused: set[str] = set()  # fingerprints that OpenVINO would not take, so that nobody tries twice


class TorchRuntime:
    """Runs the model itself, on whatever device it is; many images on a processor through its fused graph.

    What is used depends on the call alone: the same call gives the same bits.
    """

    name = "torch"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", count: int | None = None) -> None:
        self.model, self.layer, self.precision, self.count = model, layer, precision, count

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        if forks.generation and torch.get_num_threads() > 1:
            torch.set_num_threads(1)  # the threads of the parent's OpenMP are gone, and it would wait for them
        graph = graph_for(self.model, self.layer, self.precision, self.count)
        with evaluating(self.model):
            for batch in batches:
                rows = self._rows(batch) if graph is None else graph(batch)
                yield finish(rows, self.layer, self.precision)

    def _rows(self, batch: np.ndarray) -> np.ndarray:
        device = self.model.device
        half = torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else contextlib.nullcontext()
        with torch.inference_mode(), half:
            rows = self.model.at_layer(self.layer, torch.from_numpy(batch).to(device))
        return np.asarray(rows.float().cpu())


def graph_for(
    model: Embedder, layer: str, precision: str, count: int | None
) -> Callable[[np.ndarray], np.ndarray] | None:
    """The fused graph for `count` images, where it pays and nobody looks into the layers that it goes round."""
    if (count or 0) < ENOUGH or precision != "f32" or model.device.type != CPU or forks.generation:
        return None
    below = [model.backbone, model.pooling] if layer == "pooled" else [model]
    if any(module._forward_hooks or module._forward_pre_hooks for part in below for module in part.modules()):
        return None
    return fused(model, layer)


def row_shape(model: Embedder, layer: str) -> tuple[int, ...]:
    if layer == "embedding":
        return (model.dim,)
    return (model.feature_dim,) if layer == "pooled" else (0,)


def select(
    model: Embedder, layer: str, name: str, precision: str, source: Stream, batch_size: int
) -> tuple[Runtime, Iterator[ImageInput]]:
    """The runtime to use, and the stream of images (of which the first may have been looked at)."""
    choose(name, NAMES, "a runtime")
    if name == "torch":
        return TorchRuntime(model, layer, precision, source.count), source.items
    if model.device.type != CPU:
        if name == "auto":
            return TorchRuntime(model, layer, precision), source.items
        raise LookalikeError(f"Runtime `{name}` runs on the processor, but the model is on `{model.device}`.")
    if name == "auto":
        return _auto(model, layer, precision, source, batch_size)
    if name == "openvino" and not openvino_runtime.installed():
        raise RuntimeUnavailable("OpenVINO is not installed: pip install openvino, or take runtime `auto`.")
    return FAST[name](model, layer, precision, _largest(source, batch_size)), source.items


def _largest(source: Stream, batch_size: int) -> int:
    return batch_size if source.count is None else min(batch_size, source.count)


def _auto(
    model: Embedder, layer: str, precision: str, source: Stream, batch_size: int
) -> tuple[Runtime, Iterator[ImageInput]]:
    plain = TorchRuntime(model, layer, precision, source.count)
    if model.training:
        return plain, source.items
    if not openvino_runtime.installed():
        if precision == "f32" and onnx_runtime.installed() and onnx_runtime.ready(model, layer):
            return onnx_runtime.OnnxRuntime(model, layer), source.items
        return plain, source.items
    name, items = model.fingerprint(layer), source.items
    if name in _refused:
        return plain, items
    if not openvino_runtime.ready(model, layer):
        if source.count is None:
            many, items = peek(items, GLANCE)
        else:
            many = source.count >= ENOUGH
        if not many:
            return plain, items
    try:
        return openvino_runtime.OpenVINORuntime(model, layer, precision, _largest(source, batch_size)), items
    except RuntimeUnavailable as error:
        _refused.add(name)
        warn(f"{error} Going on with torch.")
        return plain, items
