"""The torch runtime: the model itself on any device, or a fused graph of it on a CPU.

Training and its evaluations run in torch, and most of their time goes into embedding every image with a frozen
backbone. The fused graph gives the same values up to rounding in less than half the time. A backbone that is being
trained is traced once; later weights are only frozen into the trace (docs/design/inference.md).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lookalike.core.device import CPU
from lookalike.core.interrupts import run_apart
from lookalike.core.progress import say
from lookalike.models.embedder import Embedder
from lookalike.models.fingerprint import Snapshot
from lookalike.models.inference.model_graph import ModelGraph, eval_mode, parity_error
from lookalike.models.inference.runtime_base import TOLERANCE, fork_guard, pad, to_output

BLOCK = 8  # images at a time: they stay in the CPU's cache, and a fused graph has one fixed shape
MIN_IMAGES = 256  # from here on fusing or converting a model (about two seconds, once) pays off
_last_graph: dict[tuple[str, str, int], Any] = {}  # one entry: a graph holds a copy of the weights
_traces: WeakKeyDictionary[Embedder, dict[str, tuple[Snapshot, Any]]] = WeakKeyDictionary()  # these hold no copy
_lock = threading.Lock()


class TorchRuntime:
    """Runs a layer of a model in torch on its device; for many images (``count``) on a CPU through its fused graph.

    Which of the two is used depends on the arguments alone, so the same call gives the same bits.
    """

    name = "torch"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", count: int | None = None) -> None:
        self.model, self.layer, self.precision, self.count = model, layer, precision, count

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        if fork_guard.forks and torch.get_num_threads() > 1:
            torch.set_num_threads(1)  # the OpenMP threads of the parent are gone; waiting for them would hang
        graph = fused_graph(self.model, self.layer, self.precision, self.count)
        with eval_mode(self.model):
            for batch in batches:
                outputs = self._forward(batch) if graph is None else graph(batch)
                yield to_output(outputs, self.layer, self.precision)

    def _forward(self, batch: np.ndarray) -> np.ndarray:
        device = self.model.device
        bf16 = torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else contextlib.nullcontext()
        with torch.inference_mode(), bf16:
            outputs = self.model.layer_output(self.layer, torch.from_numpy(batch).to(device))
        return np.asarray(outputs.float().cpu())


def fused_graph(
    model: Embedder, layer: str, precision: str, count: int | None
) -> Callable[[np.ndarray], np.ndarray] | None:
    """The model up to a layer as a fused graph for ``count`` images: a function from uint8 batches to arrays.

    ``None`` for few images, bf16, other devices, models with forward hooks (a graph would bypass them) and networks
    that torch cannot fuse.
    """
    if (count or 0) < MIN_IMAGES or precision != "f32" or model.device.type != CPU or fork_guard.forks:
        return None
    parts = [model.backbone, model.pooling] if layer == "pooled" else [model]
    if any(module._forward_hooks or module._forward_pre_hooks for part in parts for module in part.modules()):
        return None
    key = (model.fingerprint(layer), layer, torch.get_num_threads())
    with _lock:
        if key not in _last_graph:
            _last_graph.clear()
            _last_graph[key] = _fuse(model, layer)
        graph = _last_graph[key]
    return None if graph is None else lambda batch: _run(graph, batch)


def _run(graph: Any, batch: np.ndarray) -> np.ndarray:
    outputs = []
    for start in range(0, len(batch), BLOCK):
        block = batch[start : start + BLOCK]
        with torch.inference_mode():
            outputs.append(graph(torch.from_numpy(pad(block, BLOCK)))[: len(block)].numpy())
    return np.concatenate(outputs)


def _fuse(model: Embedder, layer: str) -> Any:
    module = ModelGraph(model, layer)
    pixels = module.example(BLOCK)
    fusion_enabled = torch.jit.onednn_fusion_enabled()

    def fused() -> Any:
        with eval_mode(model), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns about every branch on a shape
            torch.jit.enable_onednn_fusion(True)
            graph = torch.jit.freeze(_trace(module.eval(), pixels))
            for _ in range(2):  # the first run records shapes, the second one fuses
                graph(pixels)
        return graph

    try:
        graph = run_apart(fused)
        error = parity_error(model, layer, lambda batch: _run(graph, batch))
        reason = "" if error <= TOLERANCE else f"the result differs by {error:.1e}"
    except RuntimeError as exception:  # what the tracer raises for a network it cannot follow
        reason = str(exception).strip().splitlines()[0]
    finally:
        torch.jit.enable_onednn_fusion(fusion_enabled)
    if reason:
        say(f"`{model.architecture}` cannot be fused and runs layer by layer ({reason}).", verbose=True)
    return None if reason else graph


def _trace(module: ModelGraph, pixels: torch.Tensor) -> Any:
    """The model's trace, renewed when its tensors were replaced; it reads the model's own weights."""
    traces, state = _traces.setdefault(module.model, {}), module.model.snapshot(module.layer)[0]
    if module.layer not in traces or not traces[module.layer][0].same_tensors(state):
        traces[module.layer] = (state, torch.jit.trace(module, pixels, check_trace=False))
    return traces[module.layer][1]
