"""Errors of the user, their suggestions, and the exit codes of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    BUG = 1  # an unexpected error; it keeps its traceback
    USER = 2  # a mistake of the user, explained in one line
    BUSY = 3  # the machine is in use by other processes (benchmarks)
    FAILED = 4  # the command ran, but a check failed (doctor: a required part is missing)
    STOPPED = 130  # Ctrl-C
    TERMINATED = 143  # SIGTERM


class LookalikeError(Exception):
    """A mistake of the user, with a message that says what is wrong and what to do.

    The command line prints the message and exits with `exit_code`. All other exceptions are bugs and keep
    their traceback.

    Example:
        >>> try:
        ...     la.read_table("no-such-folder")
        ... except la.LookalikeError as error:
        ...     print(error)
        `no-such-folder` does not exist: give a folder of images or a table.
    """

    exit_code: Exit = Exit.USER


class DiskError(LookalikeError):
    """A disk that is full or cannot be written to."""


class Unavailable(LookalikeError):
    """Something on another machine does not respond now; the same request may work later."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return `; did you mean X?` for the choice closest to a misspelled name, or an empty string."""
    match = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean `{match[0]}`?" if match else ""


def choose(name: str, choices: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `choices`, or raise an error that names the closest one.

    Args:
        name: What the user gave.
        choices: The valid names.
        what: What a valid name is, with its article, for the message ("a layout").

    Raises:
        LookalikeError: `name` is not one of `choices`.
    """
    known = sorted(choices)
    if name in known:
        return name
    hint = suggest(name, known) or f": there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}."
    raise LookalikeError(f"`{name}` is not {what}{hint}")
