"""`lookalike purge`."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import DryRun, Yes
from lookalike.cli.verb import Answer, verb


@verb
def purge(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index, or the images' folder.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Answer:
    """Delete an index and all that was made from its images: vectors, thumbnails, caches, calibration."""
    import lookalike
    from lookalike.core.files import human_bytes

    plan = lookalike.purge(index=index, dry_run=True)
    size = human_bytes(plan.bytes)
    if dry_run:
        return Answer(plan, [f"{size} of `{plan.name}` would be deleted; the images would stay."])
    show.confirm(f"Delete the index `{plan.name}` ({plan.images:,} images, {size})? The images stay.", yes=yes)
    done = lookalike.purge(index=index)
    return Answer(done, [f"Deleted the index `{done.name}`: {size}, {done.thumbnails:,} thumbnails with it."])
