"""``verify``: a flipped bit in any file of an index is found, or changes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lookalike
from lookalike.core.errors import LookalikeError
from lookalike.searching import Index, image_map, index
from tests import helpers
from tests.searching import fake


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """An index of twelve images, of which one was deleted, with a map."""
    fake.install(monkeypatch)
    images, model = helpers.make_images(tmp_path / "images", classes=3, images=4), fake.FakeEmbedder()
    place = tmp_path / "index"
    index(folder=images, model=model, index=place, progress=False)  # type: ignore[arg-type]
    (images / "class-00" / "0.jpg").unlink()
    index(folder=images, index=place, progress=False)
    with Index(place) as opened:
        image_map.draw_map(opened, progress=False)
    assert lookalike.verify(index=place, progress=False).problems == []
    return place


def flip(file: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1 << bit
    file.write_bytes(bytes(raw))


def detects_damage(place: Path) -> bool:
    try:
        lookalike.verify(index=place, progress=False)
    except LookalikeError as error:
        return "damaged" in str(error) or "no index" in str(error)
    return False


def _hash_of_map(folder: Path) -> str | None:
    shown = image_map.Map.load(folder)
    return None if shown is None else shown._hash()


def test_a_bit_in_any_file_of_an_index(place: Path, tmp_path: Path) -> None:
    others = (".lock", ".graph", "lookalike.db")  # locks, and what the next test is about
    files = [f for f in place.rglob("*") if f.is_file() and f.name not in others and f.stat().st_size]
    names = {file.name for file in files}
    assert {"table.parquet", "vectors-1.f32", "config.json", "map.parquet"} <= names
    rng, shown = np.random.default_rng(0), _hash_of_map(place / "generations" / "1")
    for file in files:
        raw = file.read_bytes()
        for position in rng.integers(len(raw), size=4):
            flip(file, int(position), 2)
            same = file.name == "map.parquet" and _hash_of_map(file.parent) == shown
            assert detects_damage(place) or same, (file, position)
            file.write_bytes(raw)
    assert lookalike.verify(index=place, progress=False).problems == []


def dump(database: Path) -> list[str] | None:
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?immutable=1", uri=True)) as connection:
            return list(connection.iterdump())
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def test_a_flipped_bit_in_the_database_is_detected_or_harmless(place: Path, tmp_path: Path) -> None:
    file = place / "lookalike.db"
    raw, rng = file.read_bytes(), np.random.default_rng(1)
    before, result, harmless = dump(file), 0, 0
    used = np.flatnonzero(np.frombuffer(raw, np.uint8))  # of an empty page nothing is read
    for position in rng.choice(used, 120, replace=False):
        flip(file, int(position), int(rng.integers(8)))
        if detects_damage(place):
            result += 1
        else:
            assert dump(file) == before, position
            harmless += 1
        file.write_bytes(raw)
    assert result > 60


@pytest.mark.parametrize(
    "text", ["class-01", '"path"', "class-02/3.jpg", "calibration/1", '"images": 11', "_hash"], ids=str
)
def test_a_letter_of_the_database(place: Path, text: str) -> None:
    file = place / "lookalike.db"
    raw, count = file.read_bytes(), 0
    start = raw.find(text.encode())
    while start >= 0:
        flip(file, start + len(text) - 2)
        result, same = detects_damage(place), False
        if not result:
            file_now = file.read_bytes()
            file.write_bytes(raw)
            before = dump(file)
            file.write_bytes(file_now)
            same = dump(file) == before
        assert result or same, start
        count += result
        file.write_bytes(raw)
        start = raw.find(text.encode(), start + 1)
    assert count


def test_an_index_that_is_being_updated_is_not_called_damaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is replaced before the manifest that holds its checksum."""
    from lookalike.searching import verify_index

    real = verify_index.file_checksums
    table = place / "generations" / "1" / "table.parquet"

    def meanwhile(folder: Path) -> Any:
        from lookalike.searching import manifest as manifests

        flip(table, 5)
        manifest = manifests.read(place)
        manifest.generation().complete = False
        manifest.write(place)
        return real(folder)

    monkeypatch.setattr(verify_index, "file_checksums", meanwhile)
    assert lookalike.verify(index=place, progress=False).problems == []
