"""SQLite databases: statements that end with the request they were for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import helpers

from lookalike.core.database import CANCELLED, Database
from lookalike.core.errors import DiskError, LookalikeError, Unavailable
from lookalike.core.locks import Locked

NOBODY = 65534


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs a small disk, made by root")
def test_a_full_disk_can_be_read(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        database = Database(tmp_path / "a.db", write=True, schema="CREATE TABLE IF NOT EXISTS note(text TEXT)")
        with database.transaction() as connection:
            connection.execute("INSERT INTO note VALUES ('gull')")
        database.close()
        with contextlib.suppress(OSError), (tmp_path / "rest").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        database = Database(tmp_path / "a.db")
        assert database.fetch("SELECT * FROM note") == [("gull",)]
        database.close()
        with pytest.raises(DiskError, match="is full"):
            Database(tmp_path / "a.db", write=True)
        assert Database(tmp_path / "a.db").fetch("SELECT * FROM note") == [("gull",)]
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_statement_ends_when_its_request_does(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    database = Database(tmp_path / "a.db", write=True)
    start = time.monotonic()
    token = CANCELLED.set(lambda: time.monotonic() - start > 0.2)
    try:
        with pytest.raises(Unavailable, match="too long"):
            database.fetch(endless)
    finally:
        CANCELLED.reset(token)
    assert time.monotonic() - start < 5 and database.fetch("SELECT 1") == [(1,)]
    database.close()


def as_nobody(place: Path) -> None:
    """A reader that may not write: it prints what it sees whenever the file `go` changes."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    database = Database(place / "a.db")
    for number in range(4):
        while (place / "go").read_text() != str(number):
            time.sleep(0.01)
        print(database.fetch("SELECT COUNT(*), MAX(LENGTH(text)) FROM note")[0], flush=True)
        (place / "seen" / str(number)).touch()
    database.close()


def shared(place: Path) -> Database:
    """A database that everybody may read, open for writing, with one row."""
    for folder in (place, *place.parents[:3]):
        folder.chmod(0o755)
    database = Database(place / "a.db", write=True, schema="CREATE TABLE IF NOT EXISTS note(text TEXT)")
    (place / "a.db").chmod(0o644)
    for name in ("a.db-wal", "a.db-shm"):
        (place / name).chmod(0o644)
    return database


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("open_first", [True, False])
def test_a_reader_without_permission_to_write_sees_every_commit(tmp_path: Path, open_first: bool) -> None:
    """Beside a writer that is there already, and one that comes later and goes again."""
    database = shared(tmp_path)
    (tmp_path / "seen").mkdir(mode=0o777)
    (tmp_path / "seen").chmod(0o777)

    def insert(number: int) -> None:
        nonlocal database
        if not open_first:
            database = Database(tmp_path / "a.db", write=True)
        with database.transaction() as connection:
            connection.executemany("INSERT INTO note VALUES (?)", [("x" * 3000,)] * 2000)  # also checkpointed
        if not open_first:
            database.close()
        (tmp_path / "go").write_text(str(number))

    if not open_first:
        database.close()

    def write(process: object) -> None:
        for number in range(4):
            insert(number)
            end = time.monotonic() + 100  # the process may take long to start
            while not (tmp_path / "seen" / str(number)).exists() and time.monotonic() < end:
                time.sleep(0.01)

    (tmp_path / "go").write_text("")
    answer = helpers.apart(as_nobody, tmp_path, meanwhile=write)
    assert answer.out.split("\n")[:4] == [str((2000 * (n + 1), 3000)) for n in range(4)], answer
    database.close()


def test_what_changes_while_it_is_read_without_a_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was still when it was opened is not read half old, half new."""
    Database(tmp_path / "a.db", write=True, schema="CREATE TABLE IF NOT EXISTS note(text TEXT)").close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        reader = Database(tmp_path / "a.db")
    with pytest.raises(Locked, match="try again"), reader.transaction(write=False) as connection:
        assert connection.execute("SELECT COUNT(*) FROM note").fetchone() == (0,)
        with contextlib.closing(Database(tmp_path / "a.db", write=True)) as writer, writer.transaction() as own:
            own.execute("INSERT INTO note VALUES ('gull')")
    assert reader.fetch("SELECT text FROM note") == [("gull",)]
    reader.close()


def test_what_a_killed_writer_left_is_read_without_permission_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = shared(tmp_path)
    with database.transaction() as connection:
        connection.execute("INSERT INTO note VALUES ('gull')")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("a.db", "a.db-wal", "a.db-shm"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    database.close()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with contextlib.closing(Database(copy / "a.db")) as reader:
        assert reader.fetch("SELECT text FROM note") == [("gull",)]
    if os.geteuid() == 0 and sys.platform == "linux":
        for name in ("a.db", "a.db-wal"):
            (copy / name).chmod(0o644)
        (copy / "a.db-shm").unlink()
        answer = helpers.apart(_open_as_nobody, copy / "a.db")
        assert "was not closed and cannot be written to: copy its folder" in answer.out, answer


def _open_as_nobody(path: Path) -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        Database(path)
    except LookalikeError as error:
        print(error)


def test_no_database_is_opened_on_a_network_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database(tmp_path / "a.db", write=True).close()
    monkeypatch.setattr("lookalike.core.folders.network_drive", lambda path: "nfs4")
    for write in (True, False):
        with pytest.raises(LookalikeError, match=r"network drive \(nfs4\).*WAL.* needs shared memory"):
            Database(tmp_path / "a.db", write=write)
