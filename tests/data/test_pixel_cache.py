"""Cached pixels are the decoded ones, made once, never stale, and whole or not there."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests import helpers

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError
from lookalike.data import pixel_cache
from lookalike.data.decoding import shrink
from lookalike.data.pixel_cache import PixelCache
from lookalike.data.readers import read_table
from lookalike.data.table import Table


@pytest.fixture
def table(tmp_path: Path, home: Path) -> Table:
    folder = helpers.make_images(tmp_path / "images", classes=3, images=4, width=90, height=60)
    Image.fromarray(helpers.make_image(7, width=40, height=200)).save(folder / "class-00" / "tall.png")
    return read_table(folder)


def entries(home: Path) -> list[Path]:
    return sorted((home / "cache" / "pixels").iterdir())


def test_get_is_the_decoded_image(table: Table, home: Path) -> None:
    cache = PixelCache(table, 48)
    assert len(cache) == len(table) == 13
    for i, pixels in enumerate(cache):
        np.testing.assert_array_equal(pixels, shrink(table.open_bytes(i), 48))
        assert min(pixels.shape[:2]) == min(48, min(shrink(table.open_bytes(i), 1000).shape[:2]))
        assert not pixels.flags.writeable
    assert cache.offsets[-1] == sum(cache.get(i).size for i in range(13))
    entry = entries(home)[0]
    assert len(entries(home)) == 1 and stat.S_IMODE(entry.stat().st_mode) == 0o700


def test_boxes_are_cut(table: Table) -> None:
    for name, value in (("x_1", 5), ("y_1", 6), ("x_2", 35), ("y_2", 26)):
        table = table.with_column(name, [value] * len(table))
    assert {cache.shape for cache in PixelCache(table, 100)} == {(20, 30, 3)}


def test_made_once(table: Table, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    first = PixelCache(table, 32)
    os.utime(first.folder, (1, 1))
    monkeypatch.setattr(pixel_cache, "shrink", None)  # a second decode would fail
    second = PixelCache(table, 32)
    assert second.folder == first.folder
    assert artifacts.entries()[0][3] > 1  # marked as used
    np.testing.assert_array_equal(second.get(3), first.get(3))


def test_never_stale(table: Table, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = PixelCache(table, 32)
    path = table.file(0)
    assert path is not None and table.root is not None
    Image.fromarray(helpers.make_image(99, width=90, height=60)).save(path, quality=90)
    changed = read_table(table.root)
    new = PixelCache(changed, 32)
    assert (new.get(0) != old.get(0)).any()
    np.testing.assert_array_equal(new.get(0), shrink(path, 32))
    assert PixelCache(changed, 40).get(0).shape[0] == 40
    assert len(PixelCache(changed.take([1, 2]), 32)) == 2
    monkeypatch.setattr(pixel_cache, "DECODER", "another")
    PixelCache(changed, 32)
    assert len(entries(home)) == 5


@pytest.mark.parametrize("name", ["pixels.bin", "sizes.npy", "checksums.npy", "info.json"])
def test_a_damaged_entry_is_made_again(table: Table, name: str) -> None:
    expected = np.array(PixelCache(table, 32).get(2))
    file = PixelCache(table, 32).folder / name
    file.write_bytes(file.read_bytes()[:-7])
    np.testing.assert_array_equal(PixelCache(table, 32).get(2), expected)


@pytest.mark.parametrize("big", [0, 10**9])
def test_a_flipped_bit_is_noticed(table: Table, home: Path, monkeypatch: pytest.MonkeyPatch, big: int) -> None:
    """At once, or in a large file when the image is read."""
    monkeypatch.setattr(artifacts, "BIG", big)
    expected = np.array(PixelCache(table, 32).get(2))
    file = PixelCache(table, 32).folder / "pixels.bin"
    data = bytearray(file.read_bytes())
    data[PixelCache(table, 32).offsets[2] + 5] ^= 1
    file.write_bytes(data)
    if not big:
        with pytest.raises(LookalikeError, match="damaged on disk"):
            list(PixelCache(table, 32))
    np.testing.assert_array_equal(PixelCache(table, 32).get(2), expected)


def test_unreadable_images_are_named_and_nothing_is_left(table: Table, home: Path) -> None:
    broken = [table.file(i) for i in (2, 5)]
    for path in broken:
        assert path is not None
        path.write_bytes(b"no image")
    missing = table.file(7)
    assert missing is not None
    missing.unlink()
    with pytest.raises(LookalikeError) as caught:
        PixelCache(table, 32)
    for path in (*broken, missing):
        assert path is not None and path.name in str(caught.value)
    assert "text" in str(caught.value) and "no such file" in str(caught.value)
    assert entries(home) == []


def test_too_little_space_is_reported_before_the_work(
    table: Table, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr("lookalike.core.files.free_bytes", lambda path: 1000)
    monkeypatch.setattr(pixel_cache, "shrink", None)
    with pytest.raises(LookalikeError, match="needs about"):
        PixelCache(table, 32)
    assert entries(home) == []


def test_a_stop_in_the_middle_leaves_nothing(table: Table, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    real, calls = pixel_cache.shrink, []

    def stopped(*words: Any, **options: Any) -> np.ndarray:
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return real(*words, **options)

    monkeypatch.setattr(pixel_cache, "shrink", stopped)
    with pytest.raises(KeyboardInterrupt):
        PixelCache(table, 32)
    assert entries(home) == []


def test_sent_to_another_process_as_a_path(table: Table) -> None:
    cache = PixelCache(table, 48)
    sent = pickle.dumps(cache)
    assert len(sent) < 1000 < cache.offsets[-1]
    np.testing.assert_array_equal(pickle.loads(sent).get(4), cache.get(4))


def test_an_empty_table(table: Table) -> None:
    with pytest.raises(LookalikeError, match="empty"):
        PixelCache(table.take([]), 32)
