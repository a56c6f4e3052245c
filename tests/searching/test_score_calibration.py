"""Percentages are checked on images that the model was not trained on, or it is said that they were not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.database import read_document
from lookalike.core.files import write_json
from lookalike.core.run import Run
from lookalike.data import audit, read_table
from lookalike.evaluation.training_overlap import SEEN, UNKNOWN
from lookalike.searching import Hits, Index, backup, index, restore, search
from tests import helpers
from tests.searching import fake
from tests.training.conftest import SMALL


@pytest.fixture(autouse=True)
def _fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        fake.install(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """96 images in 8 classes; those of a class are each other's nearest, but for some."""
    return helpers.make_images(tmp_path / "photos", classes=8, images=12)


def trained_run(place: Path, folder: Path, classes: int, start: str = "efficientnet_lite0", seed: int = 0) -> Path:
    """A run as `train` leaves it, whose training side are the first classes of a folder."""
    table = audit(read_table(folder), near=False).table
    side = ["train" if int(name.split("-")[1].split("/")[0]) < classes else "test" for name in table.column("path")]
    run = Run.create("ms", {"model": {"name": start}}, path=place)
    table.with_column("split", side).save(run.path / "table.parquet")
    write_json(run.model / "config.json", {"seed": seed, "parent": "a" * 32})
    return run.path


def checked(place: Path) -> dict[str, Any]:
    with Index.open(place) as opened:
        document: dict[str, Any] = read_document(opened.path, f"calibration/{opened.generation.number}")
        assert opened.scores.note == document["note"]
    return document


def make(folder: Path, place: Path, **more: Any) -> dict[str, Any]:
    index(folder=folder, index=place, progress=False, **more)
    return checked(place)


def test_images_of_the_training_do_not_ask(tmp_path: Path, folder: Path) -> None:
    run = trained_run(tmp_path / "run", folder, classes=5)
    result = make(folder, tmp_path / "i", model=run)
    assert result["queries"] == 36 and result["gallery"] == 96 and result["calibration"] and result["note"] == ""
    again = make(folder, tmp_path / "ii", model=run / "model")
    assert again["queries"] == 36, "the model of a run is the run's"
    moved = folder.rename(tmp_path / "elsewhere")
    shutil.copy(moved / "class-02" / "5.jpg", moved / "class-07" / "a copy.jpg")
    assert make(moved, tmp_path / "iii", model=run)["queries"] == 36, "moved ones and copies are known again"
    (moved / "class-07" / "a copy.jpg").unlink()
    shutil.rmtree(run)
    (moved / "class-07" / "3.jpg").unlink()
    assert make(moved, tmp_path / "i")["queries"] == 35, "the index knows without the run"
    backup(index=tmp_path / "i", out=tmp_path / "i.tar", progress=False)
    restore(file=tmp_path / "i.tar", index=tmp_path / "back", progress=False)
    assert make(moved, tmp_path / "back")["queries"] == 35


def test_another_decoder_sees_the_same_images(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.data import decoding

    run = trained_run(tmp_path / "run", folder, classes=5)
    make(folder, tmp_path / "i", model=run)
    shutil.rmtree(run)
    monkeypatch.setattr(decoding, "DECODER", decoding.DECODER + "+other")
    result = make(folder, tmp_path / "i")
    with Index.open(tmp_path / "i") as opened:
        assert opened.generation.number == 2
    assert result["queries"] == 36 and result["note"] == ""


def test_a_run_that_went_on_from_another_knows_the_images_of_both(tmp_path: Path, folder: Path) -> None:
    first = trained_run(tmp_path / "first", folder, classes=3)
    other = helpers.make_images(tmp_path / "other", classes=6, images=4, seed=5)
    second = trained_run(tmp_path / "second", other, classes=6, start=str(first), seed=1)
    assert make(folder, tmp_path / "i", model=second)["queries"] == 60
    shutil.rmtree(first)
    result = make(folder, tmp_path / "ii", model=second)
    assert result["note"] == UNKNOWN, "what it began with is gone"


def test_where_all_or_too_many_were_trained_on_it_is_reported(tmp_path: Path, folder: Path) -> None:
    run = trained_run(tmp_path / "run", folder, classes=8)
    done = index(folder=folder, model=run, index=tmp_path / "i", progress=False)
    assert done.calibrated and SEEN in str(done)
    assert checked(tmp_path / "i")["queries"] == 96
    hits = search(query=folder / "class-01" / "2.jpg", index=tmp_path / "i", k=3)
    assert isinstance(hits, Hits) and SEEN in hits.note and SEEN in hits.detail and SEEN in str(hits)
    few = trained_run(tmp_path / "few", folder, classes=7, seed=1)  # 12 images: too few pairs
    result = make(folder, tmp_path / "ii", model=few)
    assert result["calibration"] and result["note"] == SEEN and result["queries"] == 96


def test_where_it_is_not_known_it_is_reported(tmp_path: Path, folder: Path) -> None:
    run = trained_run(tmp_path / "run", folder, classes=5)
    shutil.copytree(run / "model", tmp_path / "alone")
    done = index(folder=folder, model=tmp_path / "alone", index=tmp_path / "i", progress=False)
    assert done.calibrated and UNKNOWN in str(done) and checked(tmp_path / "i")["note"] == UNKNOWN
    (run / "table.parquet").unlink()  # a run of another kind: it keeps no such table
    write_json(run / "model" / "config.json", {"seed": 1})
    assert make(folder, tmp_path / "ii", model=run)["note"] == UNKNOWN
    for license, note in (("Weights from the user's own file a.pth.", UNKNOWN), ("Apache-2.0", "")):
        write_json(tmp_path / "own" / "config.json", {"seed": 2, "card": {"license": license}})
        assert make(folder, tmp_path / f"own-{len(note)}", model=tmp_path / "own")["note"] == note


def test_the_note_stands_beside_no_good_match_too() -> None:
    from tests.searching.test_search import hit

    hits = Hits("gull.jpg", [hit(0, 0.12)], 100, 1.0, note=SEEN)
    assert hits.kind == "none" and hits.detail.startswith("The nearest one is 12 %") and hits.detail.endswith(SEEN)


def test_a_folder_of_one_class_and_a_stray_image_is_indexed(tmp_path: Path) -> None:
    folder = helpers.make_images(tmp_path / "cats", classes=1, images=30)
    shutil.copytree(helpers.make_images(tmp_path / "x", classes=1, images=1, seed=9) / "class-00", folder / "misc")
    write_json(tmp_path / "model" / "config.json", {"seed": 0})
    done = index(folder=folder, model=tmp_path / "model", index=tmp_path / "i", progress=False)
    assert not done.calibrated and "too few classes" in str(done)


def test_a_real_run_is_checked_on_its_own_test_side(tmp_path: Path, model: Path) -> None:
    """The main road: train on a folder, index it by the run, and evaluate it."""
    from lookalike.evaluation import evaluate
    from lookalike.training import train

    folder = helpers.make_images(tmp_path / "photos", classes=12, images=12, width=48, height=40)
    run = train(data=folder, model=model, out=tmp_path / "run", settings={**SMALL, "keep": "trained"})
    count = run.result["images"]["train"]
    assert 0 < count < 144
    result = make(folder, tmp_path / "i", model=run.path)
    assert result["queries"] == 144 - count and result["calibration"] and result["note"] == ""
    text = str(run.read_sections()["calibration"])
    assert "held out from the fit" in text and SEEN not in text and UNKNOWN not in text
    done = evaluate(data=folder, model=run.path, all=True, out=tmp_path / "all")
    assert done.model.note == SEEN and done.to_json()["calibration_note"] == SEEN
    assert SEEN in str(Run(tmp_path / "all").read_sections()["calibration"])
    table = evaluate(data=run.path / "table.parquet", split="test", model=run.path)
    own = evaluate(data=folder, model=run.path)  # the run's test images, without being asked
    assert table.model.note == own.model.note == "" and len(own.table) == run.result["images"]["test"]
    assert table.model.intervals == own.model.intervals
    measured = run.result["measured"]["trained"]["recall@1"]["value"]
    assert own.model.intervals["recall@1"].value == pytest.approx(measured, abs=0.03)
    shutil.copytree(run.model, tmp_path / "alone")
    assert evaluate(data=folder, model=tmp_path / "alone").model.note == UNKNOWN
    assert evaluate(data=folder, model=model).model.note == ""


def test_albums_give_no_percentages_unless_requested(tmp_path: Path, folder: Path) -> None:
    albums = tmp_path / "albums"
    for number, file in enumerate(sorted(folder.rglob("*.jpg"))):
        (albums / f"20{10 + number % 12}").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, albums / f"20{10 + number % 12}" / f"{number}.jpg")
    write_json(tmp_path / "model" / "config.json", {"seed": 0})
    done = index(folder=albums, model=tmp_path / "model", index=tmp_path / "i", progress=False)
    message = "12 subfolders were taken as classes, but their images hardly look alike: percentages are off"
    assert (
        not done.calibrated and message in str(done) and "`lookalike index FOLDER --labels` turns them on" in str(done)
    )
    hits = search(query=albums / "2010" / "0.jpg", index=tmp_path / "i", k=3)
    assert isinstance(hits, Hits) and hits.kind == "uncalibrated" and message in hits.detail
    trusted = make(albums, tmp_path / "i", labels=True)
    assert trusted["queries"] == 96 and message not in trusted["note"]
    assert make(albums, tmp_path / "i")["queries"] == 96, "the index remembers"


def test_a_half_built_index_says_so(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_json(tmp_path / "model" / "config.json", {"seed": 0})
    with monkeypatch.context() as patch:
        patch.setattr("lookalike.searching.writer.Writer.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            index(folder=folder, model=tmp_path / "model", index=tmp_path / "i", calibrate=False, progress=False)
    query = folder / "class-01" / "2.jpg"
    hits = search(query=query, index=tmp_path / "i", k=3)
    assert isinstance(hits, Hits)
    assert hits.detail == f"The index is unfinished, 96 of 96 so far: run `lookalike index {folder}`."
    index(folder=folder, index=tmp_path / "i", progress=False)
    finished = search(query=query, index=tmp_path / "i", k=3)
    assert isinstance(finished, Hits) and "unfinished" not in finished.detail
