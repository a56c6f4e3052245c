"""The command `models`: what can be used, from runs and the local cache of the Hub, with measured speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from lookalike.core.run import Run
from lookalike.models import Embedder, backbones, list_models, model_list


@pytest.fixture(autouse=True)
def only_tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(backbones, "BUILTIN", {})
    monkeypatch.setattr(model_list, "SUGGESTED", ("test_vit",))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def downloaded(model: Embedder, repository: str, tmp_path: Path) -> Path:
    """A model as the Hub's library leaves it in its cache."""
    place = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    model.save_pretrained(place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    return place / "snapshots" / "abc"


def test_runs_and_downloaded_models_are_listed_with_their_speed(
    model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save_pretrained((run := Run.create("train", {})).model, card={"license": "mit"})
    Run.create("unfinished", {})
    other = downloaded(model, "org/half", tmp_path)
    (other / "model.safetensors").unlink()
    model.set_random_head(8)
    downloaded(model, "org/tiny", tmp_path)
    listed = list_models()
    first, second, timm = listed.models
    assert (first.name, first.source, first.dim, first.license) == (run.path.name, "run", 256, "mit")
    assert (second.name, second.source, second.dim, second.here) == ("org/tiny", "Hub", 8, True)
    assert (timm.name, timm.here, timm.images_per_second) == ("test_vit", False, None)
    assert first.size == second.size == 48 and first.bytes > 0 and not listed.unreadable
    speeds = [one.images_per_second for one in (first, second)]
    assert all(speed is not None and 1 < speed < 1e6 for speed in speeds)
    assert f"{speeds[1]:,.0f}" in next(line for line in str(listed).splitlines() if "org/tiny" in line)
    assert json.loads(json.dumps(listed.to_json()))["models"][1]["images_per_second"] == speeds[1]
    monkeypatch.setattr(model_list, "CropEncoder", lambda *_, **__: pytest.fail("measured again"))
    assert [one.images_per_second for one in list_models().models[:2]] == speeds


def test_a_model_that_cannot_be_loaded_is_named_with_the_reason(model: Embedder, tmp_path: Path) -> None:
    folder = downloaded(model, "org/torn", tmp_path)
    (folder / "model.safetensors").write_bytes(b"torn")
    listed = list_models(measure=False)
    assert [one.name for one in listed.models] == ["test_vit"]
    assert "org/torn" in listed.unreadable[0] and "Left out: org/torn: The model" in str(listed)
