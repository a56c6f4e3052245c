"""Kill a copy of this process before its n-th change of files or databases: for tests of what is left then."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.database import Database

CHANGES = ("link", "unlink", "rename", "replace", "fsync")
STATEMENTS = ("BEGIN IMMEDIATE", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP")


@contextlib.contextmanager
def disk(root: Path | None = None, strike: int | None = None, *, statements: bool = True) -> Iterator[list[int]]:
    """The process is killed before its `strike`-th change of a disk or a database; below `root` is a disk of its own.

    Gives the number of changes. What was not yet synced when the kill came is torn.
    """
    done = [0]

    def step(file: int | None = None) -> None:
        done[0] += 1
        if done[0] == strike:
            if file is not None and stat.S_ISREG(os.fstat(file).st_mode):
                os.ftruncate(file, max(os.fstat(file).st_size - 5, 0))
            os.kill(os.getpid(), signal.SIGKILL)

    def changing(name: str) -> Any:
        real = getattr(os, name)

        def call(*places: Any, **options: Any) -> Any:
            if name in ("link", "rename") and root and len({Path(p).is_relative_to(root) for p in places}) == 2:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            step(places[0] if name == "fsync" else None)
            return real(*places, **options)

        return call

    def copy(old: Any, new: Any, length: int = 0) -> None:
        data = old.read()
        new.write(data[: len(data) // 2])
        new.flush()
        step()
        new.write(data[len(data) // 2 :])

    def connect(self: Database) -> sqlite3.Connection:
        connection = real_connect(self)
        if statements:
            connection.set_trace_callback(lambda statement: step() if statement.startswith(STATEMENTS) else None)
        return connection

    real_connect = Database.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "connect", connect)
        for name in CHANGES:
            patch.setattr(os, name, changing(name))
        patch.setattr(shutil, "copyfileobj", copy)
        yield done


def killed(strike: int, act: Callable[[], object], between: Path | None = None) -> bool:
    """`act` in a copy of this process that is killed before that change; False if it ended before."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), disk(between, strike):
            act()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
