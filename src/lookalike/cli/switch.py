"""`lookalike switch`."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.verb import Answer, verb


@verb
def switch(
    index: Annotated[str | None, typer.Argument(metavar="INDEX", help="An index; else the last updated.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="A generation's number or its model; the one before otherwise.")
    ] = None,
) -> Answer:
    """Let another generation of an index answer, or the one before; a running `serve` follows."""
    import lookalike

    manifest = lookalike.switch(index=index, to=to)
    head = ("generation", "model", "images", "")
    body = [
        (g.number, g.model.short, f"{g.images:,}", "answers" if g.number == manifest.live else "")
        for g in manifest.generations
    ]
    document = {"live": manifest.live, "generations": [g.model_dump(mode="json") for g in manifest.generations]}
    return Answer(document, show.table(head, body))
