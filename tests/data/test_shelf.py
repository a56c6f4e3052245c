"""The generated images: the same every time, reused, hard enough, and never written over what is not theirs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import Table, make_shelf, read_table
from lookalike.data.shelf_designs import KINDS, MOTIFS, STEEPEST, STEPS, design
from lookalike.data.shelf_scenes import STYLES, draw


def small(folder: Path, **other: Any) -> Table:
    return make_shelf(folder, **{"classes": 4, "images": 3, "size": 48, **other})


def contents(table: Table) -> dict[str, bytes]:
    return {path: table.open_bytes(i) for i, path in enumerate(table.column("path"))}


def test_a_shelf_is_laid_out_and_split_by_class(tmp_path: Path) -> None:
    table = small(tmp_path / "shelf", classes=5, images=6)
    assert len(table) == 30
    assert set(table.column("domain")) == {"studio", "sketch", "night"}
    sides = {s: set(table.column("label")[table.column("split") == s]) for s in ("train", "test")}
    assert len(sides["train"]) == 2 and len(sides["test"]) == 3 and not sides["train"] & sides["test"]
    for label in {*table.column("label")}:  # every class in every style
        assert set(table.column("domain")[table.column("label") == label]) == {"studio", "sketch", "night"}
    assert "generated" in (tmp_path / "shelf" / "README.txt").read_text(encoding="utf-8").splitlines()[0]
    with (tmp_path / "shelf" / "table.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file).fieldnames or []) == ["path", "label", "split", "domain"]
    for i in range(30):
        image = Image.open(table.file(i))  # type: ignore[arg-type]
        assert image.size == (48, 48) and image.mode == "RGB" and not image.getexif()
    assert len(read_table(tmp_path / "shelf")) == 30  # the folder speaks for itself


def test_the_same_settings_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = contents(small(tmp_path / "a"))
    monkeypatch.setenv("LOOKALIKE_THREADS", "3")
    assert contents(small(tmp_path / "b")) == first
    assert contents(small(tmp_path / "c", seed=1)).keys() != first.keys()
    more = contents(small(tmp_path / "d", classes=6, images=5))  # a larger shelf has the smaller one in it
    assert {path: more[path] for path in first} == first
    assert len(set(more.values())) == 30


def test_what_is_there_is_reused_and_what_is_damaged_made_again(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    table = small(shelf)
    first = table.file(0)
    assert first is not None
    made = first.stat().st_mtime_ns
    small(shelf)
    assert first.stat().st_mtime_ns == made
    for name in (first, shelf / "table.csv"):
        whole = name.read_bytes()
        name.write_bytes(b"")
        small(shelf)
        assert name.read_bytes() == whole
    assert len(small(shelf, classes=3)) == 9  # other settings: other images
    assert len(list(shelf.rglob("*.jpg"))) == 9


def test_what_is_not_generated_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.jpg").write_bytes(b"x")
    with pytest.raises(LookalikeError, match="not generated images"):
        small(tmp_path / "mine")
    small(tmp_path / "shelf")
    (tmp_path / "shelf" / "notes.txt").write_text("mine")
    small(tmp_path / "shelf")  # nothing is written, so nothing is lost
    with pytest.raises(LookalikeError, match=r"notes\.txt"):
        small(tmp_path / "shelf", seed=5)
    assert (tmp_path / "shelf" / "notes.txt").read_text() == "mine"


def test_a_stop_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop(*words: Any) -> Image.Image:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return draw(*words)

    monkeypatch.setattr("lookalike.data.shelf_scenes.draw", stop)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "shelf", images=40)
    assert list(tmp_path.iterdir()) == [] and len(calls) < 60


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="did you mean `studio`"):
        small(tmp_path / "x", styles=["studo"])
    for wrong in ({"classes": 1}, {"images": 0}, {"size": 8}, {"styles": []}):
        with pytest.raises(LookalikeError, match="cannot be made"):
            small(tmp_path / "x", **wrong)
    assert not (tmp_path / "x").exists()


def test_designs_differ_and_every_kind_comes_round() -> None:
    designs = [design(0, number) for number in range(40)]
    assert len({d.name for d in designs}) == 40
    for start in range(0, 40, 10):
        assert {d.kind for d in designs[start : start + 10]} == set(KINDS)
    assert {d.motif for d in designs} == set(MOTIFS)
    for d in designs:
        assert d.radius.shape == (STEPS,) and d.radius.min() >= 0 and 0.1 < d.width < 3
        assert np.diff(d.radius[STEPS // 8 :]).max() * (STEPS - 1) < STEEPEST * 1.01  # nothing hangs over


@pytest.mark.parametrize("style", STYLES)
def test_every_kind_can_be_drawn_in_every_style(style: str) -> None:
    others = [design(0, 1000 + number) for number in range(5)]
    for number in range(20):
        image = np.asarray(draw(design(3, number), style, 48, others, numpy_rng(number, style)))
        assert image.shape == (48, 48, 3) and image.dtype == np.uint8
        assert image.std() > 8  # there is something to see


def test_the_thing_is_in_the_middle_of_its_image() -> None:
    """Two images with the same random numbers differ where the thing is, and it is not small."""
    for number in range(10):
        one, two = (
            np.asarray(draw(design(0, n), "poster", 64, [design(0, 99)], numpy_rng(number)), float)
            for n in (number, number + 10)
        )
        changed = np.abs(one - two).max(2) > 24
        assert changed[16:56, 16:48].mean() > 0.1


@pytest.mark.slow
def test_the_frozen_model_finds_it_neither_easy_nor_impossible(tmp_path: Path) -> None:
    from lookalike.models import Embedder

    table = make_shelf(tmp_path / "shelf")
    table = table.where("split", "test")
    labels, _ = table.labels()
    vectors = Embedder.from_pretrained("efficientnet_lite0", size=160).encode(table)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    assert 0.5 < (labels[scores.argmax(1)] == labels).mean() < 0.8
