"""`lookalike forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli.verb import Answer, verb


@verb
def forget(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An adapted model.")],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE…", help="Files, content ids, or patterns of folder/path.")
    ],
) -> Answer:
    """Take pool images out of an adapted model for good: it is made again as if they had never been there."""
    import lookalike

    found = lookalike.forget(model=model, images=images)
    gone = ", ".join(map(str, found["versions_gone"])) or "none"
    lines = [f"Forgot {len(found['forgotten'])} images; versions gone for good: {gone}."]
    if found["made_again"] is not None:
        lines.append(f"Version {found['made_again']} was made again from the base model.")
    name = "the base model" if found["in_use"] == 0 else f"version {found['in_use']}"
    return Answer(found, [*lines, f"In use: {name}."])
