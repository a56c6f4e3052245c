"""The map's benchmark, small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.speed import BenchContext
from benchmarks.speed import map_layout as bench


@pytest.mark.browser
@pytest.mark.slow
def test_figures_of_a_small_map(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a browser that is driven already."""
    monkeypatch.setattr(bench, "VISITS", 2)
    monkeypatch.setattr(bench, "PAUSE", 0.2)
    monkeypatch.setattr(bench, "FEW", 4)
    monkeypatch.setattr(bench, "WINDOW", {"width": 600, "height": 400})
    messages: list[str] = []
    rows = bench.mixture(400, dim=16, groups=8)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    result = bench.figures(BenchContext(say=messages.append), rows, seconds=0.7)
    assert result["points"] == 400 and result["layout_seconds"] > 0
    assert 0.3 < result["kept_10_of_10"] <= result["kept_10_of_50"] <= 1
    assert result["frames"] > 3 and 1 < result["frame_ms"] < 1000 and result["painter"] in ("cpu", "gl")
    assert len(messages) == 2
    assert 20 < result["first_points_ms"] < 20_000 and 20 < result["first_points_after_start_ms"] < 60_000
    assert result["longest_task_ms"] >= 0
    measured = [result[name] for name in ("layout_seconds", "frame_ms", "first_points_ms")]
    layout, *others = bench.bars(*measured)
    assert layout.ok and [layout.value, *(bar.value for bar in others)] == measured
