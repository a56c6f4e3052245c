"""`lookalike protocol`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb


@verb
def protocol(
    name: Annotated[str, typer.Argument(metavar="NAME", help="pacs, domainnet126 or visda.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder of the data set.")],
    pool: options.Pool = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="source, bn, tent, shot, adacontrast, mcc, on_target, without, random, t3ar; may be given again.",
        ),
    ] = None,
    fraction: Annotated[
        list[float] | None, typer.Option("--fraction", help="A share of the target, as 0.01; may be given again.")
    ] = None,
    neighbors: Annotated[
        list[int] | None, typer.Option("--neighbors", help="Also t3ar with so many; may be given again.")
    ] = None,
    retriever: Annotated[
        str | None, typer.Option("--retriever", help="The model that retrieves; the source model otherwise.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds.")] = 1,
    scale: Annotated[str, typer.Option("--scale", help="small, or paper: ResNet-50 at 224 px.")] = "small",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of adapt; may be given again."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of the result; runs/<time>-protocol otherwise.")
    ] = None,
) -> Answer:
    """Measure adaptation over the shifts of PACS, DomainNet-126 or VisDA-C; a stopped one goes on."""
    import lookalike
    from benchmarks.papers.t3ar_protocols import PICKED
    from lookalike.core.settings import parse_set

    done = lookalike.protocol(
        name=name,
        data=data,
        pool=pool or [],
        method=method or PICKED,
        fraction=fraction or (1.0,),
        neighbors=neighbors or (),
        retriever=retriever,
        seeds=seeds,
        scale=scale,
        settings=parse_set(settings or []),
        out=out,
    )
    found = done.result
    body = [
        (
            f"{row['source']} to {row['target']}",
            row["method"] if "neighbors" not in row else f"t3ar, {row['neighbors']} neighbors",
            f"{row['fraction']:g}",
            str(row["seed"]),
            f"{row[found['measure']]:.1f}",
        )
        for row in found["rows"]
    ]
    lines = show.table(("shift", "method", "of the target", "seed", "right, %"), body)
    lines += show.rows([("Report", f"lookalike report {show.short(done.path)}")])
    return Answer({"run": done.path, **found}, lines, asked=True)
