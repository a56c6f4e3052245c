"""The benchmark of `encode`, in miniature: what it compares, and that it ends well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers import make_image, make_images

from benchmarks.speed import BenchContext, measuring
from benchmarks.speed import encode as bench


def test_images_are_enlarged_to_the_long_side(tmp_path: Path) -> None:
    files = sorted(make_images(tmp_path / "small", classes=1, images=2, width=64, height=48).rglob("*.jpg"))
    (tmp_path / "large").mkdir()
    large = bench.enlarge(files, tmp_path / "large")
    assert [Image.open(file).size for file in large] == [(500, 375)] * 2


def test_the_best_of_each_round_and_the_median_of_ratios() -> None:
    speeds = {"a": [1.0, 5.0, 3.0], "b": [2.0, 4.0, 3.0]}
    assert bench.best(speeds, "a", "b") == [2.0, 5.0, 3.0]
    assert bench.ratio([4.0, 5.0, 9.0], [2.0, 5.0, 3.0]) == 2.0


def test_the_first_round_only_warms_up() -> None:
    calls: list[str] = []
    speeds = measuring.interleaved_rates({"a": lambda: calls.append("a") or 1, "b": lambda: calls.append("b") or 1}, 2)
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in speeds.values()] == [2, 2]


def test_the_peer_sees_what_we_see(tmp_path: Path) -> None:
    """Both sides embed the same image: the peer's transforms differ from ours by rounding alone."""
    from lookalike.data import Preprocess
    from lookalike.models.inference.pipeline import load_crop

    Image.fromarray(make_image(3, width=160, height=128)).save(tmp_path / "a.png")
    pre = Preprocess(size=96)
    theirs = bench.Files([tmp_path / "a.png"], 96, pre.crop, pre.mean, pre.std)[0].numpy()
    ours = (load_crop(tmp_path / "a.png", pre).astype(np.float32) / 255 - 0.5) / 0.5
    assert np.abs(theirs.transpose(1, 2, 0) - ours).mean() < 0.02


@pytest.mark.slow
def test_the_whole_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / "cub" / "images", classes=8, images=8)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "OURS", {96: 64, 224: 32})
    monkeypatch.setattr(bench, "PEER", {96: 32, 224: 32})
    figures, bars = bench.run(BenchContext(data=tmp_path))
    assert len(bars) == 6
    assert all(bar.value > 0 for bar in bars)
    assert figures["224 px"]["ratios"]["ours / peer"] > 0
