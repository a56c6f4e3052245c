"""The verb `export`: a model as one ONNX file, compared with torch before it is handed over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike._version import __version__
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, human_bytes
from lookalike.core.progress import say
from lookalike.models.backbones import DEFAULT
from lookalike.models.embedder import Embedder
from lookalike.models.inference import onnx_runtime
from lookalike.models.inference.graph import Program

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What `export` wrote: the file takes `pixels` (uint8 batch×size×size×3, RGB) and gives `embedding`."""

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
    model: str | Path | Embedder = DEFAULT,
    out: str | Path,
    size: int | None = None,
    pooling: str | None = None,
    weights: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write the model as ONNX: one fixed image size, any batch; normalization, head and unit length included.

    The file is kept only if its embeddings equal torch's within `tolerance`.
    """
    out = Path(out)
    if out.suffix != ".onnx":
        raise LookalikeError(f"`{out}` does not end in .onnx.")
    if not isinstance(model, Embedder):
        model = Embedder.from_pretrained(model, device=CPU, size=size, pooling=pooling, weights=weights)
    with atomic_file(out) as part:
        say("Exporting takes some ten seconds.")
        onnx_runtime.write_onnx(model, "embedding", part, metadata(model))
        off = parity(model, part)
        if not off <= tolerance:
            raise LookalikeError(
                f"The exported model differs from torch by {off:.1e}, more than {tolerance:.0e}; nothing was written."
            )
        count = part.stat().st_size
    say(f"{out}: {human_bytes(count)}; largest difference to torch {off:.1e} (allowed {tolerance:.0e}).")
    return Exported(
        out.as_posix(), count, model.preprocess.size, model.dim, onnx_runtime.OPSET, off, tolerance, model.fingerprint()
    )


def metadata(model: Embedder) -> dict[str, str]:
    """What a user of the file alone must know."""
    return {
        "lookalike": __version__,
        "model": model.name,
        "architecture": model.architecture,
        "fingerprint": model.fingerprint(),
        "preprocess": json.dumps(model.preprocess.to_json()),
        "input": "pixels: uint8, batch × size × size × 3, RGB, after resize and center crop; not normalized",
        "output": "rows: float32, batch × dim, length one",
        "license": str(model.card.get("license", "")),
    }


def parity(model: Embedder, file: Path) -> float:
    """The largest difference of a unit embedding between the file in ONNX Runtime and the model in torch."""
    session = onnx_runtime.start(file)
    worst = 0.0
    for count in (1, 2, 5):
        program = Program(model)
        pixels = program.example(count)
        with torch.inference_mode():
            wanted = program(pixels.to(model.device)).cpu().numpy()
        got = session.run(None, {"pixels": pixels.numpy()})[0]
        worst = max(worst, float(np.abs(got - wanted).max())) if got.shape == wanted.shape else float("inf")
    return worst
