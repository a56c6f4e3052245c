"""`lookalike cache`: what is kept to save time, and how to be rid of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import DryRun, Yes
from lookalike.cli.verb import Answer, verb

app = typer.Typer(help="What is kept to save time: list it, clear it.", no_args_is_help=False)

Kind = Annotated[str | None, typer.Option("--kind", help="Only this kind: pixels, features, runtimes, …")]


@app.command("ls")
@verb
def ls(kind: Kind = None) -> Answer:
    """List what is cached, a line a kind."""
    from lookalike.core import folders
    from lookalike.core.files import human_bytes

    entries = [row for row in folders.cache_entries() if kind in (None, row[0])]
    kinds = sorted({row[0] for row in entries})
    body = []
    for name in kinds:
        own = [row for row in entries if row[0] == name]
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(row[3] for row in own)))
        body.append((name, f"{len(own):,}", human_bytes(sum(row[2] for row in own)), used))
    total = sum(row[2] for row in entries)
    lines = show.table(("kind", "entries", "size", "last used"), body) if body else []
    lines.append(f"{human_bytes(total)} of at most {human_bytes(folders.cache_limit())} in {folders.cache_home()}")
    document = {
        "folder": folders.cache_home(),
        "bytes": total,
        "limit": folders.cache_limit(),
        "entries": [{"kind": k, "name": e.name, "bytes": n, "used": round(at)} for k, e, n, at in entries],
    }
    return Answer(document, lines, asked=True)


@app.command("clear")
@verb
def clear(kind: Kind = None, dry_run: DryRun = False, yes: Yes = False) -> Answer:
    """Delete what is cached; it is made again when it is needed. Indexes and runs are not touched."""
    from lookalike.core import folders
    from lookalike.core.errors import choose
    from lookalike.core.files import human_bytes

    entries = folders.cache_entries()
    if kind is not None:
        choose(kind, {row[0] for row in entries} or {"none"}, "a kind that is cached")
    size = sum(row[2] for row in entries if kind in (None, row[0]))
    if dry_run:
        return Answer({"freed": 0, "would_free": size}, [f"{human_bytes(size)} would be freed."])
    show.confirm(f"Delete {human_bytes(size)} of caches in {folders.cache_home()}?", yes=yes or size == 0)
    freed = folders.clear_cache(kind)
    return Answer({"freed": freed}, [f"{human_bytes(freed)} freed."])
