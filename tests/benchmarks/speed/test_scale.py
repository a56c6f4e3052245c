"""The benchmark of embedding over nodes and buckets on a small scale: what it times, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import helpers

from benchmarks.speed import scale
from lookalike.core.engine import LocalEngine
from lookalike.models import Embedder


def test_all_shards_but_the_first_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "BLOCK", 3)
    monkeypatch.setattr(scale, "MODEL", str(tmp_path / "model"))
    monkeypatch.setattr(scale, "SIZE", None)
    Embedder.from_pretrained("resnet10_small", weights="random", size=32).save_pretrained(tmp_path / "model")
    folder = helpers.make_images(tmp_path / "images", classes=3, images=4, width=40, height=32)
    done = scale.timed(scale.plan(folder, tmp_path / "parts"), LocalEngine(1), 1)
    assert done["images per second"] > 0
    assert len(list((tmp_path / "parts").glob("part-*"))) == 4
