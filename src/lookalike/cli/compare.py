"""`lookalike compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli import options
from lookalike.cli.evaluate import after
from lookalike.cli.verb import Answer, verb


@verb
def compare(
    data: options.Labeled,
    a: Annotated[str, typer.Option("--a", help="One model: a folder, a run or a name.")],
    b: Annotated[str, typer.Option("--b", help="The other.")],
    split: options.Split = None,
    layout: options.Layout = "auto",
    mode: options.Mode = "auto",
    recall_at: options.RecallAt = options.RECALL_AT,
    top: options.Top = 1000,
    leave_out_copies: options.LeaveOutCopies = False,
    batch_size: options.BatchSize = 32,
    runtime: options.Runtime = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: options.RunOut = None,
) -> Answer:
    """Two models on the same images: which is better, if either."""
    import lookalike

    found = lookalike.compare(
        data=data,
        a=a,
        b=b,
        split=split,
        layout=layout,
        mode=mode,
        recall_at=options.numbers(recall_at, "--recall-at"),
        top=top,
        leave_out_copies=leave_out_copies,
        batch_size=batch_size,
        runtime=runtime,
        device=device,
        seed=seed,
        out=out,
        progress=True,
    )
    return Answer(found, [*str(found).splitlines(), *after(out)], asked=True)
