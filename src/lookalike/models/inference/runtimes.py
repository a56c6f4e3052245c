"""Choosing the runtime of a model: torch always works; OpenVINO and ONNX Runtime are faster where installed."""

from __future__ import annotations

from collections.abc import Callable

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.models.embedder import Embedder
from lookalike.models.inference import onnx_runtime, openvino_runtime, torch_runtime
from lookalike.models.inference.inputs import ImageStream
from lookalike.models.inference.runtime_base import Runtime, RuntimeUnavailable
from lookalike.models.inference.torch_runtime import TorchRuntime

NAMES = ("auto", "torch", "openvino", "onnx")
GENERATOR_PROBE = 32  # a generator that yields as many images is taken for a long one
_unsupported: set[str] = set()  # fingerprints that OpenVINO cannot run: each is tried once


def select_runtime(
    model: Embedder, layer: str, name: str, precision: str, source: ImageStream, batch_size: int
) -> Runtime:
    """Choose what runs the model for one call.

    ``"auto"`` takes OpenVINO if the model was converted before or if there are enough images for a conversion to pay
    off, a converted ONNX model where OpenVINO is missing, and torch otherwise.

    Raises:
        RuntimeUnavailable: If the requested runtime is not installed or cannot run the model.
        LookalikeError: If the name is unknown, or the runtime does not run on the model's device.
    """
    choose(name, NAMES, "a runtime")
    if name == "torch":
        return TorchRuntime(model, layer, precision, source.count)
    if model.device.type != CPU:
        if name == "auto":
            return TorchRuntime(model, layer, precision)
        raise LookalikeError(f"Runtime `{name}` runs on the CPU, but the model is on `{model.device}`.")
    largest = batch_size if source.count is None else min(batch_size, source.count)
    if name == "auto":
        return _select_automatically(model, layer, precision, source, largest)
    if name == "openvino" and not openvino_runtime.installed():
        raise RuntimeUnavailable("OpenVINO is not installed: pip install openvino, or use runtime `auto`.")
    opened: Callable[..., Runtime] = onnx_runtime.OnnxRuntime if name == "onnx" else openvino_runtime.open_runtime
    return opened(model, layer, precision, largest)


def _select_automatically(model: Embedder, layer: str, precision: str, source: ImageStream, largest: int) -> Runtime:
    fallback = TorchRuntime(model, layer, precision, source.count)
    if model.training:
        return fallback
    if not openvino_runtime.installed():
        if precision == "f32" and onnx_runtime.installed() and onnx_runtime.is_converted(model, layer):
            return onnx_runtime.OnnxRuntime(model, layer)
        return fallback
    fingerprint = model.fingerprint(layer)
    if fingerprint in _unsupported:
        return fallback
    if not openvino_runtime.is_converted(model, layer):
        if source.count is None:
            pays_off = source.has_at_least(GENERATOR_PROBE)
        else:
            pays_off = source.count >= torch_runtime.MIN_IMAGES
        if not pays_off:
            return fallback
    try:
        return openvino_runtime.open_runtime(model, layer, precision, largest)
    except RuntimeUnavailable as error:
        _unsupported.add(fingerprint)
        warn(f"{error} Continuing with torch.")
        return fallback
