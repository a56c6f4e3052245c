"""`lookalike shift`: how far a model can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb

app = typer.Typer(help="How far a model can be trusted: splits of growing difficulty and what comes of them.")


@app.command("splits")
@verb
def splits(
    data: options.Labelled,
    model: options.Model = "efficientnet_lite0",
    layout: options.Layout = "auto",
    measure: Annotated[
        str, typer.Option("--measure", help="FID of the pictures (samples) or of the classes' means (means).")
    ] = "samples",
    count: Annotated[int, typer.Option("--count", help="How many splits to keep of the whole sequence.")] = 9,
    removal: Annotated[
        str, typer.Option("--removal", help="pure, or authors: the paper's rule, which may swap instead.")
    ] = "pure",
    draws: Annotated[int, typer.Option("--draws", help="Random removals beside every removal.")] = 5,
    size: options.Size = None,
    pooling: options.Pooling = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    authors: Annotated[
        Path | None, typer.Option("--authors", help="Take the splits from a file of the paper's authors.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write; NAME-splits.json here otherwise.")
    ] = None,
) -> Answer:
    """Make train/test splits of growing difficulty."""
    from lookalike import shift

    found = shift.splits(
        data=data,
        model=model,
        layout=layout,
        measure=measure,  # type: ignore[arg-type]
        count=count,
        removal=removal,
        draws=draws,
        size=size,
        pooling=pooling,
        device=device,
        seed=seed,
        authors=authors,
        progress=True,
    )
    path = out or Path(f"{found.data['name']}-splits.json")
    found.save(path)
    body = []
    for split in found.splits:
        what = "the usual split" if split.id == found.default else ""
        control = next((step.random for step in found.sequence if step.name == split.step and step.random), ())
        beside = f"{sum(control) / len(control):.1f}" if control else "–"
        body.append((split.id, split.step, f"{split.fid:.1f}", beside, len(split.train), *split.pictures, what))
    head = ("split", "step", "FID", "at random", "classes a side", "train", "test", "neither", "")
    lines = show.table(head, body)
    lines += show.rows(
        [("Written", show.link(path)), ("Next", f"lookalike shift run {data} --splits {show.short(path)}")]
    )
    return Answer({**found.to_json(), "path": path}, lines, asked=True)
