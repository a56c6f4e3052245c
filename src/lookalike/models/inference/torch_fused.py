"""torch on a processor with its graph fused: the same numbers to rounding, in half the time and less.

Training and its evaluations run in torch, and most of their time goes into embedding every image once with the
frozen backbone (docs/decisions/0160). A backbone that moves is embedded with again and again: how it computes is
traced once, and new weights are only frozen into it (docs/decisions/0162).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lookalike.core.interrupts import defer_interrupt
from lookalike.core.progress import say
from lookalike.models.inference.graph import Program, difference, evaluating

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder
    from lookalike.models.fingerprint import Snapshot

BLOCK = 8  # images at a time: they stay in the processor's cache, and a fused graph has one fixed shape
TOLERANCE = 1e-4
_kept: dict[tuple[str, str, int], Any] = {}  # the last graph alone: it holds a copy of the weights
_traced: WeakKeyDictionary[Embedder, dict[str, tuple[Snapshot, Any]]] = WeakKeyDictionary()  # holds no copy
_lock = threading.Lock()


def fused(model: Embedder, layer: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """The model up to a layer as one fused graph, uint8 batches in, arrays out; None where torch cannot fuse it."""
    name = (model.fingerprint(layer), layer, torch.get_num_threads())
    with _lock:
        if name not in _kept:
            _kept.clear()
            _kept[name] = _fuse(model, layer)
        graph = _kept[name]
    return None if graph is None else lambda batch: _run(graph, batch)


def _run(graph: Any, batch: np.ndarray) -> np.ndarray:
    out = []
    for start in range(0, len(batch), BLOCK):
        block = batch[start : start + BLOCK]
        full = np.zeros((BLOCK, *batch.shape[1:]), batch.dtype)
        full[: len(block)] = block
        with torch.inference_mode():
            out.append(graph(torch.from_numpy(full))[: len(block)].numpy())
    return np.concatenate(out)


def _fuse(model: Embedder, layer: str) -> Any:
    program = Program(model, layer)
    pixels = program.example(BLOCK)
    before = torch.jit.onednn_fusion_enabled()
    try:
        with evaluating(model), defer_interrupt(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns about every branch on a shape
            torch.jit.enable_onednn_fusion(True)
            graph = torch.jit.freeze(_trace(program.eval(), pixels))
            for _ in range(2):  # it looks at the shapes first and fuses then
                graph(pixels)
        off = difference(model, layer, lambda batch: _run(graph, batch))
        why = "" if off <= TOLERANCE else f"the result differs by {off:.1e}"
    except RuntimeError as error:  # the tracer's word for a network it cannot follow
        why = str(error).strip().splitlines()[0]
    finally:
        torch.jit.enable_onednn_fusion(before)
    if why:
        say(f"torch computes `{model.architecture}` layer by layer ({why}).", verbose=True)
    return None if why else graph


def _trace(program: Program, pixels: torch.Tensor) -> Any:
    """How the model computes, traced anew where its tensors are others; it reads those of the model itself."""
    known, now = _traced.setdefault(program.model, {}), program.model.snapshot(program.layer)[0]
    if program.layer not in known or not known[program.layer][0].same_tensors(now):
        known[program.layer] = (now, torch.jit.trace(program, pixels, check_trace=False))
    return known[program.layer][1]
