"""`lookalike migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import DryRun
from lookalike.cli.verb import Answer, verb


@verb
def migrate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A model, run, index or table, or a folder of them.")
    ],
    dry_run: DryRun = False,
) -> Answer:
    """Bring what an older version wrote to today's formats."""
    import lookalike

    done = lookalike.migrate(folder=folder, dry_run=dry_run)
    lines = [f"{c.kind} {show.short(c.path)}: format {c.before} to {c.after}" for c in done.changes[:10]]
    if len(done.changes) > 10:
        lines.append(f"and {len(done.changes) - 10:,} more")
    word = "would be migrated" if dry_run else "migrated"
    lines.append(f"{len(done.changes):,} {word}, {done.current:,} in today's format already.")
    return Answer(done, lines)
