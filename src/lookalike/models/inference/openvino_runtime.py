"""The OpenVINO runtime: the fastest on a CPU. A model is converted once and stored in the user's cache."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lookalike.core import artifacts
from lookalike.core.device import threads
from lookalike.core.imports import import_openvino
from lookalike.core.interrupts import run_apart
from lookalike.core.progress import Progress
from lookalike.models.embedder import Embedder
from lookalike.models.inference.model_graph import ModelGraph, eval_mode, parity_error
from lookalike.models.inference.openvino_compiled import BLOCK, OpenVINORuntime, compiled_models, model_path
from lookalike.models.inference.runtime_base import TOLERANCE, RuntimeUnavailable, open_converted


def installed() -> bool:
    """Whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def is_converted(model: Embedder, layer: str) -> bool:
    """Whether the model was converted before."""
    return (model_path(model.fingerprint(layer), layer) / "model.xml").is_file()


def open_runtime(model: Embedder, layer: str, precision: str = "f32", largest: int = BLOCK) -> OpenVINORuntime:
    """Convert the model unless that was done before, and open it; see `convert` and `OpenVINORuntime`."""
    return open_converted(lambda: convert(model, layer), lambda path: OpenVINORuntime(path, layer, precision, largest))


def convert(model: Embedder, layer: str) -> Path:
    """Convert a model and store it in the cache, unless it is there; agreement with torch is checked once.

    Raises:
        RuntimeUnavailable: If OpenVINO cannot run the model, or computes something else than torch.
    """
    path = model_path(model.fingerprint(layer), layer)
    if is_converted(model, layer):
        return path
    ov = import_openvino()
    with compiled_models.lock:
        try:
            with Progress("Converting the model"):  # OpenVINO's frontend would take a Ctrl-C for an unknown operation
                graph = run_apart(lambda: _convert(ov, model, layer))
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

        def save(part: Path) -> None:
            ov.save_model(graph, part / "model.xml", compress_to_fp16=False)

        return artifacts.folder(path, save, about={"model": model.name, "layer": layer, "difference": difference})


def _convert(ov: Any, model: Embedder, layer: str) -> Any:
    graph = ModelGraph(model, layer)
    side = model.preprocess.size
    with eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns about every branch on a shape
        return ov.convert_model(graph, example_input=graph.example(), input=[ov.PartialShape([-1, side, side, 3])])
