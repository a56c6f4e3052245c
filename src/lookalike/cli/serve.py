"""`lookalike serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.options import Device
from lookalike.cli.verb import verb


@verb
def serve(
    index: Annotated[
        str | None,
        typer.Argument(metavar="INDEX", help="An index, a run or the images' folder; else the last updated."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="A run with an index, in place of INDEX.")] = None,
    host: Annotated[str, typer.Option("--host", help="Who may come: this machine only, unless changed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.")] = 8080,
    runs: Annotated[Path | None, typer.Option("--runs", help="Where reports are looked for; ./runs otherwise.")] = None,
    keep_queries: Annotated[float, typer.Option("--keep-queries", help="Days to keep uploaded images; 0: never.")] = 7,
    max_upload: Annotated[int, typer.Option("--max-upload", help="Largest upload, in bytes.")] = 20_000_000,
    keep_metadata: Annotated[
        bool, typer.Option("--keep-metadata", help="Give originals with their place and camera data.")
    ] = False,
    originals: Annotated[bool, typer.Option("--originals", help="Give originals to keys that only read, too.")] = False,
    keys: Annotated[
        bool | None, typer.Option("--keys/--no-keys", help="Ask for a key; unless told, when others can come.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests a second of one client; 0: any. Others get 50 unless told.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the image folder.")] = False,
    device: Device = "auto",
) -> None:
    """Search in the browser: a page and an API on this machine.

    Ctrl-C ends it.
    """
    import lookalike

    lookalike.serve(
        index=index,
        run=run,
        host=host,
        port=port,
        runs=runs,
        keep_queries=keep_queries,
        max_upload=max_upload,
        keep_metadata=keep_metadata,
        originals=originals,
        keys=keys,
        rate=rate,
        watch=watch,
        device=device,
    )
