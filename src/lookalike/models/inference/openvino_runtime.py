"""OpenVINO: the fastest way on a processor. Converted once, kept in the user's cache, compiled per process."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lookalike.core import folders
from lookalike.core.device import threads
from lookalike.core.files import atomic_folder, stamp, write_json
from lookalike.core.imports import import_openvino
from lookalike.core.interrupts import defer_interrupt
from lookalike.models.inference import forks
from lookalike.models.inference.graph import Program, RuntimeUnavailable, difference, evaluating, finish, key

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

# One thread a stream and blocks that fit the processor's cache: 15 % above the same images in one
# batch of 32, and no threads that wait for each other on a busy machine (docs/decisions/0031).
BLOCK = 8
TOLERANCE = 1e-4
KEPT = 4  # compiled models in memory


def installed() -> bool:
    return find_spec("openvino") is not None


def entry(model: Embedder, layer: str) -> Path:
    version = str(import_openvino().get_version())
    return folders.cache("runtimes") / key(model, layer, "openvino", version)


def ready(model: Embedder, layer: str) -> bool:
    return (entry(model, layer) / "model.xml").is_file()


@dataclass
class Compiled:
    """A compiled model with its idle requests; a request belongs to one caller at a time."""

    model: Any
    requests: list[Any] = field(default_factory=list)
    idle: deque[Any] = field(default_factory=deque)

    def take(self) -> Any:
        try:
            return self.idle.pop()
        except IndexError:
            request = self.model.create_infer_request()
            self.requests.append(request)
            return request


_compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
_lock = threading.Lock()


def _native() -> list[Any]:
    return [thing for item in list(_compiled.values()) for thing in (item.model, *item.requests)]


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _compiled.clear()


forks.keep_alive(_native, _forget)


class OpenVINORuntime:
    name = "openvino"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", largest: int = BLOCK) -> None:
        self.layer, self.precision = layer, precision
        # A few images run as they come; many run in blocks of one fixed shape, which is faster.
        self.block = BLOCK if largest >= BLOCK else None
        path = prepare(model, layer)
        try:
            self.compiled = compile_model(path, self.block, precision)
        except RuntimeError:  # a damaged entry
            shutil.rmtree(path, ignore_errors=True)
            self.compiled = compile_model(prepare(model, layer), self.block, precision)

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        flying: deque[tuple[Any, np.ndarray, int]] = deque()  # a request reads its pixels while it flies
        taken: list[Any] = []
        width = 2 * threads()  # every stream finds its next block waiting
        tensor = import_openvino().Tensor
        try:
            for block in self._blocks(batches):
                if len(flying) < width:
                    request = self.compiled.take()
                    taken.append(request)
                else:
                    request, rows = self._land(flying)
                    yield rows
                pixels = self._padded(block)
                request.set_input_tensor(0, tensor(pixels, shared_memory=True))
                request.start_async()
                flying.append((request, pixels, len(block)))
            while flying:
                yield self._land(flying)[1]
        finally:
            for request, *_ in flying:  # left early: nobody may get a request that still runs
                request.wait()
            self.compiled.idle.extend(taken)

    def _blocks(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            step = self.block or len(batch)
            for start in range(0, len(batch), step):
                yield batch[start : start + step]

    def _padded(self, block: np.ndarray) -> np.ndarray:
        if self.block is None or len(block) == self.block:
            return np.ascontiguousarray(block)
        full = np.zeros((self.block, *block.shape[1:]), block.dtype)
        full[: len(block)] = block
        return full

    def _land(self, flying: deque[tuple[Any, np.ndarray, int]]) -> tuple[Any, np.ndarray]:
        request, _, count = flying.popleft()
        request.wait()
        rows = np.array(request.get_output_tensor(0).data[:count])  # a copy: the request will be used again
        return request, finish(rows, self.layer, self.precision)


def compile_model(path: Path, block: int | None, precision: str) -> Compiled:
    ov = import_openvino()
    count = threads()
    name = (path, block, precision, count)
    with _lock:
        if name in _compiled:
            _compiled.move_to_end(name)
            return _compiled[name]
        core = ov.Core()
        graph = core.read_model(path / "model.xml")
        if block is not None:
            graph.reshape([block, *list(graph.inputs[0].partial_shape)[1:]])
        options = {
            "INFERENCE_PRECISION_HINT": precision,  # left alone, some processors compute in bf16
            "INFERENCE_NUM_THREADS": count,
            "NUM_STREAMS": count,
        }
        compiled = Compiled(core.compile_model(graph, "CPU", options))
        _compiled[name] = compiled
        while len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    folders.touch(path)
    return compiled


def prepare(model: Embedder, layer: str) -> Path:
    """The converted model in the cache, made now if it is not there; parity with torch is checked once."""
    path = entry(model, layer)
    if (path / "model.xml").is_file():
        return path
    ov = import_openvino()
    with _lock:
        try:
            with defer_interrupt():  # its frontend takes a Ctrl-C for an operation it does not know
                graph = _convert(ov, model, layer)
        except Exception as error:  # its frontend raises many kinds for networks it cannot take
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeUnavailable(f"OpenVINO cannot run `{model.architecture}` ({first}).") from error
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
        check = ov.Core().compile_model(graph, "CPU", options)
        off = difference(model, layer, lambda pixels: check(pixels)[0])
        if not off <= TOLERANCE:
            raise RuntimeUnavailable(f"OpenVINO computes `{model.architecture}` differently from torch (by {off:.1e}).")
        with atomic_folder(path, private=True) as part:
            ov.save_model(graph, part / "model.xml", compress_to_fp16=False)
            write_json(part / "info.json", stamp("cache", {"model": model.name, "layer": layer, "difference": off}))
    folders.trim_cache()
    return path


def _convert(ov: Any, model: Embedder, layer: str) -> Any:
    program = Program(model, layer)
    side = model.preprocess.size
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns about every branch on a shape
        return ov.convert_model(program, example_input=program.example(), input=[ov.PartialShape([-1, side, side, 3])])
