"""A room's names, imported on first use: importing the room costs nothing, while torch and timm take seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(room: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a room; `where` says in which of its modules each name lives."""

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{room}.{where[name]}"), name)
        setattr(sys.modules[room], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *where})

    return find, names
