"""`lookalike demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import Device, Seed
from lookalike.cli.verb import Answer, verb


@verb
def demo(
    images: Annotated[
        Path | None, typer.Option("--images", help="Your own folder, with one subfolder a class or without any.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where the run goes; runs/demo otherwise.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to start from.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> Answer:
    """All of it in one go: train, measure, index, search, report.

    Without --images the images are generated. A second run reuses what is there.
    """
    from lookalike import demo as station

    done = station.demo(images=images, out=out, model=model, seed=seed, device=device)
    search = f"lookalike search {show.short(done.hits.query)} --index {show.short(done.index)}"
    found = [f"  {line}" for line in str(done.hits).splitlines()[:4]]
    return Answer(done, [f"$ {search}", *found, *show.rows(done.lines)])
