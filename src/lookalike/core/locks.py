"""A lock that dies with its process, so that a kill never leaves a folder locked."""

from __future__ import annotations

import contextlib
import os
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


@contextlib.contextmanager
def hold(path: str | Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for the block; `Locked` at once if another process has it."""
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab+")
    try:
        if not _try(file):
            raise Locked(f"{what} is in use by another process; wait for it to end, or stop it.")
        yield
    finally:
        file.close()
