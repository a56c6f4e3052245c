"""Folders that several threads, and servers, fill and trim at once: kept uploads and small images."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.service import uploads
from lookalike.service.http_errors import Problem
from lookalike.service.image_files import Thumbnails
from lookalike.service.uploads import SavedQueries, SavedQuery

JPEG = b"\xff\xd8"


def kept(folder: Path) -> SavedQueries:
    return SavedQueries(folder, days=7, model="m", encoder=None)  # type: ignore[arg-type]


def keep(questions: SavedQueries) -> str:
    name = questions.keep(SavedQuery(np.zeros(4, np.float32), "hash", 1.0), np.zeros((6, 8, 3), np.uint8))
    questions.write_pending()
    return name


def test_a_query_that_waits_to_be_written_can_be_used(tmp_path: Path) -> None:
    questions = kept(tmp_path)
    pixels = np.zeros((6, 8, 3), np.uint8)
    first, second, third = (questions.keep(SavedQuery(np.ones(4, np.float32), "h", 1.5), pixels) for _ in range(3))
    assert not list(tmp_path.iterdir())
    assert questions.get(first).ratio == 1.5 and questions.image(second).startswith(JPEG)
    questions.forget(third)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_disk_that_cannot_be_written_to_ends_keeping_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    questions = kept(tmp_path / "file" / "queries")
    assert questions.active
    keep(questions)
    assert not questions.active and "could not be kept" in caplog.text
    monkeypatch.setattr(uploads, "RETRY_SECONDS", -1.0)
    keep(questions)
    assert questions.active


def with_ghosts(patch: pytest.MonkeyPatch, *ghosts: Path) -> None:
    """Every list of files begins with some that another thread deletes the moment they were listed."""
    real = Path.glob
    patch.setattr(Path, "glob", lambda self, pattern: iter([*ghosts, *real(self, pattern)]))


def test_what_others_trimmed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_SAVED", 3)
    monkeypatch.setattr(uploads, "TRIM_EVERY", 1)
    with_ghosts(monkeypatch, tmp_path / "u.0123456789abcdef.jpg")
    questions = kept(tmp_path)
    names = [keep(questions) for _ in range(6)]
    assert questions.get(names[-1]).hash == "hash" and questions.image(names[-1]).startswith(JPEG)


def test_a_link_whose_image_goes_this_moment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = kept(tmp_path)
    name, old = keep(questions), SavedQueries._expired

    def goes(self: SavedQueries, path: Path) -> bool:
        found = old(self, path)
        path.unlink()
        return found

    monkeypatch.setattr(SavedQueries, "_expired", goes)
    with pytest.raises(Problem, match="up to 7 days and has been deleted") as told:
        questions.get(name)
    assert told.value.status == 410
    with pytest.raises(Problem, match="no longer stored") as told:
        questions.image(name)
    assert told.value.status == 404


def test_two_servers_keep_and_trim_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_SAVED", 10)
    monkeypatch.setattr(uploads, "TRIM_EVERY", 2)
    servers, failed = [kept(tmp_path), kept(tmp_path)], []

    def work(number: int) -> None:
        questions = servers[number % 2]
        try:
            for _ in range(25):
                name = keep(questions)
                try:
                    assert len(questions.get(name).vector) and questions.image(name).startswith(JPEG)
                except Problem as gone:
                    assert gone.status in (404, 410)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(list(tmp_path.glob("u.*.jpg"))) <= 10 + 2 * 8
    for _ in range(2):
        keep(servers[0])
    assert len(list(tmp_path.glob("u.*.jpg"))) in (10, 11)


def test_half_of_a_kept_upload_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the image and its vector leaves the image, which nothing would ever ask for."""
    monkeypatch.setattr(uploads, "MAX_SAVED", 2)
    (tmp_path / "u.0123456789abcdef.jpg").write_bytes(b"half")
    keep(kept(tmp_path))
    keep(kept(tmp_path))
    assert not (tmp_path / "u.0123456789abcdef.jpg").exists()


@pytest.fixture
def thumbs(made: Any, home: Path) -> Iterator[Thumbnails]:
    from lookalike.searching import Index

    with Index.open(made[1]) as index:
        yield Thumbnails(index, limit=4_000)


def test_small_images_that_others_trimmed_are_no_error(thumbs: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ghosts(monkeypatch, thumbs.folder / "00" / "gone-96.jpg")
    contents = [r.payload["content_id"] for part in thumbs.index.store.scan() for r in part]
    for content in contents[:12]:
        assert thumbs.get(content, 96).startswith(b"\xff\xd8")
    monkeypatch.undo()
    assert 0 < sum(file.stat().st_size for file in thumbs.folder.glob("*/*.jpg")) <= 4_000
