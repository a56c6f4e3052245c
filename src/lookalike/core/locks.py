"""A lock that dies with its process, so that a kill never leaves a folder locked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors


class Locked(LookalikeError):
    """Somebody else holds the lock."""


def _try(file: IO[bytes]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _opened(path: Path) -> IO[bytes]:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab+")


@contextlib.contextmanager
def wait_for_lock(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path` for the block, after whoever has it now; for what takes moments."""
    file = _opened(Path(path))
    try:
        while not _try(file):
            time.sleep(0.02)
        yield
    finally:
        file.close()


@contextlib.contextmanager
def hold(path: str | Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for the block; `Locked` at once if another process has it."""
    file = _opened(Path(path))
    try:
        if not _try(file):
            raise Locked(f"{what} is in use by another process; wait for it to end, or stop it.")
        yield
    finally:
        file.close()
