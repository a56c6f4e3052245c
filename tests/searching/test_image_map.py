from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.searching import Index, image_map, index
from tests import helpers


@pytest.fixture
def own(made: Any, tmp_path: Path) -> Index:
    """An index of our own to draw maps in."""
    shutil.copytree(made[1], tmp_path / "index")
    return Index.open(tmp_path / "index")


def test_a_map_is_computed_once_and_stored(own: Index) -> None:
    with own:
        sketches: list[image_map.Map] = []
        first = image_map.draw_map(own, progress=False, sketch=sketches.append)
        assert len(first) == 61 and first.method == "t-SNE" and first.drawn == 61
        assert [s.method for s in sketches] == ["PCA"] and sketches[0].number == first.number - 1
        assert image_map.is_current(own, first)
        again = image_map.draw_map(own, progress=False)
        assert again.number == first.number and again.ids == first.ids
        np.testing.assert_array_equal(again.places, first.places)
        assert 0 < first.neighbor_recall[0] <= first.neighbor_recall[1] <= 1


def test_images_of_a_class_lie_together(own: Index) -> None:
    with own:
        drawn = image_map.draw_map(own, progress=False)
    groups = np.array([name.split("/")[1] for name in drawn.ids])
    apart = np.linalg.norm(drawn.places[:, None] - drawn.places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (groups[apart.argmin(axis=1)] == groups).mean() > 0.8


def test_old_images_stay_where_they_are(folder: Path, model: Path, tmp_path: Path, home: Path) -> None:
    place = tmp_path / "index"
    index(folder=folder, model=model, index=place, progress=False)
    with Index.open(place) as opened:
        before = image_map.draw_map(opened, progress=False)
    shutil.copy(folder / "class-01" / "1.jpg", folder / "class-01" / "new.jpg")
    (folder / "class-02" / "0.jpg").unlink()
    index(folder=folder, index=place, progress=False)
    with Index.open(place) as opened:
        assert not image_map.is_current(opened, before)
        after = image_map.draw_map(opened, progress=False)
        stayed = [name for name in before.ids if name in after.where]
        for name in stayed:
            np.testing.assert_array_equal(after.places[after.where[name]], before.places[before.where[name]])
        assert len(after) == 24 and len(stayed) == 23 and after.number > before.number
        twin, new = (after.places[after.where[f"images/class-01/{n}.jpg"]] for n in ("1", "new"))
        assert np.linalg.norm(twin - new) < 0.2 * np.ptp(before.places, axis=0).max(), "a copy lies by its original"
        helpers.make_images(folder, classes=6, images=6)
    index(folder=folder, index=place, progress=False)
    with Index.open(place) as opened:
        grown = image_map.draw_map(opened, progress=False)  # by more than 30 %: drawn anew, laid over the old one
        assert grown.drawn == len(grown) > 30
        middle = np.mean([grown.places[grown.where[n]] for n in stayed if n in grown.where], axis=0)
        old = np.mean([after.places[after.where[n]] for n in stayed if n in grown.where], axis=0)
        assert np.linalg.norm(middle - old) < 0.3 * np.ptp(after.places, axis=0).max()


def test_the_map_of_another_model_lies_over_the_old_one(folder: Path, models: Path, home: Path) -> None:
    from lookalike.evaluation.projection import align, pca, tsne

    index(folder=folder, model=models / "first", progress=False)
    with Index.open(folder) as opened:
        old = image_map.draw_map(opened, progress=False)
    mirrored = old.places * np.float32([-3, 3]) + np.float32([40, 0])  # whatever the old one came to
    dataclasses.replace(old, places=mirrored).save(opened.folder)
    shutil.copy(folder / "class-01" / "1.jpg", folder / "class-01" / "new.jpg")
    index(folder=folder, model=models / "second", progress=False)
    sketches: list[image_map.Map] = []
    with Index.open(folder) as opened:
        assert opened.generation.number == 2
        new = image_map.draw_map(opened, progress=False, sketch=sketches.append)
        ids, rows = image_map._vectors(opened)
    assert len(new) == 25, "an image that the old map has not is there too"
    alone = tsne(rows, pca(rows, 2))
    both = [name for name in ids if name in old.where]
    expected = mirrored[[old.where[name] for name in both]].astype(float)

    def apart(places: np.ndarray) -> float:
        return float(np.linalg.norm(places - expected, axis=1).mean())

    for drawn in (new, *sketches):
        result = drawn.places[[drawn.where[name] for name in both]].astype(float)
        np.testing.assert_allclose(align(result, expected), result, atol=1e-3)  # no turn brings them nearer
    assert apart(result) < 0.5 * apart(alone[[ids.index(name) for name in both]])
    shape = new.places[[new.where[name] for name in ids]].astype(float)
    np.testing.assert_allclose(align(alone, shape), shape, atol=1e-3)  # turned, mirrored, scaled: the same drawing


def test_every_beginning_is_an_even_sample() -> None:
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(size=(900, 2)), rng.normal(size=(100, 2)) + 20]).astype(np.float32)
    ordered = image_map.ordered(image_map.Map([str(i) for i in range(1000)], places))
    n = len(places)
    assert sorted(ordered.ids, key=int) == [str(i) for i in range(n)]
    np.testing.assert_array_equal(ordered.places, places[[int(i) for i in ordered.ids]])
    cell = (ordered.unit() * image_map.CELLS).astype(int).clip(max=image_map.CELLS - 1) @ [image_map.CELLS, 1]
    full = np.bincount(cell, minlength=image_map.CELLS**2)
    taken = np.zeros_like(full)
    for place, at in enumerate(cell):
        taken[at] += 1
        if place % 50 == 0:
            left = taken < full
            assert taken.max() <= taken[left].min(initial=n) + 1, "no cell is a round ahead of one that has some left"


def test_a_thin_part_is_seen_from_the_start() -> None:
    """Within a round all cells are alike: which come first is a draw without regard to how full they are."""
    from scipy.stats import hypergeom

    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(size=(9000, 2)), 4 * rng.normal(size=(200, 2)) + 20]).astype(np.float32)
    ordered = image_map.ordered(image_map.Map([str(i) for i in range(9200)], places))
    cells = np.unique((ordered.unit() * image_map.CELLS).astype(int), axis=0, return_index=True)[1]
    thin = int((ordered.places[cells, 0] > 8).sum())
    drawn = len(cells) // 4  # a part of the first round
    seen = int((ordered.places[:drawn, 0] > 8).sum())
    low, high = hypergeom(len(cells), thin, drawn).ppf([1e-6, 1 - 1e-6])
    assert low <= seen <= high, f"{seen} of the first {drawn}; {thin} of {len(cells)} cells are thin"


def test_a_map_of_another_kind_of_file_is_refused(own: Index) -> None:
    from lookalike.core.errors import LookalikeError

    with own:
        shutil.copy(own.folder / "table.parquet", own.folder / image_map.FILE)
        with pytest.raises(LookalikeError, match="not a map"):
            image_map.draw_map(own, progress=False)
