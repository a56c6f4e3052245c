"""The ONNX runtime, for machines without OpenVINO, and the export to ONNX (some ten seconds, once per model)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core import artifacts
from lookalike.core.device import threads
from lookalike.models.embedder import Embedder
from lookalike.models.inference import runtime_base
from lookalike.models.inference.model_graph import ModelGraph, eval_mode, parity_error
from lookalike.models.inference.runtime_base import TOLERANCE, CompiledModels, RuntimeUnavailable, to_output

OPSET = 20
_sessions: CompiledModels[Any] = CompiledModels(lambda session: [session])


def installed() -> bool:
    """Whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None


def cache_path(model: Embedder, layer: str) -> Path:
    """Where the exported model lies, or would lie."""
    return runtime_base.cache_path(model.fingerprint(layer), layer, "onnx", f"opset{OPSET}")


def is_converted(model: Embedder, layer: str) -> bool:
    """Whether the model was exported before."""
    return (cache_path(model, layer) / "model.onnx").is_file()


class OnnxRuntime:
    """Runs a layer of a model in ONNX Runtime on the CPU, in f32 alone and in batches of any size.

    Raises:
        RuntimeUnavailable: If ONNX Runtime is not installed or cannot run the model.
    """

    name = "onnx"

    def __init__(self, model: Embedder, layer: str, precision: str = "f32", largest: int = 1) -> None:
        if precision != "f32":
            raise RuntimeUnavailable("ONNX Runtime runs in f32 only: use runtime `openvino` or `torch` for bf16.")
        self.layer = layer
        self.session = runtime_base.open_converted(lambda: convert(model, layer), _open_cached)

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            yield to_output(self.session.run(None, {"pixels": batch})[0], self.layer)


def _open_cached(path: Path) -> Any:
    def open_now() -> Any:
        if not artifacts.is_whole(path):
            raise RuntimeError("the exported model is damaged")
        return open_session(path / "model.onnx")

    artifacts.touch(path)
    return _sessions.get((path, threads()), open_now)


def open_session(file: Path) -> Any:
    """Load an ONNX file into ONNX Runtime, without telemetry."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def convert(model: Embedder, layer: str) -> Path:
    """Export a model to ONNX and store it in the cache, unless it is there; see ``openvino_runtime.convert``."""
    path = cache_path(model, layer)
    if (path / "model.onnx").is_file():
        return path
    if not installed():
        raise RuntimeUnavailable("ONNX Runtime is not installed: pip install onnxruntime onnx onnxscript.")
    about: dict[str, Any] = {"model": model.name, "layer": layer}

    def fill(part: Path) -> None:
        write_onnx(model, layer, part / "model.onnx")
        session = open_session(part / "model.onnx")
        about["difference"] = difference = parity_error(model, layer, lambda x: session.run(None, {"pixels": x})[0])
        if not difference <= TOLERANCE:
            raise RuntimeUnavailable(
                f"ONNX Runtime computes `{model.architecture}` differently from torch (by {difference:.1e})."
            )

    with _sessions.lock:
        return artifacts.folder(path, fill, about=about)


def write_onnx(model: Embedder, layer: str, file: Path, metadata: dict[str, str] | None = None) -> None:
    """Export a model up to a layer as one ONNX file, for one image size and any batch size.

    A variable image size would make the padding symbolic and the export take minutes.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RuntimeUnavailable("Exporting to ONNX needs `pip install onnx onnxscript`.") from error
    graph = ModelGraph(model, layer)
    with eval_mode(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shapes = ({0: torch.export.Dim("batch", min=1, max=1 << 16)},)
            names: dict[str, Any] = {"input_names": ["pixels"], "output_names": ["vectors"], "opset_version": OPSET}
            example = (graph.example(),)
            program = torch.onnx.export(graph, example, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
        except torch.onnx.OnnxExporterError as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise RuntimeUnavailable(f"`{model.architecture}` cannot be exported to ONNX ({first}).") from error
    assert program is not None
    program.model.metadata_props.update(metadata or {})
    program.save(file, external_data=False)
