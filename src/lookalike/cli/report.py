"""`lookalike report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.verb import Answer, verb


@verb
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its name under ./runs.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write it; report.html in the run otherwise.")
    ] = None,
    images: Annotated[bool, typer.Option("--images/--no-images", help="With the images, or without any.")] = True,
    show_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> Answer:
    """Draw a run as one HTML file that opens offline."""
    import lookalike
    from lookalike.core.files import human_bytes

    path = Path(lookalike.report(run=run, out=out, images=images, open=show_it))
    size = path.stat().st_size
    document = {"report": path, "bytes": size}
    return Answer(document, show.rows([("Report", f"{show.link(path)}, {human_bytes(size)}"), ("Open", path.as_uri())]))
