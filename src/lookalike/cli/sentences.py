"""One sentence for every way to mistype a command."""

from __future__ import annotations

import re
from typing import Any

import typer

from lookalike.core.errors import nearest

# typer carries its own copy of click and exports only one of its errors; the base of that one is the rest.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def sentence(error: Any) -> str:
    """What was found and what to do, from a usage error of the parser."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "lookalike"
    verb = path.removeprefix("lookalike").strip() or "lookalike"
    more = f"see `{path} --help`."
    kind, message = type(error).__name__, str(getattr(error, "message", error)).rstrip(".")
    if kind == "NoSuchOption":
        hint = nearest(error.option_name, _options(context)) or f"; {more}"
        return f"`{error.option_name}` is not an option of {verb}{hint}"
    if kind == "BadOptionUsage":
        return f"`{error.option_name}` {'takes no value' if 'does not take' in message else 'needs a value'}; {more}"
    if kind == "MissingParameter":
        names = getattr(error.param, "opts", []) if _is_option(error.param) else []
        return f"`{path}` needs {names[0] if names else (error.param.metavar or error.param.name.upper())}; {more}"
    if kind == "BadParameter":
        name = error.param.opts[0] if _is_option(error.param) else error.param.name.upper()
        return f"`{name}` of {verb} is wrong: {message[:1].lower()}{message[1:]}."
    if found := re.match(r"No such command '(.*?)'", message):
        names = list(getattr(context.command, "commands", {})) if context else []
        hint = nearest(found[1], names) or f": there are {', '.join(names)}."
        return f"`{found[1]}` is not a verb of {path}{hint}"
    if message == "Missing command":
        return f"`{path}` needs one of {', '.join(error.ctx.command.commands)}; {more}"
    if found := re.match(r"Got unexpected extra argument.*? \((.*)\)$", message):
        return f"`{path}` has no place for `{found[1]}`; {more}"
    return f"{message}; {more}"


def _is_option(param: Any) -> bool:
    return getattr(param, "param_type_name", "") == "option"


def _options(context: Any) -> list[str]:
    params = context.command.params if context else []
    return [name for p in params if _is_option(p) for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]
