"""Print the answers of commands: aligned lines for people, one JSON document for programs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from lookalike.core import distributed, progress
from lookalike.core.errors import LookalikeError
from lookalike.core.files import short_path, to_plain
from lookalike.core.storage import is_url

_ESCAPE = f"<{secrets.token_hex(8)}>"  # in links until the lines are printed: no file name can contain it


@dataclass
class Answer:
    """What a command prints.

    Args:
        document: Printed as JSON with `--json`.
        lines: Printed otherwise.
        always: Printed even with `-q`: the lines are what the user came for, not a report of what was done.
        code: The exit code; `Exit.FAILED` when something that was checked does not hold.
    """

    document: Any
    lines: list[str] = field(default_factory=list)
    always: bool = False
    code: int = 0


def present(answer: Callable[[], Answer | None], *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Compute an answer and print it.

    Args:
        answer: Does the work.
        as_json: Print the document; whatever libraries print meanwhile goes to stderr.
        quiet: Print errors and requested answers only.
        verbose: Print details and the warnings of libraries.
    """
    progress.set_level(0 if quiet else 2 if verbose else 1)
    if not verbose:
        warnings.simplefilter("ignore")  # libraries talk to their developers; ours go through progress.warn
    with _clean_stdout() if as_json else contextlib.nullcontext():
        result = answer()
    if result is None or distributed.follows():
        return
    if as_json:
        print(progress.for_terminal(json.dumps(to_plain(result.document), ensure_ascii=False, indent=1)))
    elif result.always or not quiet:
        print(progress.for_terminal("\n".join(result.lines)).replace(_ESCAPE, "\x1b"))
    if result.code:
        raise typer.Exit(result.code)


@contextlib.contextmanager
def _clean_stdout() -> Iterator[None]:
    """Send whatever libraries print to stderr: stdout holds the document and nothing else."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # what C code printed waits in a buffer of its own
        os.dup2(stdout, 1)
        os.close(stdout)


def rows(*pairs: tuple[str, object]) -> list[str]:
    """Format `Name   value` lines with aligned values; pairs without a value are left out."""
    filled = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in filled), default=0) + 3
    return [f"{name:<{width}}{value}" for name, value in filled]


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> list[str]:
    """Format a table with columns as wide as they must be and numbers aligned to the right."""
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


def link(path: str | Path) -> str:
    """Format a path as a link on terminals that support it (OSC 8)."""
    text = short_path(path)
    if is_url(path) or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"{_ESCAPE}]8;;{Path(path).absolute().as_uri()}{_ESCAPE}\\{text}{_ESCAPE}]8;;{_ESCAPE}\\"


def interval(value: float, low: float, high: float, *, points: bool = False) -> str:
    """Format `0.612 (0.600–0.624)`, or in percentage points `+4.1 (2.9 to 5.2)`."""
    from lookalike.core.report_blocks import number  # pydantic: help must answer at once

    if points:
        return f"{number(100 * value, 1, signed=True)} ({number(100 * low, 1)} to {number(100 * high, 1)})"
    return f"{number(value)} ({number(low)}–{number(high)})"


def significant(value: float) -> str:
    """Format four significant digits, whatever the scale."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost.

    Args:
        question: What would happen.
        yes: Whether the user agreed beforehand (`--yes`).

    Raises:
        LookalikeError: If the answer is no, or if there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise LookalikeError(f"{question} There is no terminal to ask on: repeat the command with --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise LookalikeError("Nothing was changed.")
