"""`lookalike recipes`: settings by name, to look at, copy and change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show as show_lines
from lookalike.cli.verb import Answer, Json, verb

app = typer.Typer(help="Settings by name: list, show and copy them.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe's name.")]


@app.callback()
def _alone(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        listed(as_json=as_json)


@app.command("list")
@verb
def listed() -> Answer:
    """Name the recipes."""
    import lookalike

    found = lookalike.recipes()
    lines = show_lines.rows((recipe["name"], recipe["about"]) for recipe in found)
    return Answer(found, [*lines, "Next: lookalike train FOLDER --recipe NAME"], asked=True)


@app.command("show")
@verb
def show(name: Name) -> Answer:
    """Print a recipe."""
    import lookalike

    text = lookalike.recipes(show=name)
    return Answer({"name": name, "text": text}, text.rstrip().splitlines(), asked=True)


@app.command("copy")
@verb
def copy(
    name: Name,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to; NAME.yaml here otherwise.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="The same, as an option.")] = None,
) -> Answer:
    """Copy a recipe to a file of your own."""
    import lookalike

    path = lookalike.recipes(copy=name, to=to or file)
    lines = show_lines.rows([("Copied", show_lines.link(path)), ("Next", f"lookalike train FOLDER --recipe {path}")])
    return Answer({"name": name, "path": path}, lines)
