"""`lookalike search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.options import Device
from lookalike.cli.verb import Answer, verb


@verb
def search(
    query: Annotated[
        str | None, typer.Argument(metavar="IMAGE", help="An image, a folder of them, or - for standard input.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Words, where the model reads them (open_clip).")] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="An index, a run or the images' folder; the last updated otherwise.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="How many hits.")] = 10,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filters", "--filter", metavar="RULE", help="label=gull, path=sea/*, domain!=sketch; again."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show weak hits too.")] = False,
    more: Annotated[
        list[Path] | None, typer.Option("--more", metavar="IMAGE", help="It should look like this too; again.")
    ] = None,
    less: Annotated[
        list[Path] | None, typer.Option("--less", metavar="IMAGE", help="It should not look like this; again.")
    ] = None,
    box: Annotated[
        tuple[float, float, float, float] | None,
        typer.Option("--box", metavar="X1 Y1 X2 Y2", help="The part of the image that counts, in pixels."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Refuse an index made by another model.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every image.")] = False,
    device: Device = "auto",
) -> Answer:
    """Find images that show the same thing."""
    import lookalike

    found = lookalike.search(
        query=query,
        text=text,
        index=index,
        k=k,
        filters=filters,
        all=every,
        more=more or (),
        less=less or (),
        box=box,
        model=model,
        exact=exact,
        device=device,
    )
    answers = found if isinstance(found, list) else [found]
    return Answer(found, "\n\n".join(map(str, answers)).splitlines(), asked=True)
