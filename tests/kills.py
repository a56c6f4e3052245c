"""Kill a copy of this process before its n-th change of files or databases: for tests of what is left then."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MOVES = ("os.link", "os.remove", "os.rename")
CHANGES = (*MOVES, "os.symlink", "os.mkdir", "os.rmdir", "os.truncate")
STATEMENTS = ("BEGIN IMMEDIATE", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NOWHERE = re.compile(r"/(proc|sys|dev(?!/shm/))/")

_watcher: Callable[[str, tuple[Any, ...]], None] | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watcher is not None:
        _watcher(event, arguments)


@contextlib.contextmanager
def disk(root: Path | None = None, strike: int | None = None, *, every: bool = True) -> Iterator[list[int]]:
    """The process is killed before its `strike`-th change of a disk or a database; below `root` is a disk of its own.

    Changes are what Python's audit events report (files opened for writing, made, renamed, removed), `fsync`, and
    statements of SQLite; without `every` only moved or removed files and `fsync`. Gives the number of changes. What was
    not yet synced when the kill came is torn.
    """
    global _watcher, _hooked
    done = [0]

    def step(file: int | None = None) -> None:
        done[0] += 1
        if done[0] == strike:
            if file is not None and stat.S_ISREG(os.fstat(file).st_mode):
                os.ftruncate(file, max(os.fstat(file).st_size - 5, 0))
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.link", "os.rename") and root:
            inside = {Path(os.fsdecode(place)).is_relative_to(root) for place in arguments[:2]}
            if len(inside) == 2:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
        if event == "open" and every:
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & WRITING and not NOWHERE.match(os.fsdecode(path)):
                step()
        elif event in (CHANGES if every else MOVES):
            step()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*arguments, **options)
        if every:
            connection.set_trace_callback(lambda text: step() if text.startswith(STATEMENTS) else None)
        return connection

    def sync(file: Any) -> None:
        step(file if isinstance(file, int) else file.fileno())
        real_sync(file)

    def copy(old: Any, new: Any, length: int = 0) -> None:
        data = old.read()
        new.write(data[: len(data) // 2])
        new.flush()
        step()
        new.write(data[len(data) // 2 :])

    real_sync, real_connect, before = os.fsync, sqlite3.connect, _watcher
    if not _hooked:  # for the rest of the process: it cannot be taken away
        sys.addaudithook(_audit)
        _hooked = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(sqlite3, "connect", connect)
        patch.setattr(shutil, "copyfileobj", copy)
        _watcher = watch
        try:
            yield done
        finally:
            _watcher = before


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
