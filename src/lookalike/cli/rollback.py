"""`lookalike rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli.verb import Answer, verb


@verb
def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An adapted model.")],
    to: Annotated[int | None, typer.Option("--to", help="This version, 0 being the base; else the one before.")] = None,
) -> Answer:
    """Go back to an earlier version of an adapted model."""
    import lookalike

    found = lookalike.rollback(model=model, to=to)
    name = "the base model" if found["to"] == 0 else f"version {found['to']}"
    return Answer(found, [f"{found['model'].name} uses {name} again, in place of version {found['from']}."])
