"""Training methods by name: the entry-point group `lookalike.methods`, ours and other packages' alike.

A package adds one with

    [project.entry-points."lookalike.methods"]
    mine = "my_package.mine:Mine"        # a subclass of lookalike.methods.Method
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.methods.base import Batch, Context, LearningRates, Method

GROUP = "lookalike.methods"
_REGISTERED: dict[str, type[Method]] = {}

__all__ = ["GROUP", "Batch", "Context", "LearningRates", "Method", "find", "names", "register"]


def names() -> list[str]:
    """The names a method can be asked for by."""
    return sorted({point.name for point in entry_points(group=GROUP)} | set(_REGISTERED))


def find(name: str) -> type[Method]:
    """The method of that name; a misspelt one is answered with the nearest."""
    choose(name, names(), "a training method")
    if name in _REGISTERED:
        return _REGISTERED[name]
    point = next(p for p in entry_points(group=GROUP) if p.name == name)
    try:
        found: type[Method] = point.load()
    except (ImportError, AttributeError) as error:
        raise LookalikeError(f"The method `{name}` ({point.value}) cannot be loaded: {error}.") from error
    return found


def register(name: str, method: type[Method]) -> None:
    """Add a method for this process only, for notebooks and tests."""
    _REGISTERED[name] = method


__getattr__, __dir__ = lazy_exports(__name__)
