"""The generated pictures: the same every time, reused, and never written over what is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.data import make_shelf


def small(folder: Path, **other: object):
    return make_shelf(folder, **{"classes": 4, "images": 3, "size": 48, **other})


def test_a_shelf_is_laid_out_and_split_by_class(tmp_path: Path) -> None:
    table = small(tmp_path / "shelf")
    assert len(table) == 12
    assert set(table.column("domain")) == {"studio", "sketch", "night"}
    sides = {s: set(table.column("label")[table.column("split") == s]) for s in ("train", "test")}
    assert len(sides["train"]) == len(sides["test"]) == 2 and not sides["train"] & sides["test"]
    assert "generated" in (tmp_path / "shelf" / "README.txt").read_text(encoding="utf-8")


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    a, b, c = small(tmp_path / "a"), small(tmp_path / "b"), small(tmp_path / "c", seed=1)
    assert [a.open_bytes(i) for i in range(12)] == [b.open_bytes(i) for i in range(12)]
    assert a.open_bytes(0) != c.open_bytes(0)


def test_what_is_there_is_reused_and_what_is_damaged_made_again(tmp_path: Path) -> None:
    table = small(tmp_path / "shelf")
    first = table.file(0)
    assert first is not None
    made = first.stat().st_mtime_ns
    small(tmp_path / "shelf")
    assert first.stat().st_mtime_ns == made
    whole = first.read_bytes()
    first.write_bytes(b"")
    small(tmp_path / "shelf")
    assert first.read_bytes() == whole


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_bytes(b"x")
    with pytest.raises(LookalikeError, match="not generated pictures"):
        small(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.jpg"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="studio"):
        small(tmp_path / "x", styles=["studo"])
    with pytest.raises(LookalikeError, match="cannot be made"):
        small(tmp_path / "x", classes=1)
