"""SQLite databases: statements that end with the request they were for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lookalike.core.database import CANCELLED, Database
from lookalike.core.errors import DiskError, Unavailable


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
