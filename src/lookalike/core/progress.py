"""Messages and progress on stderr: a bar on a terminal, nothing elsewhere (a line every ten seconds with -v)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TextIO, TypeVar

T = TypeVar("T")

_LEVEL = 1  # 0 quiet, 1 normal, 2 verbose


def set_level(level: int) -> None:
    """Set how much is printed: 0 quiet, 1 normal, 2 verbose."""
    global _LEVEL
    _LEVEL = level


def level() -> int:
    """Return how much is printed: 0 quiet, 1 normal, 2 verbose."""
    return _LEVEL


def say(text: str, *, verbose: bool = False) -> None:
    """Print a message on stderr; it is never part of a result."""
    needed = 2 if verbose else 1
    if needed <= _LEVEL:
        print(text, file=sys.stderr, flush=True)


_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Suppress warnings in this thread, for work that is repeated and has warned before."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    if _LEVEL >= 1 and not _SILENT.get():
        print(f"Warning: {text}", file=sys.stderr, flush=True)


def _terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


_LISTENER: ContextVar[Callable[[Progress], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def progress_listener(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Call a function at every step of every progress bar in this thread; an exception in it stops the work."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """A progress bar.

    Args:
        what: What is being done ("Embedding").
        total: Number of steps, if known.
        shown: Whether to show it at all.

    Example:
        >>> with Progress("Embedding", total=3) as bar:
        ...     for _ in range(3):
        ...         bar.advance()
        >>> bar.done
        3
    """

    def __init__(self, what: str, total: int | None = None, *, shown: bool = True) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self.stream = sys.stderr
        self.bar = shown and _LEVEL >= 1 and _terminal(self.stream)
        self.lines = shown and _LEVEL >= 2 and not self.bar
        self.start = time.monotonic()
        self.last = self.start if self.lines else 0.0

    def __enter__(self) -> Progress:
        self._tell()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.bar:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        elif self.lines:
            self._write_line()

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        self.note = note or self.note
        self._tell()
        now = time.monotonic()
        if self.bar and now - self.last >= 0.1:
            self.last = now
            self.stream.write("\r\x1b[K" + self.text())
            self.stream.flush()
        elif self.lines and now - self.last >= 10:
            self.last = now
            self._write_line()

    def _tell(self) -> None:
        if listener := _LISTENER.get():
            listener(self)

    def _write_line(self) -> None:
        print(self.text(), file=self.stream, flush=True)

    def text(self) -> str:
        passed = max(time.monotonic() - self.start, 1e-9)
        rate = self.done / passed
        speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
        tail = f"  {self.note}" if self.note else ""
        if not self.total:
            return f"{self.what} {self.done:,}  {speed}{tail}"
        fraction = min(self.done / self.total, 1.0)
        left = f"  {_span((self.total - self.done) / rate)} left" if self.done else ""
        bar = ""
        if self.bar:
            width = 24
            unicode = (self.stream.encoding or "").lower().replace("-", "") == "utf8"
            full, rest = ("━", "─") if unicode else ("#", "-")
            bar = full * int(fraction * width) + rest * (width - int(fraction * width)) + " "
        return f"{self.what} {bar}{self.done:,}/{self.total:,}  {speed}{left}{tail}"


def track(items: Iterable[T], what: str, total: int | None = None, *, shown: bool = True) -> Iterator[T]:
    """Iterate over items with a progress bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(what, total, shown=shown) as bar:
        for item in items:
            yield item
            bar.advance()
