"""The command ``export``: a model as one ONNX file, checked against torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lookalike._version import __version__
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, format_bytes
from lookalike.core.progress import say
from lookalike.models.backbones import DEFAULT_MODEL
from lookalike.models.embedder import Embedder
from lookalike.models.inference import onnx_runtime
from lookalike.models.inference.model_graph import parity_error

TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExportResult:
    """What ``export`` wrote.

    The file takes ``pixels`` (uint8, batch × size × size × 3, RGB) and returns ``vectors`` (float32, batch × dim).
    """

    out: str
    bytes: int
    size: int
    dim: int
    opset: int
    difference: float
    tolerance: float
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def export(
    *,
    model: str | Path | Embedder = DEFAULT_MODEL,
    out: str | Path,
    size: int | None = None,
    pooling: str | None = None,
    weights: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> ExportResult:
    """Export a model as an ONNX file.

    The file takes one fixed image size and any batch size; normalization, head and scaling to unit length are
    included. It is written only if its embeddings agree with torch.

    Args:
        model: Model folder, run, timm or open_clip name.
        out: File to write, ending in .onnx.
        size: Input size in pixels. The model's own by default.
        pooling: Pooling. The model's own by default.
        weights: Local weight file, or "random".
        tolerance: Largest accepted difference to torch.

    Returns:
        Size, dimension and measured difference of the file.

    Raises:
        LookalikeError: If the model cannot be exported or the file differs from torch.

    Example:
        >>> model = la.Embedder.from_pretrained("resnet10_small", weights="random")
        >>> la.export(model=model, out="model.onnx").dim  # doctest: +SKIP
        256
    """
    out = Path(out)
    if out.suffix != ".onnx":
        raise LookalikeError(f"`{out}` does not end in .onnx.")
    if not isinstance(model, Embedder):
        model = Embedder.from_pretrained(model, device=CPU, size=size, pooling=pooling, weights=weights)
    with atomic_file(out) as part:
        say("Exporting to ONNX; this takes about ten seconds.")
        onnx_runtime.write_onnx(model, "embedding", part, _metadata(model))
        session = onnx_runtime.open_session(part)

        def run(pixels: np.ndarray) -> np.ndarray:
            return np.asarray(session.run(None, {"pixels": pixels})[0])

        difference = max(parity_error(model, "embedding", run, count) for count in (1, 2, 5))
        if not difference <= tolerance:
            raise LookalikeError(
                f"The exported model differs from torch by {difference:.1e}, more than {tolerance:.0e}; "
                "nothing was written."
            )
        count = part.stat().st_size
    say(f"{out}: {format_bytes(count)}; largest difference to torch {difference:.1e} (allowed: {tolerance:.0e}).")
    facts = (count, model.preprocess.size, model.dim, onnx_runtime.OPSET, difference, tolerance, model.fingerprint())
    return ExportResult(out.as_posix(), *facts)


def _metadata(model: Embedder) -> dict[str, str]:
    """What somebody who has only the file needs to know."""
    return {
        **{"lookalike": __version__, "model": model.name, "architecture": model.architecture},
        "fingerprint": model.fingerprint(),
        "preprocess": json.dumps(model.preprocess.to_json()),
        "input": "pixels: uint8, batch × size × size × 3, RGB, after resize and center crop; not normalized",
        "output": "vectors: float32, batch × dim, unit length",
        "license": str(model.card.get("license", "")),
    }
