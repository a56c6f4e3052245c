"""The artifact cache: bounded, oldest out first, and nothing damaged is ever loaded."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lookalike.core import artifacts, folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder


def fill(kind: str, name: str, size: int, *, age: float = 0) -> Path:
    path = folders.cache(kind) / name
    path.mkdir()
    (path / "data").write_bytes(b"x" * size)
    os.utime(path, (time.time() - age,) * 2)
    return path


def trim(monkeypatch: pytest.MonkeyPatch, limit: int) -> int:
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", str(limit))
    return artifacts.trim()


def test_the_oldest_is_trimmed_first_and_never_what_is_in_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest, old = fill("pixels", "a", 1000, age=9000), fill("features", "b", 1000, age=5000)
    fresh = fill("pixels", "c", 1000, age=10)
    assert trim(monkeypatch, 10_000) == 0
    assert trim(monkeypatch, 2_500) == 1000
    assert (oldest.exists(), old.exists(), fresh.exists()) == (False, True, True)
    assert trim(monkeypatch, 0) == 1000, "what was used in the last minutes may be open elsewhere"
    assert fresh.exists()


def test_an_entry_that_is_used_again_is_not_trimmed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = fill("pixels", "a", 1000, age=9000), fill("pixels", "b", 1000, age=5000)
    artifacts.touch(a)
    trim(monkeypatch, 1_500)
    assert a.exists() and not b.exists()


HOLDER = """
import sys, pathlib
from lookalike.core import artifacts
artifacts.hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be deleted there")
def test_a_data_set_that_a_job_reads_is_not_trimmed_however_long_it_takes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other = fill("hub", "birds@main", 1000, age=9000), fill("models", "m", 1000, age=8000)
    with subprocess.Popen([sys.executable, "-c", HOLDER, held / "data"], stdin=-1, stdout=-1) as job:
        assert job.stdout is not None and job.stdout.readline() == b"held\n"
        assert time.time() - held.stat().st_mtime < 60, "and used now"
        os.utime(held, (time.time() - 9000,) * 2)  # hours later
        assert trim(monkeypatch, 0) == 1000
        assert held.exists() and not other.exists()
        job.communicate(b"")
    assert trim(monkeypatch, 0) == 1000 and not held.exists()


@pytest.mark.skipif(os.name == "nt", reason="has no pipes in folders")
def test_only_regular_files_of_bounded_size_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = artifacts.artifact("thumbs", "pipe")
    folders.cache("thumbs")
    os.mkfifo(path, 0o600)
    assert artifacts.read(path) is None, "instead of waiting for a writer"
    path.unlink()
    artifacts.write(path, bytes(1000))
    monkeypatch.setattr(artifacts, "MAX_FILE", 1000)
    assert artifacts.read(path) is None


def test_clear_frees_one_kind_or_all(home: Path) -> None:
    fill("pixels", "a", 1000), fill("features", "b", 500)
    assert artifacts.clear("pixels") == 1000
    assert [row[0] for row in artifacts.entries()] == ["features"]
    assert artifacts.clear() == 500
    assert artifacts.describe().startswith("0 B")


def test_the_cap_can_be_set_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", "123")
    assert artifacts.limit() == 123
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", "much")
    with pytest.raises(LookalikeError, match="LOOKALIKE_CACHE_BYTES is `much`"):
        artifacts.limit()


def test_a_file_is_read_as_it_was_written_and_not_at_all_if_it_is_damaged(home: Path) -> None:
    path = artifacts.artifact("thumbs", ["image", 96], group="index")
    assert artifacts.read(path) is None
    artifacts.write(path, b"content")
    assert artifacts.read(path) == b"content" and path.parent == home / "cache" / "thumbs"
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"x", b"", bytes(23), b"flipped" + whole[7:]):
        path.write_bytes(data)
        assert artifacts.read(path) is None and not path.exists()


def test_a_folder_is_filled_once_and_again_when_it_is_damaged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fills = []

    def fill(part: Path) -> None:
        fills.append(part)
        (part / "a.bin").write_bytes(b"a" * 100)
        (part / "b.bin").write_bytes(b"b" * 100)

    path = artifacts.artifact("features", {"model": "m"}, group="table")

    def open_again() -> int:
        artifacts.folder(path, fill, about={"name": "photos"}, self_checked=["b.bin"])
        assert (path / "a.bin").read_bytes() == b"a" * 100
        return len(fills)

    assert open_again() == open_again() == 1
    assert artifacts.about(path) == {"name": "photos"}
    (path / "a.bin").write_bytes(b"a" * 99 + b"b")
    assert open_again() == 2
    (path / "a.bin").unlink()
    assert open_again() == 3
    (path / "info.json").write_text("{")
    assert artifacts.about(path) is None and open_again() == 4
    (path / "b.bin").write_bytes(b"c" * 100)
    assert open_again() == 5
    monkeypatch.setattr(artifacts, "BIG", 10)
    (path / "b.bin").write_bytes(b"c" * 100)
    assert open_again() == 5, "checked by its reader"
    (path / "b.bin").write_bytes(b"b" * 99)
    assert open_again() == 6


def test_a_fill_that_fails_leaves_nothing(home: Path) -> None:
    path = artifacts.artifact("features", "key")

    def fill(part: Path) -> None:
        (part / "half").write_bytes(b"1")
        raise LookalikeError("no")

    with pytest.raises(LookalikeError, match="no"):
        artifacts.folder(path, fill)
    assert list(path.parent.iterdir()) == []


def test_what_depends_on_something_else_is_another_artifact(home: Path) -> None:
    names = {artifacts.artifact(k, v) for k in ("a", "b") for v in ({"x": 1}, {"x": 2}, {"x": "1"}, ["x", 1])}
    assert len(names) == 8


def test_small_files_are_bounded_by_their_kind_as_they_are_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(artifacts.KIND_LIMITS, "thumbs", 4000)
    for number in range(30):
        artifacts.write(artifacts.artifact("thumbs", number, group="index"), bytes(400))
        artifacts.write(artifacts.artifact("audits", number), bytes(400))
    sizes = {kind: sum(row[2] for row in artifacts.entries() if row[0] == kind) for kind in ("thumbs", "audits")}
    assert 2000 < sizes["thumbs"] <= 4000 and sizes["audits"] == 30 * 416


def test_the_artifacts_of_a_group_are_deleted_together(home: Path) -> None:
    for kind, group in (("thumbs", "one"), ("features", "one"), ("thumbs", "two"), ("thumbs", "")):
        artifacts.write(artifacts.artifact(kind, "key", group=group), b"x")
    mine = artifacts.of_groups({"one"})
    assert len(mine) == 2
    for path in mine:
        artifacts.delete(path)
    assert len(artifacts.entries()) == 2


def test_what_is_being_written_is_not_trimmed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = fill("pixels", ".b.abcdefgh.part", 1000, age=60)
    with atomic_folder(left.parent / "a") as part:
        (part / "rows").write_bytes(bytes(1000))
        os.utime(part, (1, 1))
        assert trim(monkeypatch, 10) == 0 and part.exists()
    assert not left.exists(), "what a kill left is deleted"
