"""The command line application: from the words that were typed to an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lookalike._version import __version__
from lookalike.cli.commands import COMMANDS, GROUPS, PANELS
from lookalike.cli.generate import STOPPED, Command, build, read_summary
from lookalike.core.errors import Exit, LookalikeError, suggest
from lookalike.core.interrupts import command_signals
from lookalike.core.progress import for_terminal

# typer carries its own copy of click and exports only one of its errors; the base of that one is the rest.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
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
    app.callback(invoke_without_command=only)(callback if only else lambda: None)
    command = typer.main.get_command(app)
    command.name, command.help = name, GROUPS[name]
    return command


def _version(requested: bool) -> None:
    if requested:
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
            return _fail(_usage_message(error, name), Exit.USER)
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
    text = " ".join(text.split())
    print(for_terminal(text if len(text) <= LONGEST else f"{text[:LONGEST]} …"), file=sys.stderr)
    return code


def _usage_message(error: Any, program: str = "lookalike") -> str:
    """Say what is wrong and what to do, from a usage error of the parser."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else program
    command = path.removeprefix(program).strip() or program
    more = f"see `{path} --help`."
    kind, text = type(error).__name__, str(getattr(error, "message", error)).rstrip(".")
    if kind == "NoSuchOption":
        hint = suggest(error.option_name, _options(context)) or f"; {more}"
        return f"`{error.option_name}` is not an option of {command}{hint}"
    if kind == "BadOptionUsage":
        return f"`{error.option_name}` {'takes no value' if 'does not take' in text else 'needs a value'}; {more}"
    if kind == "MissingParameter":
        names = getattr(error.param, "opts", []) if _is_option(error.param) else []
        return f"`{path}` needs {names[0] if names else (error.param.metavar or error.param.name.upper())}; {more}"
    if kind == "BadParameter":
        name = error.param.opts[0] if _is_option(error.param) else error.param.name.upper()
        return f"`{name}` of {command} is wrong: {text[:1].lower()}{text[1:]}."
    if match := re.match(r"No such command '(.*?)'", text):
        names = _commands(context) if context else []
        hint = suggest(match[1], names) or f": there are {', '.join(names)}."
        return f"`{match[1]}` is not a command of {path}{hint}"
    if text == "Missing command":
        return f"`{path}` needs one of {', '.join(_commands(error.ctx))}; {more}"
    if match := re.match(r"Got unexpected extra argument.*? \((.*)\)$", text):
        return f"`{path}` has no place for `{match[1]}`; {more}"
    return f"{text}; {more}"


def _commands(context: Any) -> list[str]:
    list_commands = getattr(context.command, "list_commands", None)
    return list(list_commands(context)) if list_commands else []


def _is_option(param: Any) -> bool:
    return getattr(param, "param_type_name", "") == "option"


def _options(context: Any) -> list[str]:
    params = context.command.params if context else []
    return [name for p in params if _is_option(p) for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]
