"""The shift benchmark on made-up features; its real run needs CUB."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.speed import BenchContext, shift
from lookalike.core.seeds import numpy_rng
from lookalike.data import Table


def test_ours_agrees_with_the_matrix_root(monkeypatch):
    rng = numpy_rng(0, "bench")
    labels = np.repeat(np.arange(16), 12)
    features = rng.standard_normal((16, 5))[labels] + rng.standard_normal((len(labels), 5))
    columns = {"path": [f"{c}/{i}.jpg" for i, c in enumerate(labels)], "label": [f"class {c}" for c in labels]}
    table = Table.from_columns(columns, name="made up")
    monkeypatch.setattr(shift, "_features", lambda context: (table, features))
    figures, bars = shift.run(BenchContext())
    assert figures["steps"] == 8 + 1 + 8 + 3
    assert [bar.bound for bar in bars] == [10, 1e-6]
    assert bars[1].ok
    assert figures["fid"]["easiest"] <= figures["fid"]["start"] <= figures["fid"]["end of swapping"]


def test_the_peer_is_right_about_gaussians():
    x, y = np.array([[0.0, 0], [2, 0], [0, 2], [2, 2]]), np.array([[3.0, 4], [5, 4], [3, 6], [5, 6]])
    assert shift.by_root(x, y) == pytest.approx(25)
