"""The training benchmark's own arithmetic; its runs need the data sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.speed import BenchContext, train
from lookalike import training


def result(trained: float, low: float) -> dict:
    value = {"starting model": 0.20, "step 0": 0.19, "trained": trained}
    change = {"difference": 0.02, "low": low, "high": 0.03, "p": 0.01}
    return {
        "measured": {name: {"recall@1": {"value": v, "low": v, "high": v}} for name, v in value.items()},
        "differences": {name: {"recall@1": change} for name in ("starting model", "step 0")},
        "best_step": 400,
        "steps": 400,
        "queries": 10,
        "seconds": {"prepare": 1.0, "train": 4.0, "measure": 1.0},
    }


@pytest.mark.parametrize(("trained", "low", "good"), [(0.31, 0.00001, True), (0.29, 0.0, False)])
def test_bars_ask_for_what_was_promised(trained, low, good, tmp_path, monkeypatch):
    for name in ("cub", "cars"):
        (tmp_path / name).mkdir()
    calls = []

    def fake(**options):
        calls.append((options["recipe"], options["seed"]))
        return SimpleNamespace(result=result(trained, low))

    monkeypatch.setattr(training, "train", fake)
    figures, bars = train.run(BenchContext(data=tmp_path))
    assert calls == [("cub", 0), ("cub", 1), ("cub", 2), ("cars", 0)]
    assert len(bars) == 3 * 3 + 1
    assert all(bar.ok for bar in bars if "seconds" in bar.name)
    assert all(bar.ok is good for bar in bars if "seconds" not in bar.name)
    assert [bar.name for bar in bars[:2]] == [
        f"CUB seed 0: lower end of the gain over {name}, points" for name in ("the starting model", "step 0")
    ]
    assert figures["cub"][0]["milliseconds_a_step"] == 10
    assert figures["bare"]["milliseconds_a_step"] > 0
