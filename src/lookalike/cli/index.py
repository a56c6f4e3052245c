"""`lookalike index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.options import Device, DryRun, Layout, Split
from lookalike.cli.verb import Answer, verb


@verb
def index(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, or a table of them.")],
    model: Annotated[
        str | None, typer.Option("--model", help="A run, a model folder or a name; an old index keeps its own.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="Its name or folder; without it the images' folder decides.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Where vectors live: qdrant, exact, or milvus://HOST:19530.")
    ] = None,
    layout: Layout = "auto",
    split: Split = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Check what scores mean on labeled images.")
    ] = True,
    device: Device = "auto",
    watch: Annotated[bool, typer.Option("--watch", help="Follow the folder until Ctrl-C.")] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="RULE", help="Take out path=sea/*, label=gull and keep them out; again."),
    ] = None,
    dry_run: DryRun = False,
) -> Answer:
    """Make a folder searchable, or bring its index up to date."""
    import lookalike

    done = lookalike.index(
        folder=folder,
        model=model,
        index=index,
        store=store,
        layout=layout,
        split=split,
        calibrate=calibrate,
        device=device,
        watch=watch,
        remove=remove,
        dry_run=dry_run,
    )
    if remove:
        word = "would be" if dry_run else "are"
        return Answer(done, [f"{done.deleted:,} images {word} out of the index; their files stay where they are."])
    return Answer(done, str(done).splitlines())
