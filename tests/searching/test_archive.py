"""A restore that is killed leaves nothing that the next one, or `purge`, does not find."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lookalike
from lookalike.core import files
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.locks import Locked
from lookalike.searching import Index, archive, index
from lookalike.store import store_class
from tests import helpers
from tests.searching import fake

KILLED = """
import os, signal, sys
from lookalike.searching import archive
real = archive._check
def dying(*args):
    real(*args)
    os.kill(os.getpid(), signal.SIGKILL)
archive.copy_rows = archive._check = dying
archive.restore(file=sys.argv[1], index=sys.argv[2], store=sys.argv[3], progress=False)
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A backup of twelve images."""
    fake.install(monkeypatch)
    images = helpers.make_images(tmp_path / "images", classes=3, images=4)
    model: Any = fake.FakeEmbedder()
    index(folder=images, model=model, index=tmp_path / "index", progress=False)
    return lookalike.backup(index=tmp_path / "index", out=tmp_path / "kept.tar", progress=False).path


def killed(kept: Path, place: Path | str, store: str) -> None:
    command = [sys.executable, "-c", KILLED, str(kept), str(place), store]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_restoring_after_a_kill_and_purging_what_it_left(
    kept: Path, tmp_path: Path, home: Path, any_store: str
) -> None:
    place = tmp_path / "again"
    killed(kept, place, any_store)
    [part] = archive.leftovers(place)
    stale = shutil.copytree(part / "generations" / "1", tmp_path / "stale")
    assert part.parent == tmp_path and not place.exists()
    assert archive.leftovers(tmp_path / "agai") == archive.leftovers(tmp_path / "again.b") == []
    plan = lookalike.purge(index=place, dry_run=True)
    assert plan.bytes > 5_000 and plan.images == 0 and part.exists()

    made = lookalike.restore(file=kept, index=place, store=any_store, progress=False)
    assert made.images == 12 and archive.leftovers(place) == [] and Index.open(place).store.count() == 12
    if any_store.startswith("milvus"):
        with pytest.raises(LookalikeError):
            store_class(any_store).open(str(stale)).count()

    shutil.copytree(place, tmp_path / ".again.abcdefgh.part") if any_store == "local" else killed(
        kept, "by name", any_store
    )
    lookalike.purge(index=place if any_store == "local" else "by name")
    assert archive.leftovers(place) == [] and not list(tmp_path.rglob(".*.part"))
    with pytest.raises(LookalikeError, match="There is no index"):
        lookalike.purge(index="by name")


def test_a_restore_that_is_still_at_work_is_not_swept(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "again"
    real = archive._check

    def during(*args: Any) -> None:
        for other in (lookalike.purge, lambda index: lookalike.restore(file=kept, index=index, progress=False)):
            with pytest.raises(Locked, match="Restoring `again`"):
                other(index=place)
        real(*args)

    monkeypatch.setattr(archive, "_check", during)
    assert lookalike.restore(file=kept, index=place, progress=False).images == 12
    assert Index.open(place).store.count() == 12


def test_a_leftover_whose_server_is_away_is_told(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It does not stand in the way of a restore, but `purge` does not claim to have deleted it."""
    place, part = tmp_path / "again", tmp_path / ".again.abcdefgh.part"
    shutil.copytree(tmp_path / "index", part)

    def away(path: Path) -> None:
        raise Unavailable("No server answers.")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "remove_generations", away)
        assert lookalike.restore(file=kept, index=place, progress=False).images == 12
        assert "cannot be deleted: No server answers." in capfd.readouterr().err
        with pytest.raises(Unavailable):
            lookalike.purge(index=place)
        assert part.exists() and Index.open(place).store.count() == 12
    lookalike.purge(index=place)
    assert not part.exists() and not place.exists()


def test_parts_are_told_apart_by_whole_names(tmp_path: Path) -> None:
    for name in (".a.xxxxxxxx.part", ".a.b.xxxxxxxx.part", ".aa.xxxxxxxx.part", ".a.part", ".A.xxxxxxxx.part"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a.yyyyyyyy.part").write_bytes(b"a file's")
    assert [part.name for part in files.leftover_parts(tmp_path / "a")] == [".a.xxxxxxxx.part"]
    assert [part.name for part in files.leftover_parts(tmp_path / "a.b")] == [".a.b.xxxxxxxx.part"]
    assert files.leftover_parts(tmp_path / "none" / "a") == []


def test_the_room_of_a_leftover_is_used(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / ".again.abcdefgh.part"
    shutil.copytree(tmp_path / "index", part)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_000 if part.exists() else 10**9)
    assert lookalike.restore(file=kept, index=tmp_path / "again", progress=False).images == 12
    assert Index(tmp_path / "again").generation.complete
