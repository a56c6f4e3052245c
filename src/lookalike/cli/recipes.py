"""`lookalike recipes`: settings by name, to look at, copy and change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import show as show_lines
from lookalike.cli.verb import Answer, Json, verb

app = typer.Typer(help="Settings by name: list, show and copy them.", invoke_without_command=True)

NEXT = {
    "train": "lookalike train FOLDER --recipe {}",
    "adapt": "lookalike adapt MODEL --target FOLDER --config {}",
}
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
    lines = []
    for verb_, next_ in NEXT.items():
        lines += show_lines.rows((recipe["name"], recipe["about"]) for recipe in found if recipe["verb"] == verb_)
        lines += [f"Next: {next_.format('NAME')}", ""]
    return Answer(found, lines[:-1], asked=True)


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
    verb_ = next(recipe["verb"] for recipe in lookalike.recipes() if recipe["name"] == name)
    lines = show_lines.rows([("Copied", show_lines.link(path)), ("Next", NEXT[verb_].format(path))])
    return Answer({"name": name, "path": path}, lines)
