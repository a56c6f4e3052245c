"""A folder that is followed: every change is acted on once it has come to rest, also one that failed at first."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.searching import Index, index, purge
from lookalike.searching.folder_watcher import REST, FolderWatcher, watch
from lookalike.searching.ingest import IndexUpdate
from tests import helpers
from tests.searching.fake import FakeEmbedder, install


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return helpers.make_images(tmp_path / "images", classes=2, images=3)


def draw(path: Path, seed: int) -> None:
    Image.fromarray(helpers.make_image(seed)).save(path)


def follow(monkeypatch: pytest.MonkeyPatch, steps: Iterator[object]) -> None:
    """Between two looks, the next step is taken; after the last one comes Ctrl-C."""

    def sleep(_: float) -> None:
        try:
            next(steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("lookalike.searching.indexing.watch_folder", functools.partial(watch, sleep=sleep))


def indexed(place: Path) -> dict[str, str]:
    with Index.open(place) as opened:
        return {r.payload["path"]: r.payload["label"] for part in opened.store.scan() for r in part}


def start(source: Path, place: Path) -> None:
    options: Any = {"model": FakeEmbedder(), "calibrate": False, "progress": False}
    index(folder=source, index=place, watch=True, **options)


def test_files_may_still_be_arriving(folder: Path) -> None:
    watched = FolderWatcher(folder)
    watched.begin_update()
    assert [watched.changed() for _ in range(3)] == [False] * 3
    (folder / "class-00" / "a.jpg").write_bytes(b"half")
    assert not watched.changed(), "seen for the first time"
    (folder / "class-00" / "a.jpg").write_bytes(b"half and more")
    assert not watched.changed() and watched.changed() and not watched.changed()


def test_what_failed_is_tried_again_less_and_less_often(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, scans, waits = FolderWatcher(folder), 0, []
    state = watched._scan()
    monkeypatch.setattr(watched, "_scan", lambda: state)  # a scan takes as long as any of the folder
    while len(waits) < 8:
        scans += 1
        if watched.changed():
            waits.append(scans)
            watched.end_update(success=False)
            scans = 0
    assert waits == [2, 2, 4, 8, 16, 32, REST, REST]
    while not watched.changed():
        pass
    watched.end_update(success=True)
    assert not any(watched.changed() for _ in range(2 * REST))
    monkeypatch.delattr(watched, "_scan")
    draw(folder / "class-00" / "new.jpg", 9)
    assert [watched.changed(), watched.changed()] == [False, True]


def test_an_index_follows_its_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    place, one, run, scandir = tmp_path / "index", folder / "class-00", IndexUpdate.run, os.scandir

    def slow(self: Any) -> Any:  # an image comes in while the first run is at work
        if not (one / "late.jpg").exists():
            draw(one / "late.jpg", 90)
        return run(self)

    def steps() -> Iterator[None]:
        assert "class-00/late.jpg" not in indexed(place)
        yield
        yield
        assert "class-00/late.jpg" in indexed(place), "what came during the first run is not forgotten"
        draw(one / "busy.jpg", 91)
        with hold(place / ".lock", "The index"):
            for _ in range(5):
                yield
        for _ in range(5):
            yield
        assert "class-00/busy.jpg" in indexed(place), "what could not be done is tried again"
        draw(one / "away.jpg", 92)
        monkeypatch.setattr(os, "scandir", away)
        for _ in range(5):
            yield
        monkeypatch.setattr(os, "scandir", scandir)
        (one / "busy.jpg").unlink()
        for _ in range(10):
            yield
        assert {"class-00/away.jpg", "class-00/busy.jpg"} & indexed(place).keys() == {"class-00/away.jpg"}

    def away(path: Any) -> Any:
        if Path(path) == folder:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return scandir(path)

    monkeypatch.setattr(IndexUpdate, "run", slow)
    follow(monkeypatch, steps())
    start(folder, place)
    printed = capsys.readouterr().err
    again = "the next attempt follows later"
    assert printed.count(again) == printed.count(f"{again}: The index") + 1 == 2, "each trouble once"
    assert "not connected" in printed and printed.rstrip().endswith("Stopped watching.")


def test_new_labels_in_a_list_are_seen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    place, table = tmp_path / "index", folder / "list.csv"
    table.write_text("path,label\nclass-00/0.jpg,gull\nclass-00/1.jpg,tern\n")

    def steps() -> Iterator[None]:
        table.write_text("path,label\nclass-00/0.jpg,gull\nclass-00/1.jpg,skua\n")
        yield
        yield
        assert indexed(place) == {"class-00/0.jpg": "gull", "class-00/1.jpg": "skua"}

    follow(monkeypatch, steps())
    start(table, place)
    assert indexed(place)["class-00/1.jpg"] == "skua"


def test_scans_do_not_warn_again_and_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out.jpg").symlink_to("/dev/null")
    watched = FolderWatcher(folder)
    assert [watched.changed() for _ in range(3)] == [False, True, False]
    assert not capsys.readouterr().err


def test_mistakes_of_the_program_are_not_taken_for_trouble(folder: Path) -> None:
    def wrong() -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watch(wrong, FolderWatcher(folder), every=0, sleep=lambda _: None)
    with pytest.raises(LookalikeError, match="does not exist: give a folder"):
        index(folder=folder / "nowhere", watch=True)


def test_an_index_that_is_watched_is_not_deleted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """The next change would make it again."""
    place = tmp_path / "index"

    def steps() -> Iterator[None]:
        with pytest.raises(
            LookalikeError, match=r"is being served or watched: stop `lookalike serve` or `index --watch`"
        ):
            purge(index=place)
        yield

    install(monkeypatch)
    follow(monkeypatch, steps())
    start(folder, place)
    assert len(indexed(place)) == 6
    purge(index=place)
    assert not place.exists()
