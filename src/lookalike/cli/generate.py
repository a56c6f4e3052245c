"""Generate a command from the signature and the docstring of its Python function.

The function's source is read, not imported: help must answer at once, and most functions live in modules that
import NumPy or torch. Options that were not given are not passed on, so defaults are stated once, in the function.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lookalike.cli.output import Answer, present
from lookalike.core.errors import LookalikeError
from lookalike.core.interrupts import Stopped, Terminated

SOURCE = Path(__file__).resolve().parents[2]
OBJECTS = ("loss", "miner", "sampler", "transform", "callbacks")
HIDDEN = ("progress", *OBJECTS)
"""Parameters that only Python callers set: objects, and progress, which the command line always shows."""
STOPPED = "Stopped. Finished work is kept; run the same command to continue."
SETTINGS = "settings"
"""Mappings of this name are given as `--set NAME=VALUE`."""

Kind = Literal["flag", "number", "whole", "text", "repeated", "texts", "wholes", "numbers", "settings"]
_TYPES: dict[str, Any] = {"number": float, "whole": int, "repeated": list[str], "settings": list[str]}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command function.

    Args:
        name: Its name in Python.
        kind: What its annotation allows on the command line.
        required: Whether it has no default.
        default: The default as it is written in the source, or None.
        help: The first sentence of its entry under `Args:`.
    """

    name: str
    kind: Kind
    required: bool
    default: str | None
    help: str

    @property
    def option(self) -> str:
        """The long option, as `--dry-run`."""
        return "--set" if self.kind == "settings" else "--" + self.name.rstrip("_").replace("_", "-")


@dataclass(frozen=True)
class Signature:
    """What the command line needs to know about a function.

    Args:
        summary: First line of the docstring.
        description: The docstring up to its sections.
        parameters: All parameters in the order of the source.
    """

    summary: str
    description: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Command:
    """A command: the Python function behind it, and how its result is printed.

    Args:
        function: Where the function is, as `lookalike.training.train_command:train`.
        arguments: Positional parameters with the name shown in the usage line.
        show: Makes the printed answer from the result and the given options; without it nothing is printed and
            there is no `--json`.
        call: Calls the function with the given options; for commands that ask for confirmation first.
        short: Short forms of options, as `{"k": "-k"}`.
        extra: Options of the command line alone, as name and help.
    """

    function: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    show: Callable[[Any, dict[str, Any]], Answer] | None = None
    call: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None
    short: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Import the function; the public name in `lookalike` where there is one."""
        import lookalike

        module, name = self.function.split(":")
        public = lookalike.shift if module.startswith("lookalike.shift") else lookalike
        return getattr(public if name in public.__all__ else importlib.import_module(module), name)


# ---- reading the source --------------------------------------------------------------------------


def _text(function: str) -> str:
    module = function.split(":")[0]
    path = SOURCE / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():  # a package that uses this module for commands of its own
        spec = importlib.util.find_spec(module)
        path = Path(spec.origin or "") if spec else path
    return path.read_text(encoding="utf-8")


@cache
def read_summary(function: str) -> str:
    """Read the first docstring line of a function without parsing its module."""
    name = function.split(":")[1]
    match = re.search(rf'^def {name}\(.*?^    """(.*?)(?:"""|\n)', _text(function), re.M | re.S)
    return match[1].strip() if match else ""


@cache
def read_signature(function: str) -> Signature:
    """Read the parameters and the docstring of a function from its source.

    Args:
        function: Module and name, as `lookalike.training.train_command:train`.

    Returns:
        The signature; parameters without an entry under `Args:` have an empty help.
    """
    name = function.split(":")[1]
    body = ast.parse(_text(function)).body
    node = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    description, entries = _docstring(ast.get_docstring(node) or "")
    parameters = []
    for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        default = None if value is None else ast.unparse(value)
        kind = _kind(argument.arg, argument.annotation, default)
        parameters.append(Parameter(argument.arg, kind, value is None, default, entries.get(argument.arg, "")))
    return Signature(description.split("\n")[0], description, tuple(parameters))


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a Google docstring into its description and the first sentences of its `Args:`."""
    description = re.split(r"\n\s*\n?(?:Args|Returns|Raises|Example|References|Shape|Note):\n", text)[0].strip()
    section = re.search(r"^Args:\n(.*?)(?=^\w+:\n|\Z)", text, re.M | re.S)
    entries = {}
    for match in re.finditer(
        r"^ {4}(\w+)(?: \([^)]*\))?: (.*?)(?=^ {4}\w|\Z)", section[1] if section else "", re.M | re.S
    ):
        whole = " ".join(match[2].split())
        entries[match[1]] = re.split(r"(?<=[.!?]) (?=[A-Z`\"])", whole)[0].replace("``", "`")
    return description, entries


def _members(node: ast.expr | None) -> list[str]:
    """The alternatives of an annotation, as `["str", "Path", "None"]`."""
    if isinstance(node, ast.BinOp):
        return _members(node.left) + _members(node.right)
    return [] if node is None else [ast.unparse(node)]


def _kind(name: str, annotation: ast.expr | None, default: str | None) -> Kind:
    members = _members(annotation)
    if any(member.startswith(("Mapping", "dict")) for member in members):
        return "settings"
    for member in members:
        if inner := re.match(r"(?:Sequence|Collection|Iterable|list|tuple)\[(.*?)[\],]", member):
            several: dict[str, Kind] = {"int": "wholes", "float": "numbers"}
            return several.get(inner[1], "repeated" if default in (None, "None", "()") else "texts")
    if "Filters" in members:
        return "repeated"
    if "bool" in members:
        return "flag"
    if "str" not in members and ("float" in members or "int" in members):
        return "number" if "float" in members else "whole"
    return "text"


# ---- building the command ------------------------------------------------------------------------


def build(name: str, command: Command) -> Any:
    """Build the parser's command object.

    Args:
        name: The command's name as typed, as `train` or `shift run`.
        command: The function behind it and how its result is printed.
    """
    signature = read_signature(command.function)
    shown = [parameter for parameter in signature.parameters if parameter.name not in HIDDEN]
    shown.sort(key=lambda p: list(command.arguments).index(p.name) if p.name in command.arguments else 99)
    parsed = [_parameter(name, parameter, command) for parameter in shown]
    parsed += [_flag(option, text) for option, text in command.extra.items()]
    shared = {"quiet": ("-q", "Print errors only."), "verbose": ("-v", "Print more details.")}
    parsed += [_flag(option, text, short) for option, (short, text) in shared.items()]
    if command.show is not None:
        parsed.append(_flag("json", "Print one JSON document."))
    kinds = {parameter.name: parameter for parameter in shown}
    hidden = {p.name: True for p in signature.parameters if p.name in HIDDEN and p.name not in OBJECTS}

    def run(**values: Any) -> None:
        quiet, verbose, as_json = (bool(values.pop(key, False)) for key in ("quiet", "verbose", "json"))
        options = {key: value for key, value in values.items() if value not in (None, [], ())}
        options |= {key: _convert(kinds[key], value) for key, value in options.items() if key in kinds}
        function = command.load()

        def answer() -> Answer | None:
            arguments = {key: value for key, value in options.items() if key not in command.extra}
            result = command.call(function, options) if command.call else function(**arguments, **hidden)
            return result if isinstance(result, Answer) else command.show(result, options) if command.show else None

        try:
            present(answer, as_json=as_json, quiet=quiet, verbose=verbose)
        except KeyboardInterrupt as error:  # typer would drop its message
            traceback.clear_frames(error.__traceback__)  # ends the threads that read ahead, instead of waiting for them
            raise Stopped(str(error) or STOPPED, terminated=isinstance(error, Terminated)) from None
        except EOFError as error:  # typer would take it for Ctrl-D
            raise RuntimeError("a file ended too early") from error

    run.__doc__ = signature.description
    run.__signature__ = inspect.Signature(parsed)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parsed}
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
    app.command(name, context_settings={"help_option_names": ["-h", "--help"]})(run)
    return typer.main.get_command(app)


def _parameter(command: str, parameter: Parameter, about: Command) -> inspect.Parameter:
    """One parameter as typer reads it; None stands for "not given"."""
    complete = completer(command, parameter.name)
    text = parameter.help
    if parameter.name in about.arguments:
        metavar = about.arguments[parameter.name]
        kind: Any = list[str] if parameter.kind == "repeated" else str
        info = typer.Argument(metavar=metavar, help=text, autocompletion=complete)
    else:
        names = [parameter.option]
        if parameter.kind == "flag":
            kind = bool
            if parameter.default != "False":
                names = [f"{parameter.option}/--no-{parameter.option[2:]}"]
        else:
            kind = _TYPES.get(parameter.kind, str)
        if parameter.kind in ("repeated", "settings"):
            if re.search(r"\w{3}[^s]s$", parameter.option):  # `--filter A --filter B`, but no `--cor`
                names.append(parameter.option[:-1])
            if text and "repeat" not in text:
                text = f"{text.rstrip('.')}; may be repeated."
        names += [about.short[parameter.name]] if parameter.name in about.short else []
        info = typer.Option(
            *names,
            help=f"{text} {_default(parameter)}".strip(),
            metavar=_metavar(parameter),
            show_default=False,
            autocompletion=complete,
        )
    annotation: Any = Annotated[kind if parameter.required else kind | None, info]
    empty = inspect.Parameter.empty if parameter.required else None
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=annotation)


def _metavar(parameter: Parameter) -> str | None:
    shown = {"text": "TEXT", "repeated": "TEXT", "texts": "A,B,…", "settings": "NAME=VALUE"}
    shown |= {"whole": "N", "wholes": "N,N,…", "number": "X", "numbers": "X,X,…"}
    return shown.get(parameter.kind)


def _default(parameter: Parameter) -> str:
    """The default for the help; only literals can be shown without importing the function's module."""
    if parameter.kind == "flag" or parameter.default in (None, "None", "()", "''"):
        return ""
    try:
        value = ast.literal_eval(parameter.default or "")
    except ValueError:
        return ""
    return f"[default: {','.join(map(str, value)) if isinstance(value, tuple) else value}]"


def _flag(name: str, text: str, *short: str) -> inspect.Parameter:
    info = typer.Option(f"--{name.replace('_', '-')}", *short, help=text)
    annotation: Any = Annotated[bool, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _convert(parameter: Parameter, value: Any) -> Any:
    """What was typed as what the function takes."""
    if parameter.kind == "settings":
        from lookalike.core.settings import parse_set

        return parse_set(value)
    if parameter.kind == "texts":
        return [part.strip() for part in value.split(",") if part.strip()]
    if parameter.kind not in ("wholes", "numbers"):
        return value
    number: Callable[[str], Any] = int if parameter.kind == "wholes" else float
    try:
        parts = tuple(number(part) for part in value.split(","))
    except ValueError:
        parts = ()
    if not parts or (parameter.kind == "wholes" and min(parts) < 1):
        what = "whole numbers" if parameter.kind == "wholes" else "numbers"
        example = "1,10,100" if parameter.kind == "wholes" else "10,20,200,180"
        raise LookalikeError(f"`{parameter.option}` is `{value}`; it must be {what} with commas, as in {example}.")
    return parts


# ---- shell completion ----------------------------------------------------------------------------

# Name of a parameter (or command.parameter) -> the words, or where they are listed; imported when the shell asks.
WORDS = {
    "device": "lookalike.core.device:KINDS",
    "layout": "lookalike.data.readers:layouts",
    "method": "lookalike.methods:names",
    "mode": "auto leave-one-out query-gallery",
    "on_error": "skip raise",
    "pooling": "avg max avgmax gem cls",
    "precision": "f32 bf16",
    "recipe": "lookalike.training.recipe:names",
    "runtime": "auto torch openvino onnx",
    "store": "lookalike.store:stores",
    "adapt.config": "lookalike.training.recipe:names_for_adapt",
    "adapt.method": "lookalike.adaptation.settings:METHODS",
    "recipes show.name": "lookalike.training.recipe:all_recipes",
    "recipes copy.name": "lookalike.training.recipe:all_recipes",
}


def words(source: str) -> list[str]:
    """List the words of an entry of `WORDS`."""
    if ":" not in source:
        return source.split()
    module, attribute = source.split(":")
    value = getattr(importlib.import_module(module), attribute)
    return list(value() if callable(value) else value)


def completer(command: str, parameter: str) -> Callable[[str], list[str]] | None:
    """Make the function from the beginning of a parameter's value to its completions; None where any is allowed."""
    source = WORDS.get(f"{command}.{parameter}", WORDS.get(parameter))
    if source is None:
        return None
    return lambda incomplete: [word for word in words(source) if word.startswith(incomplete)]
