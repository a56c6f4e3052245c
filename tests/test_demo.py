"""The demo on a user's own folders: what it makes, what it reuses, what it leaves out."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from lookalike import demo as demo_module
from lookalike.core.run import Run
from lookalike.demo import demo
from tests.data.places import shard
from tests.helpers import ROOT, make_images

MODEL = str(ROOT / "tests" / "compat" / "model-1")  # tiny, with random weights


@pytest.fixture
def birds(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_images(tmp_path / "birds", classes=6, images=5, width=32, height=32)


def test_a_labeled_folder_is_trained_on_once(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = demo(images=birds, model=MODEL)
    assert "batches hold" not in capsys.readouterr().err, "no warning about a default"
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
    matches = demo(images=birds, model=MODEL, seed=1)
    assert matches.run is not None and matches.run.name == "demo-birds-2"
    assert not stopped.result


def test_a_folder_without_labels_is_searched_only(birds: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(birds.rglob("*.jpg"))):
        shutil.copy(file, flat / f"{number}.jpg")
    matches = demo(images=flat, model=MODEL)
    assert matches.run is None and matches.report is None and len(matches.hits.hits)
    assert any("not trained" in text for _, text in matches.lines)


def test_images_in_shards(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.rglob("*.jpg"))
    members = [
        (f"{i:03}.{kind}", data)
        for i, f in enumerate(files)
        for kind, data in (("jpg", f.read_bytes()), ("cls", f.parent.name.encode()))
    ]
    shard(tmp_path / "shards" / "a.tar", *members)
    matches = demo(images=tmp_path / "shards", model=MODEL)
    assert matches.run is not None and len(matches.hits.hits)


def test_the_command_can_be_typed_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ".venv" / "bin" / "lookalike"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", "")
    assert demo_module.command() == ".venv/bin/lookalike"
    monkeypatch.setenv("PATH", str(script.parent))
    assert demo_module.command() == "lookalike"


def test_the_result_stands_once_and_in_words(tmp_path: Path) -> None:
    run = Run.create("ms", {}, path=tmp_path / "run")
    measured = {name: {"recall@1": {"value": value}} for name, value in (("starting model", 0.719), ("trained", 0.781))}
    facts = {"model": "m", "method": "ms", "seconds": {"train": 9}, "best_step": 4, "verdict": "Training raised it."}
    run.write_result(**facts, measured=measured, selected="trained")
    expected = "the first hit was right for 78 of 100 unseen images, 72 before training"
    assert demo_module._summarize(run)[1:] == [("Result", expected)]
    run.write_result(selected="starting model")
    assert demo_module._summarize(run)[1:] == [("Result", "Training raised it.")]
