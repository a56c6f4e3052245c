"""What all runtimes share: where converted models are cached, those of this process, and safety under fork.

Nothing here needs torch: a query is embedded by a converted model without loading it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError

T = TypeVar("T")

GRAPH_VERSION = 2
"""Raise it when the graph changes in a way that the model's fingerprint does not show."""

TOLERANCE = 1e-4
"""Largest difference to torch with which a converted model is accepted."""


class RuntimeUnavailable(LookalikeError):
    """A fast runtime is not installed, or cannot run this model."""


class Runtime(Protocol):
    """A model ready to run: uint8 batches ``(N, S, S, 3)`` in, arrays out, in the same order."""

    name: str

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]: ...


def to_output(outputs: np.ndarray, layer: str, precision: str = "f32") -> np.ndarray:
    """Bring a runtime's outputs into the common form: float16 for the large maps of a stage, else float32."""
    if layer.startswith("stage"):
        return outputs.astype(np.float16, copy=False)
    outputs = outputs.astype(np.float32, copy=False)
    if layer == "embedding" and precision != "f32":  # rounding leaves the lengths slightly off
        outputs = outputs / np.maximum(np.linalg.norm(outputs, axis=1, keepdims=True), 1e-12)
    return outputs


def pad(block: np.ndarray, size: int) -> np.ndarray:
    """Fill a block up with zeros to ``size`` images, for a graph of one fixed shape."""
    padded = np.zeros((size, *block.shape[1:]), block.dtype)
    padded[: len(block)] = block
    return padded


class _ForkGuard:
    """Protects native objects from being destroyed in a forked child.

    A native runtime loses its threads in the child, and even destroying it there would hang. References taken before
    the fork are given up in the parent and leaked in the child.
    """

    def __init__(self) -> None:
        self.forks = 0  # how many forks lie between this process and the one that imported the module
        self.caches: list[CompiledModels[Any]] = []
        self._protected: list[Any] = []
        if hasattr(os, "register_at_fork"):
            after = {"after_in_parent": self._after_in_parent, "after_in_child": self._after_in_child}
            os.register_at_fork(before=self._before, **after)

    def _before(self) -> None:
        for cache in self.caches:
            for item in cache.all_native():
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
                self._protected.append(item)

    def _after_in_parent(self) -> None:
        for item in self._protected:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(item))
        self._protected.clear()

    def _after_in_child(self) -> None:
        self.forks += 1
        self._protected.clear()
        for cache in self.caches:
            cache.clear()


fork_guard = _ForkGuard()


class CompiledModels(Generic[T]):
    """The last few compiled models of this process, with their native objects; safe under threads and forks."""

    def __init__(self, native_objects: Callable[[T], list[Any]], max_size: int = 4) -> None:
        self.native_objects, self.max_size, self.lock = native_objects, max_size, threading.Lock()
        self._models: OrderedDict[Hashable, T] = OrderedDict()
        fork_guard.caches.append(self)

    def all_native(self) -> list[Any]:
        return [item for model in list(self._models.values()) for item in self.native_objects(model)]

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


def cache_path(fingerprint: str, layer: str, runtime: str, version: str) -> Path:
    """Where a converted model is, or would be; it differs by model, layer, image size and versions."""
    key = {"model": fingerprint, "layer": layer, "version": version, "torch": package_version("torch")}
    return artifacts.artifact("runtimes", {**key, "graph": GRAPH_VERSION}, group=runtime)


def open_converted(convert: Callable[[], Path], open_model: Callable[[Path], T]) -> T:
    """Open a converted model of the cache; a damaged one is converted again."""
    path = convert()
    try:
        return open_model(path)
    except RuntimeError:
        artifacts.delete(path)
        return open_model(convert())
