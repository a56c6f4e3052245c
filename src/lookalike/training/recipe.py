"""Recipes: settings by name, in YAML, to look at, copy and change."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import write_text
from lookalike.core.settings import read_yaml

DEFAULT = "default"
Verb = Literal["train", "adapt"]
"""Whom a recipe is for; those of `pretrain` and `shift` are settings of `train`."""
VERBS: tuple[Verb, ...] = ("train", "adapt")


def _folder(verb: Verb) -> Path:
    configs = Path(str(resources.files("lookalike") / "configs"))
    return configs if verb == "train" else configs / verb


def names(verb: Verb = "train") -> list[str]:
    """The recipes that come along, the default first."""
    found = sorted(path.stem for path in _folder(verb).glob("*.yaml"))
    return sorted(found, key=lambda name: name != DEFAULT)


def names_for_adapt() -> list[str]:
    return names("adapt")


def every() -> dict[str, Verb]:
    """All recipes, and whom they are for."""
    return {name: verb for verb in VERBS for name in names(verb)}


def text(name: str) -> str:
    """A recipe as it is written, with its comments."""
    choose(name, every(), "a recipe")
    return (_folder(every()[name]) / f"{name}.yaml").read_text(encoding="utf-8")


def load(name_or_path: str | Path, verb: Verb = "train") -> dict[str, Any]:
    """The settings of a recipe by name, or of a YAML file of the user's."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path, "recipe")
    choose(str(name_or_path), names(verb), "a recipe (a file of yours ends in .yaml)")
    return read_yaml(_folder(verb) / f"{name_or_path}.yaml", "recipe")


def about(name: str) -> str:
    """The first comment line of a recipe."""
    first = text(name).splitlines()[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def recipes(*, show: str | None = None, copy: str | None = None, to: str | Path | None = None) -> Any:
    """List the recipes, show one, or copy one to a file of your own.

    Without arguments a list of `{name, about, verb}`; with `show` the text; with `copy` the path it was copied to
    (`to`, else `NAME.yaml` here).
    """
    if copy is not None:
        target = Path(to) if to is not None else Path(f"{copy}.yaml")
        content = text(copy)
        if target.exists():
            raise LookalikeError(f"`{target}` is already there; choose another place with --to.")
        write_text(target, content)
        return target
    if show is not None:
        return text(show)
    return [{"name": name, "about": about(name), "command": verb} for name, verb in every().items()]
