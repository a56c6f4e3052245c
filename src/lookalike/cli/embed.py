"""`lookalike embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb


@verb
def embed(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, or a table of them.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write: .npy or .parquet.")],
    model: options.Model = "efficientnet_lite0",
    layout: options.Layout = "auto",
    split: options.Split = None,
    size: options.Size = None,
    pooling: options.Pooling = None,
    weights: options.Weights = None,
    batch_size: options.BatchSize = 32,
    runtime: options.Runtime = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="f32, or bf16: faster, less exact; what it costs is measured and said.")
    ] = "f32",
    device: options.Device = "auto",
    on_error: Annotated[str, typer.Option("--on-error", help="Unreadable images: skip them, or raise.")] = "skip",
    dry_run: options.DryRun = False,
) -> Answer:
    """Turn images into a file of vectors."""
    import lookalike
    from lookalike.core.files import human_bytes

    done = lookalike.embed(
        source=source,
        out=out,
        model=model,
        layout=layout,
        split=split,
        size=size,
        pooling=pooling,
        weights=weights,
        batch_size=batch_size,
        runtime=runtime,
        precision=precision,
        device=device,
        on_error=on_error,
        dry_run=dry_run,
    )
    took = f" ({done.seconds:.0f} s, {done.count / done.seconds:,.0f} a second)" if done.seconds else ""
    bad = [(f"{'Unreadable' if not i else ''}", f"{f.name}: {f.reason}") for i, f in enumerate(done.failures[:3])]
    more = [("", f"and {len(done.failures) - 3:,} more; --json names them all")] if len(done.failures) > 3 else []
    written = f"would be about {human_bytes(done.bytes)}" if dry_run else human_bytes(done.bytes)
    return Answer(
        done,
        show.rows(
            [
                ("Images", f"{done.count:,}{took}"),
                *bad,
                *more,
                ("Vectors", f"{done.dim} numbers each, by {done.model} ({done.fingerprint[:4]})"),
                ("File", f"{show.link(done.out)}, {written}"),
                ("Next", f"lookalike index {show.short(source)} --model {model}"),
            ]
        ),
    )
