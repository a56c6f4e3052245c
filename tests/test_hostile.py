"""Attacks on whole commands: files of other users, a clock that is set back, changes meanwhile, kills, and fuzzing."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lookalike as la
from lookalike.core import artifacts, folders
from lookalike.core.files import atomic_file, atomic_folder
from lookalike.data import read_table
from lookalike.searching import Index, indexing
from tests import helpers
from tests.searching import fake

NOBODY = 65534
MODEL = helpers.ROOT / "tests" / "compat" / "model-1"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return helpers.make_images(tmp_path / "photos", classes=2, images=3, width=32, height=24)


def run_module(*words: object, timeout: float) -> None:
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_every_reader_of_outside_files_on_damaged_ones() -> None:
    run_module("tests.fuzz", "--cases", 2, timeout=900)


def test_every_command_killed_at_some_file_operations() -> None:
    run_module("tests.kill_commands", "--short", timeout=900)


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Calls a function as another user, in a folder and a home of that user."""
    if os.geteuid() != 0:
        pytest.skip("not run: only root can be another user")
    if not all(folder.stat().st_mode & 0o001 for folder in (helpers.ROOT, *helpers.ROOT.parents)):
        pytest.skip("not run here: another user, who is not let into the folder of the project")
    for module in pkgutil.walk_packages(la.__path__, "lookalike."):  # nor into that of Python, perhaps
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)

    def call(function: Callable[..., Any], *arguments: object, home: Path | None = None) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOOKALIKE_HOME", str(home or own / "home"))
            patch.chdir(own)
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
            try:
                return function(*arguments)
            finally:
                os.seteuid(0)
                os.setegid(0)

    yield call


def test_files_of_another_user_give_a_one_line_error(
    photos: Path, tmp_path: Path, as_nobody: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.install(monkeypatch)
    model: Any = fake.FakeEmbedder()
    la.index(folder=photos, model=model, index=tmp_path / "index", progress=False)
    la.backup(index=tmp_path / "index", out=tmp_path / "b.lookalike", progress=False)
    (tmp_path / "r.yaml").write_text("seed: 1\n")
    (tmp_path / "t.csv").write_text("path,label\nphotos/class-00/0.jpg,a\n")
    query, index = photos / "class-00" / "0.jpg", tmp_path / "index"
    cases: list[tuple[list[object], Path]] = [
        (["search", query, "--index", index], index),
        (["search", query, "--index", index], index / "lookalike.db"),
        (["verify", index], index),
        (["switch", index], index),
        (["index", photos, "--index", index], index),
        (["index", photos, "--index", "new"], photos),
        (["duplicates", photos], photos),
        (["restore", tmp_path / "b.lookalike", "--index", "copy"], tmp_path / "b.lookalike"),
        (["train", tmp_path / "t.csv", "--model", MODEL], tmp_path / "t.csv"),
        (["train", photos, "--model", MODEL, "--recipe", tmp_path / "r.yaml"], tmp_path / "r.yaml"),
    ]
    for words, hidden in cases:
        before = hidden.stat().st_mode
        hidden.chmod(0)
        answer = as_nobody(cli, *words)
        hidden.chmod(before & 0o7777)
        assert answer.code == 2 and "Traceback" not in answer.err and "ermission denied" in answer.err, (words, answer)
        assert answer.err.strip().count("\n") == 0, answer.err
    at_home: list[list[object]] = [["cache", "ls"], ["keys", "ls"], ["index", photos]]
    for words in at_home:  # a home that somebody else owns
        answer = as_nobody(
            cli, *words, home=tmp_path / "theirs" if (tmp_path / "theirs").exists() else _theirs(tmp_path)
        )
        assert answer.code == 2 and "ermi" in answer.err and "Traceback" not in answer.err, answer


def _theirs(base: Path) -> Path:
    home = base / "theirs"
    for folder in (home, home / "cache", home / "indexes"):
        folder.mkdir(mode=0o700)
    return home


def test_a_cache_of_another_user_is_not_read(photos: Path, tmp_path: Path, as_nobody: Any) -> None:
    """Who can write the folder of the caches could plant results in it."""
    home = tmp_path / "shared"
    (home / "cache").mkdir(parents=True)
    home.chmod(0o777)
    (home / "cache").chmod(0o777)  # planted by root, open to everybody
    with pytest.raises(la.core.errors.LookalikeError, match="cannot be written to"):
        as_nobody(lambda: folders.cache("audits"), home=home)


@pytest.mark.parametrize("open_part", ["home", "kind", "entry", "nothing"])
def test_an_artifact_that_another_user_planted_is_not_used(tmp_path: Path, as_nobody: Any, open_part: str) -> None:
    """It has the right name and checksum; who could have written it decides."""
    home, other = tmp_path / "shared", 1234

    def fill(part: Path) -> None:
        (part / "vectors.bin").write_bytes(b"planted")

    def used(file: Path, folder: Path) -> list[bool]:
        return [artifacts.read(file) is not None, artifacts.is_whole(folder), artifacts.about(folder) is not None]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", str(home))
        file, folder = artifacts.artifact("thumbs", "a"), artifacts.artifact("features", "b")
        artifacts.write(file, b"planted")
        artifacts.folder(folder, fill, about={"model": "m"})
    for place in (home, *home.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    assert as_nobody(used, file, folder, home=home) == [True] * 3, "a cache that only the administrator can write"
    for entry in (file, folder):
        place = {"home": home / "cache", "kind": entry.parent, "entry": entry}.get(open_part)
        if place is None:
            os.chown(entry, other, other)
        else:
            place.chmod(place.stat().st_mode | 0o022)
    assert as_nobody(used, file, folder, home=home) == [False] * 3


def test_an_image_replaced_with_an_old_time_is_indexed_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time lies in the future, as after the clock was set back, and stays as it was."""
    fake.install(monkeypatch)
    image, model = photos / "class-00" / "0.jpg", fake.FakeEmbedder()
    future = time.time() + 1e6
    os.utime(image, (future, future))

    def vector() -> Any:
        la.index(folder=photos, model=model, index=tmp_path / "index", progress=False)  # type: ignore[arg-type]
        with Index(tmp_path / "index") as index:
            (record,) = (r for part in index.store.scan(vectors=True) for r in part if r.payload["path"] == name)
            return record.vector

    name, before = "class-00/0.jpg", read_table(photos).fingerprint()
    old = vector()
    other = (photos / "class-01" / "0.jpg").read_bytes()
    size = max(len(other), image.stat().st_size)
    image.write_bytes(other.ljust(size, b"\0")[: image.stat().st_size])
    os.utime(image, (future, future))
    assert read_table(photos).fingerprint() != before
    assert not (vector() == old).all()


def test_images_replaced_while_they_are_indexed_are_right_after_the_next_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.install(monkeypatch)
    model: Any = fake.FakeEmbedder()
    paths = sorted(photos.rglob("*.jpg"))
    new = [path.read_bytes() for path in reversed(paths)]
    real = fake.FakeEmbedder.vectors

    def replacing(self: Any, crops: Any) -> Any:
        """One image after the other gets the bytes of another, one goes, one becomes a pipe."""
        for path, data in list(zip(paths, new, strict=True))[2:]:
            path.write_bytes(data)
        for path in paths[:2]:
            path.unlink(missing_ok=True)
        if not paths[1].exists():
            os.mkfifo(paths[1])
        return real(self, crops)

    with monkeypatch.context() as patch:
        patch.setattr(fake.FakeEmbedder, "vectors", replacing)
        la.index(folder=photos, model=model, index=tmp_path / "index", progress=False)
    la.index(folder=photos, model=model, index=tmp_path / "index", progress=False)
    with Index(tmp_path / "index") as index:
        stored = {r.payload["path"]: r.vector for part in index.store.scan(vectors=True) for r in part}
    expected = {p.relative_to(photos).as_posix(): real(model, [model.crop(p)])[0] for p in paths[2:]}
    assert stored.keys() == expected.keys()
    for name, vector in expected.items():
        assert abs(stored[name] - vector).max() < 1e-6, name


def test_an_image_exchanged_for_a_link_out_of_the_folder_is_not_indexed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the scan, when it was still an image: neither its vector nor its thumbnail tell of what is outside."""
    fake.install(monkeypatch)
    helpers.make_images(tmp_path / "outside", classes=1, images=1, seed=9)
    outside, image = tmp_path / "outside" / "class-00" / "0.jpg", photos / "class-00" / "0.jpg"
    real = indexing._check_root

    def exchange(*args: Any) -> None:
        image.unlink()
        image.symlink_to(outside)
        (photos / "class-01").rename(tmp_path / "moved")
        (photos / "class-01").symlink_to(tmp_path / "moved")
        real(*args)

    monkeypatch.setattr(indexing, "_check_root", exchange)
    model: Any = fake.FakeEmbedder()
    la.index(folder=photos, model=model, index=tmp_path / "index", progress=False)
    with Index(tmp_path / "index") as index:
        assert {r.payload["path"] for part in index.store.scan() for r in part} == {"class-00/1.jpg", "class-00/2.jpg"}
        assert {reason for _, reason in index.unreadable()} == {"it leads out of the folder of images"}


def test_leftovers_are_cleaned_up_after_the_clock_was_set_back(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / ".model.abcdefgh.part"
    part.mkdir()
    future = time.time() + 1e6
    os.utime(part, (future, future))
    with atomic_folder(tmp_path / "model"):
        pass
    assert not part.exists()
    entry = folders.cache("features") / "entry"
    entry.mkdir()
    (entry / "rows").write_bytes(bytes(1000))
    os.utime(entry, (future, future))
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", "10")
    assert artifacts.trim() == 1000 and not entry.exists()


def test_a_file_that_a_kill_left_in_a_run_is_gone_after_the_next_command(tmp_path: Path) -> None:
    run = la.Run.create("ms", {}, path=tmp_path / "run")
    left = run.path / "sections" / "images" / ".0123.jpg.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    busy = run.path / ".result.json.part"
    with atomic_file(run.path / "result.json") as part:
        part.write_text("{}")
        os.utime(part, (1, 1))
        with run.locked():
            assert busy.exists() and not left.exists(), "somebody is writing to the other"
