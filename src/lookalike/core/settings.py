"""Settings are pydantic models: Python arguments, YAML, `--set a.b=c` and the option tables in one."""

from __future__ import annotations

import inspect
import reprlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pydantic
import yaml

from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.files import read_bytes, write_text

MAX_YAML = 10_000_000  # bytes of a settings file


class Settings(pydantic.BaseModel):
    """Base class of all settings: unknown names are errors that suggest the closest valid one.

    Example:
        >>> class Margin(Settings):
        ...     beta: float = 1.2
        >>> Margin(beta=0.6)
        Margin(beta=0.6)
    """

    model_config = pydantic.ConfigDict(extra="forbid", validate_default=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Put the fields into the docstring, where `help()` shows them."""
        fields = (
            f"    {name}: {' '.join((field.description or '').split())}" for name, field in cls.model_fields.items()
        )
        about, sign, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
        cls.__doc__ = "\n".join([about, "", "Args:", *fields]) + sign + rest

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "settings") -> Self:
        """Validate values.

        Args:
            values: Nested names and values.
            where: What the settings belong to, for the error message.

        Raises:
            LookalikeError: A name is unknown or a value invalid.
        """
        try:
            return cls.model_validate(dict(values))
        except pydantic.ValidationError as error:
            raise LookalikeError(_message(cls, error, where)) from None


def _model_at(model: type[pydantic.BaseModel], path: Iterable[Any]) -> type[pydantic.BaseModel] | None:
    current: type[pydantic.BaseModel] | None = model
    for name in path:
        annotation = current.model_fields[name].annotation if current and name in current.model_fields else None
        options = [annotation, *typing.get_args(annotation)]
        current = next((o for o in options if isinstance(o, type) and issubclass(o, pydantic.BaseModel)), None)
    return current


def dotted_names(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[str]:
    """The names of all fields below a model, as in `--set`."""
    for name in model.model_fields:
        yield prefix + name
        if (inner := _model_at(model, [name])) is not None:
            yield from dotted_names(inner, f"{prefix}{name}.")


def _message(model: type[pydantic.BaseModel], error: pydantic.ValidationError, where: str) -> str:
    first = error.errors()[0]
    path = [p for p in first["loc"] if isinstance(p, str)]
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        parent = _model_at(model, path[:-1])
        known = list(parent.model_fields) if parent else []
        elsewhere = [place for place in dotted_names(model) if place.split(".")[-1] == path[-1]]
        hint = f"; did you mean `{elsewhere[0]}`?" if elsewhere else suggest(path[-1], known)
        hint = hint or (f": there are {', '.join(known)}." if known else ".")
        return f"`{name}` is not one of the {where}{hint}"
    text = first["msg"].removeprefix("Value error, ")
    return f"`{name}` in the {where} is {reprlib.repr(first.get('input'))}: {text[0].lower() + text[1:]}."


class _Loader(yaml.SafeLoader):
    """Plain YAML: an alias of an alias of an alias would fill the memory when it is printed or compared."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            alias = self.peek_event()
            raise yaml.composer.ComposerError(None, None, f"the alias *{alias.anchor} is not allowed", alias.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Writes a value that is used twice twice, so that `_Loader` can read it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def parse_set(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `["a.b=1", "c=x"]` as a nested dictionary; values are parsed as YAML.

    Example:
        >>> parse_set(["optimizer.lr=3e-4", "seed=1"])
        {'optimizer': {'lr': 0.0003}, 'seed': 1}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise LookalikeError(f"`--set {pair}` is not of the form NAME=VALUE.")
        try:
            value = yaml.load(text, _Loader) if text else ""  # nosec B506
        except (yaml.YAMLError, RecursionError):
            value = text
        if isinstance(value, str):  # YAML 1.1 reads 3e-4 as text
            try:
                value = float(value) if any(c.isdigit() for c in value) else value
            except ValueError:
                value = text
        node = out
        *parents, leaf = name.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise LookalikeError(f"`--set {pair}` goes below `{parent}`, which was set to a value.")
        node[leaf] = value
    return out


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested dictionaries; later ones take precedence.

    Example:
        >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
        {'a': {'b': 1, 'c': 3}}
    """
    out: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            nested = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
            out[name] = merge(out[name], value) if nested else value
    return out


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested dictionary with names like `a.b`.

    Example:
        >>> flatten({"a": {"b": 1}, "c": 2})
        {'a.b': 1, 'c': 2}
    """
    out: dict[str, Any] = {}
    for name, value in document.items():
        out |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out


def read_yaml(path: str | Path, what: str = "settings file") -> dict[str, Any]:
    """Read a YAML file of names and values."""
    path = Path(path)
    try:
        document = yaml.load(read_bytes(path, limit=MAX_YAML).decode(), _Loader)  # nosec B506
    except FileNotFoundError:
        raise LookalikeError(f"There is no {what} at `{path}`.") from None
    except OSError as error:
        raise LookalikeError(f"The {what} `{path}` cannot be read ({error.strerror}).") from None
    except RecursionError:
        raise LookalikeError(f"The {what} `{path}` is nested too deeply.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LookalikeError(f"The {what} `{path}` is not YAML: {str(error).splitlines()[0]}.") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise LookalikeError(f"The {what} `{path}` must hold names and values.")
    return document


def write_yaml(path: str | Path, document: Mapping[str, Any]) -> None:
    """Write names and values to a YAML file atomically."""
    write_text(path, yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True))
