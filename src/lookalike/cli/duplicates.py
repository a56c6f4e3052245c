"""`lookalike duplicates`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import DryRun, Yes
from lookalike.cli.verb import Answer, verb


@verb
def duplicates(
    source: Annotated[str, typer.Argument(metavar="FOLDER|INDEX", help="A folder of images, or an index.")],
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kinds", "--kind", metavar="KIND", help="identical, same or near; again. All otherwise."),
    ] = None,
    prefer: Annotated[str, typer.Option("--prefer", help="A folder whose files are kept.")] = "",
    move: Annotated[
        bool, typer.Option("--move", help="Move what is suggested (identical files, unless --kind says more).")
    ] = False,
    move_to: Annotated[Path | None, typer.Option("--move-to", help="Move it there, not beside the folder.")] = None,
    back: Annotated[str | None, typer.Option("--back", help="Move a batch back: its name, or last.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Answer:
    """Find files that are there more than once; nothing is deleted."""
    import lookalike
    from lookalike.core.files import human_bytes

    options = {"source": source, "kinds": kinds, "prefer": prefer}
    if (move or move_to) and not (dry_run or yes or back):
        found = lookalike.duplicates(**options)  # type: ignore[arg-type]
        groups = [one for one in found.groups if one.kind in (kinds or ("identical",))]
        files, size = sum(len(one.moves) for one in groups), human_bytes(sum(one.bytes for one in groups))
        if not files:
            return Answer(found, str(found).splitlines(), asked=True)
        show.confirm(f"Move {files:,} files ({size}) away? Nothing is deleted.", yes=False)
    found = lookalike.duplicates(**options, move=move, move_to=move_to, back=back, dry_run=dry_run)  # type: ignore[arg-type]
    return Answer(found, str(found).splitlines(), asked=True)
