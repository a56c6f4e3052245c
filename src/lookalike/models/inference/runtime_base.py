"""What all runtimes share: the model as one graph, its cache key, the parity check, and safety under fork."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.files import checksum, hash_bytes, read_json, stamp, write_json

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

T = TypeVar("T")

GRAPH_VERSION = 1
"""Raise it when the graph changes in a way that the model's fingerprint does not show."""

TOLERANCE = 1e-4
"""Largest difference to torch with which a converted model is accepted."""


class RuntimeUnavailable(LookalikeError):
    """A fast runtime is not installed, or cannot run this model."""


class Runtime(Protocol):
    """A model ready to run: uint8 batches ``(N, S, S, 3)`` in, arrays out, in the same order."""

    name: str

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]: ...


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


def cache_key(model: Embedder, layer: str, runtime: str, version: str) -> str:
    """Folder name of a converted model in the cache; it differs by model, layer, image size and versions."""
    digest = hash_bytes(model.fingerprint(layer), layer, runtime, version, torch.__version__, str(GRAPH_VERSION))
    return f"{runtime}-{digest}"


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


def to_output(outputs: np.ndarray, layer: str, precision: str = "f32") -> np.ndarray:
    """Bring a runtime's outputs into the common form: float16 for the large maps of a stage, else float32."""
    if layer.startswith("stage"):
        return outputs.astype(np.float16, copy=False)
    outputs = outputs.astype(np.float32, copy=False)
    if layer == "embedding" and precision != "f32":  # rounding leaves the lengths slightly off
        outputs = outputs / np.maximum(np.linalg.norm(outputs, axis=1, keepdims=True), 1e-12)
    return outputs


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


class _ForkGuard:
    """Protects native objects from being destroyed in a forked child.

    A native runtime loses its threads in the child, and even destroying it there would hang. References taken before
    the fork are given up in the parent and leaked in the child.
    """

    def __init__(self) -> None:
        self.forks = 0  # how many forks lie between this process and the one that imported the module
        self._sources: list[Callable[[], list[Any]]] = []
        self._protected: list[Any] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def protect(self, native_objects: Callable[[], list[Any]], clear: Callable[[], None]) -> None:
        """Protect what ``native_objects`` lists; ``clear`` empties the caller's cache in the child."""
        self._sources.append(native_objects)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=clear)

    def _before(self) -> None:
        for source in self._sources:
            for item in source():
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
                self._protected.append(item)

    def _after_in_parent(self) -> None:
        for item in self._protected:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(item))
        self._protected.clear()

    def _after_in_child(self) -> None:
        self.forks += 1
        self._protected.clear()


fork_guard = _ForkGuard()


class CompiledModels(Generic[T]):
    """The last few compiled models of this process, safe under threads and forks.

    Args:
        native_objects: Lists the native objects of one compiled model.
        max_size: How many are kept.
    """

    def __init__(self, native_objects: Callable[[T], list[Any]], max_size: int = 4) -> None:
        self.max_size, self.lock = max_size, threading.Lock()
        self._models: OrderedDict[Hashable, T] = OrderedDict()
        fork_guard.protect(
            lambda: [item for model in list(self._models.values()) for item in native_objects(model)], self.clear
        )

    def get(self, key: Hashable, compile_model: Callable[[], T]) -> T:
        """Return the model under a key, compiled now if it is not there."""
        with self.lock:
            if key not in self._models:
                self._models[key] = compile_model()
                while len(self._models) > self.max_size:
                    self._models.popitem(last=False)
            self._models.move_to_end(key)
            return self._models[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._models))

    def clear(self) -> None:
        self.lock = threading.Lock()  # in a forked child another thread of the parent may have held it
        self._models.clear()


def write_info(part: Path, model: Embedder, layer: str, difference: float) -> None:
    """Write what a converted model was made from, with the checksums of its files."""
    about = {"model": model.name, "layer": layer, "difference": difference}
    sums = {file.name: checksum(file) for file in sorted(part.iterdir())}
    write_json(part / "info.json", stamp("cache", {**about, "checksums": sums}))


def check_files(path: Path) -> None:
    """Raise a RuntimeError if the files of a converted model are not those that were written."""
    try:
        sums = read_json(path / "info.json")["checksums"]
        if any(checksum(path / name) != value for name, value in sums.items()):
            raise RuntimeError(f"the converted model {path.name} was changed")
    except (LookalikeError, KeyError, TypeError, OSError) as error:
        raise RuntimeError(f"the converted model {path.name} is incomplete") from error


def open_converted(convert: Callable[[], Path], open_model: Callable[[Path], T]) -> T:
    """Open a converted model of the cache; a damaged one is deleted and converted again."""
    path = convert()
    try:
        return open_model(path)
    except RuntimeError:
        shutil.rmtree(path, ignore_errors=True)
        return open_model(convert())
