"""The demo on a user's own folders: what it makes, what it reuses, what it leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lookalike.core.run import Run
from lookalike.demo import demo
from tests.data.places import shard
from tests.helpers import ROOT, make_images

MODEL = str(ROOT / "tests" / "compat" / "model-1")  # tiny, with random weights


@pytest.fixture
def birds(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_images(tmp_path / "birds", classes=6, images=5, width=32, height=32)


def test_a_labeled_folder_is_trained_on_once(birds: Path) -> None:
    first = demo(images=birds, model=MODEL)
    assert first.run is not None and Run(first.run).result["finished"] and first.report is not None
    assert first.report.stat().st_size > 10_000
    assert len(first.hits.hits) and first.to_json()["images"] == 30
    made = (first.run / "model" / "model.safetensors").stat().st_mtime_ns
    again = demo(images=birds, model=MODEL)
    assert again.run == first.run
    assert (first.run / "model" / "model.safetensors").stat().st_mtime_ns == made
    # Other images have a run of their own; the first one stays as it is.
    shutil.copy(birds / "class-00" / "0.jpg", birds / "class-00" / "9.jpg")
    other = demo(images=birds, model=MODEL)
    assert other.run is not None and other.run.name == "demo-birds-2" and other.images == 31
    assert (first.run / "model" / "model.safetensors").stat().st_mtime_ns == made


def test_a_stopped_run_of_another_seed_is_not_gone_on_with(birds: Path) -> None:
    from lookalike.training.settings import resolve

    stopped = Run.create("ms", resolve().model_dump(mode="json"), path=Path("runs") / "demo-birds")
    found = demo(images=birds, model=MODEL, seed=1)
    assert found.run is not None and found.run.name == "demo-birds-2"
    assert not stopped.result


def test_a_folder_without_labels_is_searched_only(birds: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(birds.rglob("*.jpg"))):
        shutil.copy(file, flat / f"{number}.jpg")
    found = demo(images=flat, model=MODEL)
    assert found.run is None and found.report is None and len(found.hits.hits)
    assert any("not trained" in text for _, text in found.lines)


def test_images_in_shards(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.rglob("*.jpg"))
    members = [
        (f"{i:03}.{kind}", data)
        for i, f in enumerate(files)
        for kind, data in (("jpg", f.read_bytes()), ("cls", f.parent.name.encode()))
    ]
    shard(tmp_path / "shards" / "a.tar", *members)
    found = demo(images=tmp_path / "shards", model=MODEL)
    assert found.run is not None and len(found.hits.hits)
