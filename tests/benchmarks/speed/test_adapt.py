"""The benchmark of the whole job of `adapt`: what it reads from the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import helpers

from benchmarks.speed import adapt
from lookalike.adaptation.candidate import tell_estimate


def test_the_estimate_is_read_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tell_estimate({"features": 80.0, "steps": 40.0, "judging": 0.2})
    text = capsys.readouterr().err
    assert text == "This will take about 2 min (features 80 s, steps 40 s).\n" and adapt.seconds_estimated(text) == 120
    tell_estimate({"features": 12.0})
    assert adapt.seconds_estimated(capsys.readouterr().err) == 12


def test_the_time_is_kept_before_the_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured stays when the benchmark is stopped in the part that measures no time."""
    kept: list[list[str]] = []
    runs: list[list[str]] = []

    def stand_in(words: list[str], home: Path, *, kill_after: float | None = None) -> str:
        runs.append([*words, *(["killed"] if kill_after is not None else [])])
        return "This will take about 2 s.\n"

    monkeypatch.setattr(adapt, "adapt", stand_in)
    monkeypatch.setattr(adapt, "material", lambda pacs, where: (where / "target", where / "model"))
    monkeypatch.setattr(adapt, "weights", lambda run: run.name == "whole")
    keep = lambda figures, bars: kept.append([bar.name for bar in bars])  # noqa: E731
    context: Any = SimpleNamespace(folder=Path, say=lambda text: None, keep=keep)
    figures, bars = adapt.run(context)
    assert kept == [["seconds", "estimate, wrong by a factor of"]] and figures["estimate"] == 2
    assert [run[-1] for run in runs][1:] == ["killed", str(Path(runs[1][-2]))]
    assert not bars[-1].ok and not figures["same bits"], "other bits are a miss"


def test_the_bits_are_those_of_the_last_version(tmp_path: Path) -> None:
    (tmp_path / "versions.json").write_text(json.dumps({"versions": [{"number": 0}, {"weights": "abc"}]}))
    assert adapt.weights(tmp_path) == "abc"


def test_the_target_has_as_many_images_as_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.make_images(tmp_path / "pacs" / "cartoon", classes=2, images=6, width=40, height=32)
    monkeypatch.setattr("lookalike.models.Embedder.from_pretrained", lambda name, device: _Model())
    (tmp_path / "work").mkdir()
    target, model = adapt.material(tmp_path / "pacs", tmp_path / "work", count=8)
    assert len(list(target.iterdir())) == 8 and model == tmp_path / "work" / "model"


class _Model:
    """Stands in for the network, which would take most of the time."""

    def features(self, table: object) -> None:
        return None

    def set_pca_head(self, rows: object, dim: int) -> None:
        assert dim == 4

    def save_pretrained(self, path: Path) -> None:
        path.mkdir()
