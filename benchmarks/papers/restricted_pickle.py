"""A reader of the few things that pickled split files hold.

Python's own is not used: a small machine knows only the steps that make numbers, texts, lists and dicts, and two NumPy
things, as stand-ins that do nothing. Its time and memory are bounded by the size of the file.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_STEPS = 10_000_000  # one byte of a file can make an empty dict of sixty
MAX_DEPTH = 32  # containers begun and not ended; a split file has seven


def load(data: bytes) -> Any:
    """What a pickle of protocol 3 to 5 holds."""
    return _Machine().run(data)


class RefusedError(ValueError):
    """What a file holds that a split file does not."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Stands for a `numpy.dtype`: a double, or a text of so many characters."""

    characters: int | None


def _kind(name: object = None, *flags: object) -> _Kind:
    found = re.fullmatch(r"[<=|]?(?:f8|U(\d{1,4}))", name) if isinstance(name, str) else None
    if found is None:
        raise RefusedError(f"values of type {shown(name)}")
    return _Kind(None if found[1] is None else int(found[1]))


def _scalar(kind: object = None, data: object = None, *more: object) -> float | str:
    """Stands for NumPy's `scalar`."""
    if not isinstance(kind, _Kind) or not isinstance(data, bytes) or more:
        raise RefusedError("a value without a type")
    if len(data) != (8 if kind.characters is None else 4 * kind.characters):
        raise RefusedError("a value of another length than its type says")
    if kind.characters is None:
        return float(struct.unpack("<d", data)[0])
    return data.decode("utf-32-le").rstrip("\0")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _kind,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,  # the same in files written with NumPy 2
}


class _Machine:
    """Runs the steps of a pickle of protocol 3 to 5. Nothing it makes has a state that a step could set, keys are
    numbers and texts, and nothing is ever looked up outside of this file."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}  # by number, whatever numbers a file takes
        self.room = 0  # bytes of texts that may still be decoded
        push = self.stack.append
        values = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")
        self.steps: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys((*values, "BINBYTES", "SHORT_BINBYTES", "NONE"), push),
            **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _: None),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self.put),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: push(self.memo[number])),
            "MEMOIZE": lambda _: self.put(len(self.memo)),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            "EMPTY_LIST": lambda _: push([]),
            "EMPTY_DICT": lambda _: push({}),
            "EMPTY_TUPLE": lambda _: push(()),
            "MARK": lambda _: self.mark(),
            "TUPLE1": lambda _: push(tuple(self.pop(1))),
            "TUPLE2": lambda _: push(tuple(self.pop(2))),
            "TUPLE3": lambda _: push(tuple(self.pop(3))),
            "TUPLE": lambda _: push(tuple(self.pop())),
            "APPEND": lambda _: self.append(self.pop(1)),
            "APPENDS": lambda _: self.append(self.pop()),
            "SETITEM": lambda _: self.set(self.pop(2)),
            "SETITEMS": lambda _: self.set(self.pop()),
            "GLOBAL": lambda where: self.name(*where.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self.name(*self.pop(2)),
            "REDUCE": lambda _: self.call(*self.pop(2)),
            "BUILD": lambda _: self.build(self.pop(1)),
        }

    def run(self, data: bytes) -> Any:
        self.room = len(data)
        for count, (step, value, _) in enumerate(pickletools.genops(data)):
            if step.name not in self.steps:
                raise RefusedError(f"a step {step.name}, which a split file has no use for")
            if count >= MAX_STEPS:
                raise RefusedError(f"more than {MAX_STEPS:,} steps")
            self.steps[step.name](value)
        (found,) = self.stack
        return found

    def put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def mark(self) -> None:
        self.marks.append(len(self.stack))
        if len(self.marks) > MAX_DEPTH:
            raise RefusedError(f"more than {MAX_DEPTH} containers in each other")

    def pop(self, count: int | None = None) -> list[Any]:
        """The last values, or all since the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0) or start > len(self.stack):
            raise RefusedError("a step without its values")
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def append(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def set(self, values: list[Any]) -> None:
        keys = values[::2]
        if any(type(key) not in (int, str) for key in keys):  # the hash of nested tuples can take for ever
            raise RefusedError("a key that is neither a number nor a text")
        self.top(dict).update(zip(keys, values[1::2], strict=True))

    def build(self, state: list[Any]) -> None:
        """Byte order and sizes of a type are fixed by the format: its state is dropped."""
        self.top(_Kind)

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise RefusedError(f"a {type(self.stack[-1]).__name__} that is treated as something else")
        return self.stack[-1]

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a reference that is no name")
        if (module, name) not in _KNOWN:
            raise RefusedError(f"a reference to {shown(f'{module}.{name}')}, which a split file has no use for")
        self.stack.append(_KNOWN[module, name])

    def call(self, what: Any, values: Any) -> None:
        if not any(what is known for known in _KNOWN.values()) or type(values) is not tuple or len(values) > 3:
            raise RefusedError("a call that makes neither a type nor a value")
        self.room -= sum(len(value) for value in values if isinstance(value, bytes))
        if self.room < 0:  # NumPy writes the bytes of every value down
            raise RefusedError("one text many times over")
        self.stack.append(what(*values))


def shown(value: object) -> str:
    """As a message can hold it, whatever it is."""
    if isinstance(value, str):
        return repr(value[:100])
    return str(value) if isinstance(value, int) else f"a {type(value).__name__}"
