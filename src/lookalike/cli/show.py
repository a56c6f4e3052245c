"""How answers look on a terminal: short aligned lines, the last one the next command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def rows(pairs: Iterable[tuple[str, object]]) -> list[str]:
    """`Name   value` lines with the values under each other; pairs without a value are left out."""
    kept = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in kept), default=0) + 3
    return [f"{name:<{width}}{value}" for name, value in kept]


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they must be; numbers to the right."""
    lines = [list(map(str, head)), *[list(map(str, row)) for row in body]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    signs = [">" if all(_is_number(line[i]) for line in lines[1:]) else "<" for i in range(len(head))]
    forms = [f"{sign}{width}" for sign, width in zip(signs, widths, strict=True)]
    return ["  ".join(f"{text:{form}}" for text, form in zip(line, forms, strict=True)).rstrip() for line in lines]


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("%× "))
    except ValueError:
        return text in ("", "–")
    return True


def short(path: str | Path) -> str:
    """A path as a person would type it from here."""
    path = Path(path)
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def link(path: str | Path) -> str:
    """The path, on a terminal that can, as something to click on (OSC 8)."""
    text = short(path)
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b]8;;{Path(path).absolute().as_uri()}\x1b\\{text}\x1b]8;;\x1b\\"


def interval(value: float, low: float, high: float, *, points: bool = False) -> str:
    """`0.612 (0.600–0.624)`, or in points `+4.1 (2.9–5.2)`."""
    if points:
        return f"{100 * value:+.1f} ({_signed(100 * low)} to {_signed(100 * high)})"
    return f"{value:.3f} ({low:.3f}–{high:.3f})"


def _signed(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal the answer must be given as `--yes`."""
    from lookalike.core.errors import LookalikeError

    if yes:
        return
    if not sys.stdin.isatty():
        raise LookalikeError(f"{question} Nobody can answer here: repeat the command with --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise LookalikeError("Nothing was changed.")
