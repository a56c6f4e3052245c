"""The map's benchmark, small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.speed import BenchContext
from benchmarks.speed import map_layout as bench


@pytest.mark.browser
def test_figures_of_a_small_map(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a browser that is driven already."""
    monkeypatch.setattr(bench, "VISITS", 2)
    monkeypatch.setattr(bench, "PAUSE", 0.2)
    monkeypatch.setattr(bench, "FEW", 4)
    monkeypatch.setattr(bench, "WINDOW", {"width": 600, "height": 400})
    said: list[str] = []
    rows = bench.mixture(400, dim=16, groups=8)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    found = bench.figures(BenchContext(say=said.append), rows, seconds=0.7)
    assert found["points"] == 400 and found["layout_seconds"] > 0
    assert 0.3 < found["kept_10_of_10"] <= found["kept_10_of_50"] <= 1
    assert found["frames"] > 3 and 1 < found["frame_ms"] < 1000 and found["painter"] in ("cpu", "gl")
    assert len(said) == 2
    assert 20 < found["first_points_ms"] < 20_000 and 20 < found["first_points_after_start_ms"] < 60_000
    assert found["longest_task_ms"] >= 0
    measured = [found[name] for name in ("layout_seconds", "frame_ms", "first_points_ms")]
    layout, *others = bench.bars(*measured)
    assert layout.ok and [layout.value, *(bar.value for bar in others)] == measured
