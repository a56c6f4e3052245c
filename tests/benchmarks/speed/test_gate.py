"""The benchmarks of the gate on a small scale: counting, and a whole cell on generated images."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import helpers
from tests.adaptation.conftest import small

from benchmarks.papers import simulated_adaptations
from benchmarks.speed import gate, gate_embedders
from lookalike.adaptation.settings import AdaptSettings


def row(gain: float, **more: Any) -> dict[str, Any]:
    plain = {"images": 500, "neighbors": 0.1, "matching": 1.0, "lost": 0.0, "alarm": None}
    return {**plain, "source": "sketch", "target": "photo", "recipe": "shot", "seed": 32, "gain": gain, **more}


def test_what_the_gate_promotes_is_counted() -> None:
    rows = [row(0.1)] * 40 + [row(0.1, neighbors=0.01)] * 20 + [row(-0.1, matching=0.5)] * 60 + [row(-0.1)] * 3
    rows += [row(0.005), row(-0.1, alarm="sorted")]
    first = [row(0.1, seed=31, matching=0.8), row(-0.1, seed=31, matching=0.7)]
    figures, bars = gate.judge([*first, *rows], gate.GRID)
    result = figures["judged"]
    assert result["helpful"]["count"] == 60 and result["helpful"]["promoted"] == pytest.approx(40 / 60, abs=1e-4)
    assert result["harmful"]["count"] == 64 and result["harmful"]["promoted"] == pytest.approx(3 / 64, abs=1e-4)
    assert result["neutral"]["count"] == 1, "less than a point is neither"
    assert [bar.ok for bar in bars] == [True, False, True, True]
    assert figures["chosen on the first seed"] == {"neighbors": 0.0, "matching": 0.8, "lost": 0.0}
    assert figures["chosen, judged"]["helpful"]["promoted"] == 1.0 and result["helpful"]["promoted"] < 1
    best = figures["trade-off"][-1]
    assert best["helpful"] == 1.0 and best["neighbors"] < 0.02, "what other thresholds would give"


def test_a_trade_off_has_only_what_nothing_beats() -> None:
    pairs = [(0.05, 0.6), (0.0, 0.2), (0.0, 0.3), (0.02, 0.3), (0.1, 0.6), (0.2, 0.9)]
    rows = [{"harmful": harmful, "helpful": helpful} for harmful, helpful in pairs]
    assert [tuple(row.values()) for row in gate.undominated(rows)] == [(0.0, 0.3), (0.05, 0.6), (0.2, 0.9)]


def test_recipes_are_what_their_names_say() -> None:
    settings = simulated_adaptations.settings_of
    assert settings("rate x 30").lr == pytest.approx(30 * settings("shot").lr)
    assert 4 <= settings("sorted batches").batch_size <= 8 and settings("sorted batches").stream
    rates = [settings("pool of noise", seed).lr for seed in range(5)]
    assert rates[0] == rates[4] and sorted(rates[:4], reverse=True) == rates[:4], "from ruin to what is hard to see"
    assert settings("swapped") == settings("merged") == settings("shot"), "good but for classes"
    assert settings("t3ar") == AdaptSettings(layer="stage4"), "the defaults of adapt"
    p = np.array([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4]])
    assert simulated_adaptations.CHANGES["swapped"](p, 0).tolist() == p[:, [2, 1, 0]].tolist()
    assert simulated_adaptations.CHANGES["merged"](p, 2)[:, 2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bench", [gate, gate_embedders], ids=["classifiers", "embedders"])
@pytest.mark.slow
def test_the_whole_bench_runs_and_goes_on_after_a_stop(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four small domains, one seed, two steps each, some of the recipes."""
    for number, name in enumerate(simulated_adaptations.DOMAINS):
        helpers.make_images(tmp_path / "pacs" / name, classes=3, images=5, width=40, height=32, seed=number)
    small(None).save_pretrained(tmp_path / "model")
    quick = {"layer": "stage1", "steps": 2, "batch_size": 6, "num_views": 1, "copy_threshold": 2.0}
    scale = {"model": str(tmp_path / "model"), "size": 32, "head": 8, "source": quick, "adapt": quick}
    monkeypatch.setattr(simulated_adaptations, "SCALE", scale)
    monkeypatch.setattr(simulated_adaptations, "EXPERT", str(tmp_path / "model"))
    monkeypatch.setattr(simulated_adaptations, "CLUSTERS", 3)
    monkeypatch.setattr(simulated_adaptations, "HELP", ("bn", "shot", "t3ar"))
    monkeypatch.setattr(gate, "FOLDER", tmp_path / "cells")
    monkeypatch.setattr(gate, "JUDGING", (32,))
    for name in ("HARM", "CHANGED"):
        if hasattr(bench, name):
            monkeypatch.setattr(bench, name, ("pool of noise",) if name == "HARM" else ("swapped",))
    caches = (simulated_adaptations.domain_features, simulated_adaptations.source_model)
    for cached in caches:
        cached.cache_clear()
    messages: list[str] = []
    context: Any = SimpleNamespace(folder=lambda name: tmp_path / name, say=messages.append, threads=1)
    try:
        figures, _ = bench.run(context)
    finally:
        for cached in caches:
            cached.cache_clear()
    recipes = 5 if bench is gate else 4
    counts = figures["judged"]
    assert sum(counts[kind]["count"] for kind in ("harmful", "helpful", "neutral")) == 9 * recipes
    assert len(figures["shifts"]) == 9 and not any(name.startswith("photo") for name in figures["shifts"])
    assert len(list((tmp_path / "cells").glob("*.json"))) == 18 == len(messages)
    monkeypatch.setattr(simulated_adaptations, "simulate", lambda **_: 1 / 0)
    assert bench.run(context)[0] == figures, "what is finished is not done again"
