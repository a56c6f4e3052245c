"""`lookalike backup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.verb import Answer, verb


@verb
def backup(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index, or the images' folder.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write.")],
) -> Answer:
    """Write an index to one file: vectors, model, table and calibration; not the images."""
    import lookalike
    from lookalike.core.files import human_bytes

    done = lookalike.backup(index=index, out=out)
    lines = [f"Backup    {done.path}: {done.images:,} images, {human_bytes(done.bytes)}"]
    return Answer(done, [*lines, f"Restore   lookalike restore {done.path}"])
