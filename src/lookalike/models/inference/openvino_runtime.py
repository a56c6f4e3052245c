"""The OpenVINO runtime: the fastest on a CPU. Converted once, stored in the user's cache, compiled per process."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lookalike.core import folders
from lookalike.core.device import threads
from lookalike.core.files import atomic_folder
from lookalike.core.imports import import_openvino
from lookalike.core.interrupts import defer_interrupt
from lookalike.models.inference.runtime_base import (
    TOLERANCE,
    CompiledModels,
    ModelGraph,
    RuntimeUnavailable,
    cache_key,
    check_files,
    eval_mode,
    open_converted,
    parity_error,
    to_output,
    write_info,
)

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

# One thread per stream and blocks that fit the CPU's cache: 15 % faster than the same images in one batch of 32, and
# no threads that wait for each other on a busy machine (docs/design/inference.md).
BLOCK = 8


@dataclass
class CompiledModel:
    """A compiled model with its idle inference requests; a request belongs to one caller at a time."""

    model: Any
    requests: list[Any] = field(default_factory=list)
    idle: deque[Any] = field(default_factory=deque)

    def borrow_request(self) -> Any:
        try:
            return self.idle.pop()
        except IndexError:
            request = self.model.create_infer_request()
            self.requests.append(request)
            return request


_compiled: CompiledModels[CompiledModel] = CompiledModels(lambda compiled: [compiled.model, *compiled.requests])


def installed() -> bool:
    """Whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def cache_path(model: Embedder, layer: str) -> Path:
    """Where the converted model lies, or would lie."""
    version = str(import_openvino().get_version())
    return folders.cache("runtimes") / cache_key(model, layer, "openvino", version)


def is_converted(model: Embedder, layer: str) -> bool:
    """Whether the model was converted before."""
    return (cache_path(model, layer) / "model.xml").is_file()


class OpenVINORuntime:
    """Runs a model in OpenVINO, with as many blocks in flight as keep every stream busy.

    Args:
        model: The model, on the CPU.
        layer: The layer to compute.
        precision: ``"f32"`` or ``"bf16"``.
        largest: The largest batch to come. A few images run in batches as they come, many in blocks of one fixed
            shape, which is faster.

    Raises:
        RuntimeUnavailable: If OpenVINO cannot run the model, or computes something else than torch.
    """

    name = "openvino"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", largest: int = BLOCK) -> None:
        self.layer, self.precision = layer, precision
        self.block = BLOCK if largest >= BLOCK else None
        self.compiled = open_converted(
            lambda: convert(model, layer), lambda path: compile_model(path, self.block, precision)
        )

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        in_flight: deque[tuple[Any, np.ndarray, int]] = deque()  # a running request reads its pixels
        borrowed: list[Any] = []
        max_in_flight = 2 * threads()  # every stream finds its next block waiting
        tensor = import_openvino().Tensor
        try:
            for block in self._blocks(batches):
                if len(in_flight) < max_in_flight:
                    request = self.compiled.borrow_request()
                    borrowed.append(request)
                else:
                    request, rows = self._collect(in_flight)
                    yield rows
                pixels = self._pad(block)
                request.set_input_tensor(0, tensor(pixels, shared_memory=True))
                request.start_async()
                in_flight.append((request, pixels, len(block)))
            while in_flight:
                yield self._collect(in_flight)[1]
        finally:
            for request, *_ in in_flight:  # the caller stopped early: never hand out a request that still runs
                request.wait()
            self.compiled.idle.extend(borrowed)

    def _blocks(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            step = self.block or len(batch)
            for start in range(0, len(batch), step):
                yield batch[start : start + step]

    def _pad(self, block: np.ndarray) -> np.ndarray:
        if self.block is None or len(block) == self.block:
            return np.ascontiguousarray(block)
        padded = np.zeros((self.block, *block.shape[1:]), block.dtype)
        padded[: len(block)] = block
        return padded

    def _collect(self, in_flight: deque[tuple[Any, np.ndarray, int]]) -> tuple[Any, np.ndarray]:
        request, _, count = in_flight.popleft()
        request.wait()
        rows = np.array(request.get_output_tensor(0).data[:count])  # a copy: the request will be used again
        return request, to_output(rows, self.layer, self.precision)


def compile_model(path: Path, block: int | None, precision: str) -> CompiledModel:
    """Compile a converted model for batches of ``block`` images (of any size if ``None``); the last few are kept."""
    ov, count = import_openvino(), threads()

    def compile_now() -> CompiledModel:
        check_files(path)
        core = ov.Core()
        graph = core.read_model(path / "model.xml")
        if block is not None:
            graph.reshape([block, *list(graph.inputs[0].partial_shape)[1:]])
        options = {
            "INFERENCE_PRECISION_HINT": precision,  # by default some CPUs would compute in bf16
            "INFERENCE_NUM_THREADS": count,
            "NUM_STREAMS": count,
        }
        folders.touch(path)
        return CompiledModel(core.compile_model(graph, "CPU", options))

    return _compiled.get((path, block, precision, count), compile_now)


def convert(model: Embedder, layer: str) -> Path:
    """Convert a model and store it in the cache, unless it is there; agreement with torch is checked once.

    Raises:
        RuntimeUnavailable: If OpenVINO cannot run the model, or computes something else than torch.
    """
    path = cache_path(model, layer)
    if (path / "model.xml").is_file():
        return path
    ov = import_openvino()
    with _compiled.lock:
        try:
            with defer_interrupt():  # OpenVINO's frontend would take a Ctrl-C for an unknown operation
                graph = _convert(ov, model, layer)
        except Exception as error:  # the frontend raises many kinds for networks it cannot convert
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeUnavailable(f"OpenVINO cannot run `{model.architecture}` ({first}).") from error
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
        compiled = ov.Core().compile_model(graph, "CPU", options)
        difference = parity_error(model, layer, lambda pixels: compiled(pixels)[0])
        if not difference <= TOLERANCE:
            raise RuntimeUnavailable(
                f"OpenVINO computes `{model.architecture}` differently from torch (by {difference:.1e})."
            )
        with atomic_folder(path, private=True) as part:
            ov.save_model(graph, part / "model.xml", compress_to_fp16=False)
            write_info(part, model, layer, difference)
    folders.trim_cache()
    return path


def _convert(ov: Any, model: Embedder, layer: str) -> Any:
    graph = ModelGraph(model, layer)
    side = model.preprocess.size
    with eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns about every branch on a shape
        return ov.convert_model(graph, example_input=graph.example(), input=[ov.PartialShape([-1, side, side, 3])])
