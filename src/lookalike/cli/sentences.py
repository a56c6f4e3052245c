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
        return f"`{error.option_name}` is not an option of {verb}{nearest(error.option_name, _options(context)) or '; ' + more}"
    if kind == "BadOptionUsage":
        return f"`{error.option_name}` of {verb} {_lower(re.sub(r'^Option .*? (?=requires|does)', '', message))}; {more}"
    if kind == "MissingParameter":
        names = getattr(error.param, "opts", []) if _is_option(error.param) else []
        return f"`{path}` needs {names[0] if names else (error.param.metavar or error.param.name.upper())}; {more}"
    if kind == "BadParameter":
        name = error.param.opts[0] if _is_option(error.param) else error.param.name.upper()
        return f"`{name}` of {verb} cannot be taken: {message}."
    if found := re.match(r"No such command '(.*?)'", message):
        names = list(getattr(context.command, "commands", {})) if context else []
        hint = nearest(found[1], names) or f": there are {', '.join(names)}."
        return f"`{found[1]}` is not a verb of {path}{hint}"
    if found := re.match(r"Got unexpected extra arguments? \((.*)\)", message):
        return f"`{path}` has no place for `{found[1]}`; {more}"
    return f"{message}; {more}"


def _is_option(param: Any) -> bool:
    return getattr(param, "param_type_name", "") == "option"


def _options(context: Any) -> list[str]:
    params = context.command.params if context else []
    return [name for p in params if _is_option(p) for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
