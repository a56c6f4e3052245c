"""`lookalike restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.verb import Answer, verb


@verb
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `lookalike backup` wrote.")],
    index: Annotated[str | None, typer.Option("--index", help="Its new name or folder; else the old name.")] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where its images are now.")] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Another store than it had: qdrant, exact, or milvus://HOST:19530.")
    ] = None,
) -> Answer:
    """Make an index again from its backup."""
    import lookalike

    done = lookalike.restore(file=file, index=index, folder=folder, store=store)
    lines = [f"Index     {done.name}: {done.images:,} images in {done.path}"]
    return Answer(done, [*lines, f"Search    lookalike search IMAGE --index {done.name}"])
