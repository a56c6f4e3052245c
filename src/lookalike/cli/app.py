"""The verbs, in the order a newcomer meets them."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

# Panel of the help -> verbs; each is a module of this folder with a function (or an `app`) of that name.
PANELS = {
    "Start": ("demo", "doctor"),
    "Search": ("index", "search", "duplicates", "serve"),
    "Train and measure": (
        "train",
        "pretrain",
        "recipes",
        "evaluate",
        "compare",
        "adapt",
        "rollback",
        "forget",
        "shift",
        "report",
        "embed",
        "export",
    ),
    "Housekeeping": ("switch", "backup", "restore", "purge", "keys", "cache"),
}


class Verbs(typer.core.TyperGroup):
    """The root: its help lists the verbs by panel. Plain text, because rich takes longer to import than help may."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, names in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(100)) for name in names])


def _version(wanted: bool) -> None:
    if wanted:
        from lookalike._version import __version__

        print(f"lookalike {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From a folder of images to a search you can trust.

    `lookalike demo` shows all of it in three minutes.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def build() -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(cls=Verbs, context_settings=settings, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_root)
    for panel, names in PANELS.items():
        for name in names:
            module = importlib.import_module(f"lookalike.cli.{name}")
            if hasattr(module, "app"):
                app.add_typer(module.app, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(getattr(module, name))
    return app


def command() -> Any:
    """The root command, as the parser's object."""
    return typer.main.get_command(build())
