"""Run converted models in OpenVINO, without torch. They are compiled once per process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import artifacts
from lookalike.core.device import threads
from lookalike.core.imports import import_openvino
from lookalike.models.inference.runtime_base import CompiledModels, cache_path, pad, to_output

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


compiled_models: CompiledModels[CompiledModel] = CompiledModels(lambda compiled: [compiled.model, *compiled.requests])


def model_path(fingerprint: str, layer: str) -> Path:
    """Where the converted model lies, or would lie."""
    return cache_path(fingerprint, layer, "openvino", str(import_openvino().get_version()))


class OpenVINORuntime:
    """Runs a model in OpenVINO, with as many blocks in flight as keep every stream busy.

    Args:
        path: The converted model.
        layer: The layer it computes.
        precision: ``"f32"`` or ``"bf16"``.
        largest: The largest batch to come. A few images run in batches as they come, many in blocks of one fixed
            shape, which is faster.

    Raises:
        RuntimeError: If the converted model is damaged.
    """

    name = "openvino"

    def __init__(self, path: Path, layer: str, precision: str = "f32", largest: int = BLOCK) -> None:
        self.layer, self.precision = layer, precision
        self.block = BLOCK if largest >= BLOCK else None
        self.compiled = compile_model(path, self.block, precision)

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
                whole = self.block is None or len(block) == self.block
                pixels = np.ascontiguousarray(block) if whole else pad(block, BLOCK)
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
            yield from (batch[start : start + step] for start in range(0, len(batch), step))

    def _collect(self, in_flight: deque[tuple[Any, np.ndarray, int]]) -> tuple[Any, np.ndarray]:
        request, _, count = in_flight.popleft()
        request.wait()
        rows = np.array(request.get_output_tensor(0).data[:count])  # a copy: the request will be used again
        return request, to_output(rows, self.layer, self.precision)


def compile_model(path: Path, block: int | None, precision: str) -> CompiledModel:
    """Compile a converted model for batches of ``block`` images (of any size if ``None``); the last few are kept."""
    ov, count = import_openvino(), threads()

    def compile_now() -> CompiledModel:
        if not artifacts.is_whole(path):
            raise RuntimeError("the converted model is damaged")
        core = ov.Core()
        graph = core.read_model(path / "model.xml")
        if block is not None:
            graph.reshape([block, *list(graph.inputs[0].partial_shape)[1:]])
        options = {
            "INFERENCE_PRECISION_HINT": precision,  # by default some CPUs would compute in bf16
            "INFERENCE_NUM_THREADS": count,
            "NUM_STREAMS": count,
        }
        artifacts.touch(path)
        return CompiledModel(core.compile_model(graph, "CPU", options))

    return compiled_models.get((path, block, precision, count), compile_now)
