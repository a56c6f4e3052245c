"""Surviving a fork: native runtimes lose their threads in the child, and even destroying them would hang.

Objects kept here are given up in the child without being destroyed; callers look at `generation` to
see that they have to build anew.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

generation = 0
_sources: list[Callable[[], list[Any]]] = []
_held: list[Any] = []


def keep_alive(source: Callable[[], list[Any]], forget: Callable[[], None]) -> None:
    """Protect the objects that `source` lists; `forget` runs in the child."""
    _sources.append(source)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


def _before() -> None:
    for source in _sources:
        for thing in source():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
            _held.append(thing)


def _in_parent() -> None:
    for thing in _held:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))
    _held.clear()


def _in_child() -> None:
    global generation
    generation += 1
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
