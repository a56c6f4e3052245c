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
from lookalike.data import Table, make_demo_images, read_table
from lookalike.data.synthetic import KINDS, MOTIFS, STEPS, STYLES, draw, make_design


def small(folder: Path, **other: Any) -> Table:
    return make_demo_images(folder, **{"classes": 4, "images_per_class": 3, "size": 48, **other})


def contents(table: Table) -> dict[str, bytes]:
    return {path: table.open_bytes(i) for i, path in enumerate(table.column("path"))}


def test_the_folder_is_laid_out_and_split_by_class(tmp_path: Path) -> None:
    table = small(tmp_path / "demo", classes=5, images_per_class=6)
    assert len(table) == 30
    assert set(table.column("domain")) == {"studio", "sketch", "night"}
    sides = {s: set(table.column("label")[table.column("split") == s]) for s in ("train", "test")}
    assert len(sides["train"]) == 2 and len(sides["test"]) == 3 and not sides["train"] & sides["test"]
    for label in {*table.column("label")}:  # every class in every style
        assert set(table.column("domain")[table.column("label") == label]) == {"studio", "sketch", "night"}
    assert "generated" in (tmp_path / "demo" / "README.txt").read_text(encoding="utf-8").splitlines()[0]
    with (tmp_path / "demo" / "table.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file).fieldnames or []) == ["path", "label", "split", "domain"]
    for i in range(30):
        image = Image.open(table.file(i))  # type: ignore[arg-type]
        assert image.size == (48, 48) and image.mode == "RGB" and not image.getexif()
    assert len(read_table(tmp_path / "demo")) == 30  # the folder speaks for itself


def test_the_same_settings_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = contents(small(tmp_path / "a"))
    monkeypatch.setenv("LOOKALIKE_THREADS", "3")
    assert contents(small(tmp_path / "b")) == first
    assert contents(small(tmp_path / "c", seed=1)).keys() != first.keys()
    more = contents(small(tmp_path / "d", classes=6, images_per_class=5))  # a larger set contains the smaller one
    assert {path: more[path] for path in first} == first
    assert len(set(more.values())) == 30


def test_what_is_there_is_reused_and_what_is_damaged_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    table = small(folder)
    first = table.file(0)
    assert first is not None
    made = first.stat().st_mtime_ns
    small(folder)
    assert first.stat().st_mtime_ns == made
    for name in (first, folder / "table.csv"):
        whole = name.read_bytes()
        name.write_bytes(b"")
        small(folder)
        assert name.read_bytes() == whole
    assert len(small(folder, classes=3)) == 9  # other settings: other images
    assert len(list(folder.rglob("*.jpg"))) == 9


def test_what_is_not_generated_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.jpg").write_bytes(b"x")
    with pytest.raises(LookalikeError, match="not generated images"):
        small(tmp_path / "mine")
    small(tmp_path / "demo")
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    small(tmp_path / "demo")  # nothing is written, so nothing is lost
    with pytest.raises(LookalikeError, match=r"notes\.txt"):
        small(tmp_path / "demo", seed=5)
    assert (tmp_path / "demo" / "notes.txt").read_text() == "mine"


def test_a_stop_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop(*words: Any) -> Image.Image:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return draw(*words)

    monkeypatch.setattr("lookalike.data.synthetic.draw", stop)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "demo", images_per_class=40)
    assert list(tmp_path.iterdir()) == [] and len(calls) < 60


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="did you mean `studio`"):
        small(tmp_path / "x", styles=["studo"])
    for wrong in ({"classes": 1}, {"images_per_class": 0}, {"size": 8}, {"styles": []}):
        with pytest.raises(LookalikeError, match="cannot be made"):
            small(tmp_path / "x", **wrong)
    assert not (tmp_path / "x").exists()


def test_designs_differ_and_every_kind_comes_round() -> None:
    designs = [make_design(0, number) for number in range(40)]
    assert len({d.name for d in designs}) == 40
    for start in range(0, 40, 10):
        assert {d.kind for d in designs[start : start + 10]} == set(KINDS)
    assert {d.motif for d in designs} == set(MOTIFS)
    for d in designs:
        assert d.radius.shape == (STEPS,) and d.radius.min() > 0 and 0.1 < d.radius.max() < 1.5


@pytest.mark.parametrize("style", STYLES)
def test_every_kind_can_be_drawn_in_every_style(style: str) -> None:
    others = [make_design(0, 1000 + number) for number in range(5)]
    for number in range(20):
        image = np.asarray(draw(make_design(3, number), style, 48, others, numpy_rng(number, style)))
        assert image.shape == (48, 48, 3) and image.dtype == np.uint8
        assert image.std() > 8  # there is something to see


def test_the_object_is_in_the_middle_of_its_image() -> None:
    """Two images with the same random numbers differ where the object is, and it is not small."""
    for number in range(10):
        one, two = (
            np.asarray(draw(make_design(0, n), "studio", 64, [make_design(0, 99)], numpy_rng(number)), float)
            for n in (number, number + 10)
        )
        changed = np.abs(one - two).max(2) > 24
        assert changed[16:56, 16:48].mean() > 0.08


@pytest.mark.slow
def test_the_frozen_model_finds_it_neither_easy_nor_impossible(tmp_path: Path) -> None:
    from lookalike.models import Embedder

    table = make_demo_images(tmp_path / "demo")
    table = table.where("split", "test")
    labels, _ = table.labels()
    vectors = Embedder.from_pretrained("efficientnet_lite0", size=160).encode(table)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    assert 0.6 < (labels[scores.argmax(1)] == labels).mean() < 0.85
