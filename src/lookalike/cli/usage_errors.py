"""One-line error messages for mistyped commands."""

from __future__ import annotations

import re
from typing import Any

import typer

from lookalike.core.errors import suggest

# typer carries its own copy of click and exports only one of its errors; the base of that one is the rest.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def message(error: Any, program: str = "lookalike") -> str:
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
