"""The benchmark of the whole job of `adapt`: what it reads from the command."""

from __future__ import annotations

import json
from pathlib import Path

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
