"""ONNX Runtime: where OpenVINO is missing. The export takes some ten seconds, once."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lookalike.core import folders
from lookalike.core.device import threads
from lookalike.core.files import atomic_folder, stamp, write_json
from lookalike.models.inference import forks
from lookalike.models.inference.graph import Program, RuntimeUnavailable, difference, evaluating, finish, key

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

OPSET = 20
TOLERANCE = 1e-4
KEPT = 4

_sessions: OrderedDict[tuple[Path, int], Any] = OrderedDict()
_lock = threading.Lock()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _sessions.clear()


forks.keep_alive(lambda: list(_sessions.values()), _forget)


def installed() -> bool:
    return find_spec("onnxruntime") is not None


def entry(model: Embedder, layer: str) -> Path:
    return folders.cache("runtimes") / key(model, layer, "onnx", f"opset{OPSET}")


def ready(model: Embedder, layer: str) -> bool:
    return (entry(model, layer) / "model.onnx").is_file()


class OnnxRuntime:
    name = "onnx"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", largest: int = 1) -> None:
        if precision != "f32":
            raise RuntimeUnavailable("ONNX Runtime runs in f32 here: take runtime `openvino` or `torch` for bf16.")
        self.layer = layer
        path = prepare(model, layer)
        try:
            self.session = open_session(path)
        except RuntimeError:  # a damaged entry
            shutil.rmtree(path, ignore_errors=True)
            self.session = open_session(prepare(model, layer))

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            yield finish(self.session.run(None, {"pixels": batch})[0], self.layer)


def open_session(path: Path) -> Any:
    name = (path, threads())
    with _lock:
        if name not in _sessions:
            _sessions[name] = start(path / "model.onnx")
            while len(_sessions) > KEPT:
                _sessions.popitem(last=False)
        _sessions.move_to_end(name)
        session = _sessions[name]
    folders.touch(path)
    return session


def start(file: Path) -> Any:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def prepare(model: Embedder, layer: str) -> Path:
    path = entry(model, layer)
    if (path / "model.onnx").is_file():
        return path
    if not installed():
        raise RuntimeUnavailable("ONNX Runtime is not installed: pip install onnxruntime onnx onnxscript.")
    with _lock, atomic_folder(path, private=True) as part:
        write_onnx(model, layer, part / "model.onnx")
        session = start(part / "model.onnx")
        off = difference(model, layer, lambda pixels: session.run(None, {"pixels": pixels})[0])
        if not off <= TOLERANCE:
            raise RuntimeUnavailable(
                f"ONNX Runtime computes `{model.architecture}` differently from torch (by {off:.1e})."
            )
        write_json(part / "info.json", stamp("cache", {"model": model.name, "layer": layer, "difference": off}))
    folders.trim_cache()
    return path


def write_onnx(model: Embedder, layer: str, file: Path, metadata: dict[str, str] | None = None) -> None:
    """One fixed size, any batch; a size that varies makes padding symbolic and the export take minutes."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RuntimeUnavailable("Exporting to ONNX needs `pip install onnx onnxscript`.") from error
    program = Program(model, layer)
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = torch.onnx.export(
                program,
                (program.example(),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1 << 16)},),
                input_names=["pixels"],
                output_names=["rows"],
                opset_version=OPSET,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise RuntimeUnavailable(f"`{model.architecture}` cannot be exported to ONNX ({first}).") from error
    assert graph is not None
    graph.model.metadata_props.update(metadata or {})
    graph.save(file, external_data=False)
