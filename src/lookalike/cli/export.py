"""`lookalike export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb


@verb
def export(
    out: Annotated[Path, typer.Option("--out", help="The file to write: .onnx.")],
    model: options.Model = "efficientnet_lite0",
    size: options.Size = None,
    pooling: options.Pooling = None,
    weights: options.Weights = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest difference to torch that is allowed.")
    ] = 1e-4,
) -> Answer:
    """Write a model as ONNX, compared with torch."""
    import lookalike
    from lookalike.core.files import human_bytes

    done = lookalike.export(out=out, model=model, size=size, pooling=pooling, weights=weights, tolerance=tolerance)
    lines = show.rows(
        [
            ("File", f"{show.link(done.out)}, {human_bytes(done.bytes)}, ONNX opset {done.opset}"),
            ("Takes", f"pixels: uint8, any batch × {done.size} × {done.size} × 3, RGB"),
            ("Gives", f"{done.dim} numbers an image, of length one"),
            ("Parity", f"differs from torch by at most {done.difference:.1e} (allowed {done.tolerance:.0e})"),
        ]
    )
    return Answer(done, lines)
