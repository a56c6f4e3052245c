"""The command line application: from the words that were typed to an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lookalike.cli.commands import COMMANDS, GROUPS, PANELS
from lookalike.cli.generate import STOPPED, Command, build, read_summary
from lookalike.cli.usage_errors import UsageError, message
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.interrupts import command_signals

LONGEST = 2000  # letters of an error message: what a file holds may be quoted in it


class Group(typer.core.TyperGroup):
    """A group of commands, each built when it is needed.

    Help is plain text, because rich takes longer to import than help may take.
    """

    prefix = ""

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the commands in the order of the help."""
        if not self.prefix:
            return [name for names in PANELS.values() for name in names]
        return [name.removeprefix(self.prefix) for name in COMMANDS if name.startswith(self.prefix)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build one command or subgroup; None if there is none of that name."""
        if self.prefix + cmd_name in COMMANDS:
            return build(self.prefix + cmd_name, COMMANDS[self.prefix + cmd_name])
        return subgroup(cmd_name) if not self.prefix and cmd_name in GROUPS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands by panel."""
        panels: dict[str, Sequence[str]] = {"Commands": self.list_commands(ctx)} if self.prefix else dict(PANELS)
        for panel, names in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name, summary(self.prefix + name)) for name in names])


def summary(name: str) -> str:
    """One line about a command or a group."""
    return (GROUPS[name] if name in GROUPS else read_summary(COMMANDS[name].function)).rstrip(".")


def subgroup(name: str) -> Any:
    """Build the group `lookalike NAME …`."""
    group = type(f"{name}_group", (Group,), {"prefix": f"{name} "})
    only = name == "recipes"  # alone it lists them

    def callback(
        context: typer.Context, json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False
    ) -> None:
        if only and context.invoked_subcommand is None:
            context.command.get_command(context, "list").main(  # type: ignore[attr-defined]
                ["--json"] if json else [], standalone_mode=False
            )

    app = typer.Typer(cls=group, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    if only:
        app.callback(invoke_without_command=True)(callback)
    else:
        app.callback()(lambda: None)
    command = typer.main.get_command(app)
    command.name, command.help = name, GROUPS[name]
    return command


def _version(requested: bool) -> None:
    if requested:
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


def application() -> Any:
    """Build the root command."""
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(cls=Group, context_settings=settings, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_root)
    return typer.main.get_command(app)


def run(words: Sequence[str]) -> int:
    """Run one command.

    Args:
        words: What was typed after `lookalike`.

    Returns:
        The exit code (`core.errors.Exit`); a user's mistake ends as one line on stderr.
    """
    return _run(application(), words, "lookalike")


def run_command(function: str, arguments: Mapping[str, str], name: str, words: Sequence[str] | None = None) -> int:
    """Run a single command that is not part of the application.

    Args:
        function: Where the function is, as `package.module:function`; it returns an `Answer`.
        arguments: Positional parameters with the name shown in the usage line.
        name: How it was called, as `python -m benchmarks.speed`.
        words: What was typed after it; the arguments of this process by default.
    """
    command = Command(function, arguments, show=lambda result, options: result)
    return _run(build(name, command), sys.argv[1:] if words is None else words, name)


# Errors of the file system that are nobody's bug: files of another user, a failing disk, too many open files.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE)


def _run(command: Any, words: Sequence[str], name: str) -> int:
    with command_signals():
        try:
            code = command.main(list(words), prog_name=name, standalone_mode=False)
            sys.stdout.flush()
            if code == Exit.STOPPED:  # how typer reports Ctrl-C while it reads the words
                raise KeyboardInterrupt
        except UsageError as error:
            return _fail(message(error, name), Exit.USER)
        except LookalikeError as error:
            return _fail(str(error), error.exit_code)
        except (KeyboardInterrupt, typer.Abort):
            return _fail(STOPPED, Exit.STOPPED)
        except (BrokenPipeError, SystemExit) as error:
            if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
                raise  # shell completion ends so; a closed pipe too, inside typer
            # The reader has seen enough (`| head`); what is left in the buffer must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return Exit.OK
        except OSError as error:
            if error.errno not in _NOT_OURS or error.filename is None:
                raise
            return _fail(f"`{os.fsdecode(error.filename)}` cannot be opened: {str(error.strerror).lower()}.", Exit.USER)
    return code if isinstance(code, int) else Exit.OK


def _fail(text: str, code: int) -> int:
    from lookalike.core.progress import for_terminal

    text = " ".join(text.split())
    print(for_terminal(text if len(text) <= LONGEST else f"{text[:LONGEST]} …"), file=sys.stderr)
    return code
