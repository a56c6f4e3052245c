"""Messages and progress on stderr: a bar on a terminal, elsewhere plain lines, one every 15 seconds."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TypeVar

from lookalike.core.errors import LookalikeError
from lookalike.core.files import printable

T = TypeVar("T")

_LEVEL = 1  # 0 quiet, 1 normal, 2 verbose


def set_level(level: int) -> None:
    """Set how much is printed: 0 quiet, 1 normal, 2 verbose."""
    global _LEVEL
    _LEVEL = level


def level() -> int:
    """Return how much is printed: 0 quiet, 1 normal, 2 verbose."""
    return _LEVEL


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def for_terminal(text: str) -> str:
    """Return text that cannot steer a terminal: control characters, as in file names, appear as escapes."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", printable(text))


def say(text: str, *, verbose: bool = False) -> None:
    """Print a message on stderr; it is never part of a result."""
    if verbose + 1 <= _LEVEL:
        print(for_terminal(text), file=sys.stderr, flush=True)


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
        print(f"Warning: {for_terminal(text)}", file=sys.stderr, flush=True)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


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
    """Progress of one stage of a job: a bar on a terminal, plain lines elsewhere.

    Off a terminal a stage that lasts for more than a second prints a line when it starts, one every
    `LOOKALIKE_PROGRESS_SECONDS` (15; 0 for none), and one when it ends.

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
        shown = shown and _LEVEL >= 1
        self.bar = shown and self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.seconds = _line_seconds() if shown and not self.bar else 0.0
        self.start, self.last, self.first = time.monotonic(), 0.0, 0
        self._counts: deque[tuple[float, int]] = deque()  # time and steps done, of the last minute
        self._ended = threading.Event()
        self._lines: threading.Thread | None = None

    def __enter__(self) -> Progress:
        self._notify()
        if self.bar:
            self.stream.write(self.text())
            self.stream.flush()
        if self.seconds:
            self._lines = threading.Thread(target=self._write_lines, name="progress", daemon=True)
            self._lines.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.bar:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        elif self._lines is not None:
            self._ended.set()
            self._lines.join()

    def advance(self, count: int = 1, note: str = "") -> None:
        now = time.monotonic()
        if not self._counts:
            self.first = self.done  # a resumed stage does not start at 0
        self.done += count
        self.note = note or self.note
        if not self._counts or now - self._counts[-1][0] >= 1:
            self._counts.append((now, self.done))
            while len(self._counts) > 2 and self._counts[0][0] < now - 60:
                self._counts.popleft()
        self._notify()
        if self.bar and now - self.last >= 0.1:
            self.last = now
            self.stream.write("\r\x1b[K" + self.text())
            self.stream.flush()

    def _notify(self) -> None:
        if listener := _LISTENER.get():
            listener(self)

    def _write_lines(self) -> None:
        """Write the lines, in a thread of its own: also if a single step takes minutes."""
        if self._ended.wait(min(1.0, self.seconds)):
            return
        self._write_line(self.text())
        while not self._ended.wait(self.seconds):
            self._write_line(self.text())
        passed = time.monotonic() - self.start
        rate = f"  {speed((self.done - self.first) / passed)}" if self.done > self.first else ""
        self._write_line(f"{self._count()}{rate}  took {_span(passed)}")

    def _write_line(self, text: str) -> None:
        self.stream.write(for_terminal(text) + "\n")
        self.stream.flush()

    def _count(self) -> str:
        if not self.total:
            return f"{self.what} {self.done:,}" if self.done else self.what
        return f"{self.what} {self.done:,}/{self.total:,}"

    def rate(self) -> float | None:
        """Steps a second over the last minute; None before the first step, which warms up, and a second after it."""
        if not self._counts:
            return None
        passed, steps = time.monotonic() - self._counts[0][0], self.done - self._counts[0][1]
        return steps / passed if steps and passed >= 1 else None

    def text(self) -> str:
        rate = self.rate()
        shown = f"  {speed(rate)}" if rate else ""
        left = f"  {_span((self.total - self.done) / rate)} left" if rate and self.total else ""
        tail = f"  {self.note}" if self.note else ""
        if not self.bar or not self.total:
            return f"{self._count()}{shown}{left}{tail}"
        width = 24
        full = int(min(self.done / self.total, 1.0) * width)
        unicode = (self.stream.encoding or "").lower().replace("-", "") == "utf8"
        filled, rest = ("━", "─") if unicode else ("#", "-")
        bar = filled * full + rest * (width - full)
        return f"{self.what} {bar} {self.done:,}/{self.total:,}{shown}{left}{tail}"


def speed(rate: float) -> str:
    """Return a number of steps a second as text, such as `12/s`, `0.4/s` or `25 s each`."""
    return f"{1 / rate:,.0f} s each" if rate < 0.1 else f"{rate:,.{int(rate < 10)}f}/s"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, as in `1 match` or `2,000 images`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _line_seconds() -> float:
    """Seconds between two lines of a stage off a terminal."""
    chosen = os.environ.get("LOOKALIKE_PROGRESS_SECONDS", "15")
    try:
        return max(float(chosen), 0.0)
    except ValueError:
        raise LookalikeError(f"LOOKALIKE_PROGRESS_SECONDS is `{chosen}`; it must be a number of seconds.") from None


def track(items: Iterable[T], what: str, *, shown: bool = True) -> Iterator[T]:
    """Iterate over items with a progress bar."""
    with Progress(what, len(items) if isinstance(items, Sized) else None, shown=shown) as bar:
        for item in items:
            yield item
            bar.advance()
