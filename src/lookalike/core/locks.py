"""File locks that end with their process, so that a kill never leaves a folder locked."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, lock_file


class Locked(LookalikeError):
    """Another process holds the lock."""


def _open(path: Path) -> IO[bytes]:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab+", buffering=0)  # else closing it on a full disk would fail once more


@contextlib.contextmanager
def wait_for_lock(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path` for the block, waiting for whoever holds it; for work that takes moments."""
    with _open(Path(path)) as file:
        while not lock_file(file.fileno()):
            time.sleep(0.02)
        yield


@contextlib.contextmanager
def hold(path: str | Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for the block.

    Args:
        path: The lock file.
        what: What is locked, for the error message.

    Raises:
        Locked: Another process holds the lock.
    """
    with _open(Path(path)) as file:
        if not lock_file(file.fileno()):
            file.seek(0)
            holder = file.read(200).decode("utf-8", "replace").strip()
            who = f" ({holder})" if holder else ""
            raise Locked(f"{what} is in use by another process{who}; wait for it to end, or stop it.")
        with contextlib.suppress(OSError):  # a full disk: the holder stays unknown
            file.truncate(0)
            program = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
            file.write(f"{program[:100]}, process {os.getpid()}".encode("utf-8", "replace"))
        yield


@contextlib.contextmanager
def in_use(folder: str | Path, what: str, *, alone: bool = False) -> Iterator[None]:
    """Mark a folder as in use for the block, or as in use by nobody else; nothing is written into it.

    Args:
        folder: The folder.
        what: What uses it, or who must not, for the error message.
        alone: Whether nobody else may use it.

    Raises:
        Locked: Another process uses it, or wants it alone.
    """
    if os.name == "nt":  # open files cannot be deleted there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not lock_file(handle, shared=not alone):
            raise Locked(what)
        yield
    finally:
        os.close(handle)
