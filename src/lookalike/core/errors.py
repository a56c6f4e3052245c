"""One error type for a user's mistakes, and the exit codes of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """What a process ends with; `docs/guide.md` prints this table."""

    OK = 0
    BUG = 1  # an unexpected error; it keeps its traceback
    USER = 2  # a mistake that one sentence explains
    BUSY = 3  # a benchmark found the machine in use
    FAILED = 4  # the command ran, and what it looked at does not hold (doctor: a required part is missing)
    STOPPED = 130  # Ctrl-C


class LookalikeError(Exception):
    """A user's mistake, told in one sentence: what was found and what to do."""

    exit_code: Exit = Exit.USER


class Unavailable(LookalikeError):
    """Something on another machine does not answer now; the same may work later."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """`; did you mean X?` for the right name that is closest to a misspelt one, else nothing."""
    match = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean `{match[0]}`?" if match else ""


def choose(name: str, choices: Iterable[str], what: str) -> str:
    """`name` if it is one of `choices`; otherwise the error that names the nearest right one."""
    known = sorted(choices)
    if name in known:
        return name
    hint = suggest(name, known) or f": there are {', '.join(known)}."
    raise LookalikeError(f"`{name}` is not {what}{hint}")
