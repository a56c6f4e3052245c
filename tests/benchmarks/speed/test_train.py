"""The training benchmark's own arithmetic; its runs need the data sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.speed import BenchContext, train
from benchmarks.speed import bf16 as bf16_recall
from lookalike import training
from lookalike.data import synthetic


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
    monkeypatch.setattr(train, "throughput", lambda home, threads: ({}, []))
    monkeypatch.setattr(train, "checkpoint_reading", lambda home: ({}, 1.01))
    figures, bars = train.run(BenchContext(data=tmp_path))
    assert calls == [*(("cub", seed) for seed in range(3)), ("cars", 0)]
    assert len(bars) == 3 * 3 + 1 + 1
    timed = [bar for bar in bars if any(word in bar.name for word in ("seconds", "checkpoint"))]
    assert all(bar.ok for bar in timed)
    assert all(bar.ok is good for bar in bars if bar not in timed)
    assert [bar.name for bar in bars[:2]] == [
        f"CUB seed 0: lower end of the gain over {name}, points" for name in ("the starting model", "step 0")
    ]
    assert figures["cub"][0]["milliseconds_a_step"] == 10
    assert figures["bare"]["milliseconds_a_step"] > 0


@pytest.mark.parametrize(("bf16", "lost"), [((29.0, 30.0, 31.0), 0.0), ((28.0, 29.0, 30.0), 0.5), ((25, 26, 27), 2.0)])
def test_recall_in_bf16_is_compared_with_the_range_of_float32_runs(bf16, lost, tmp_path, monkeypatch):
    recall = {"f32": (29.0, 30.0, 31.0), "bf16": bf16}

    def run(data, recipe, seed, out, *, precision):
        return {"recall@1": {"trained": recall[precision][seed]}}

    monkeypatch.setattr(bf16_recall, "trained", run)
    figures, actual = bf16_recall.bf16_recall(tmp_path, tmp_path, lambda text: None)
    assert figures == {name: list(values) for name, values in recall.items()} and actual == lost


def test_throughput_sets_our_loop_beside_the_bare_cost_and_a_plain_loop(tmp_path, monkeypatch):
    jobs = {"bare": 1.0, "plain": 2.0, "plain_carp": 2.0, "loop": 1.1}
    monkeypatch.setattr(synthetic, "make_demo_images", lambda *_, **__: None)
    for name, seconds in jobs.items():
        monkeypatch.setattr(train, f"_{name}_job", lambda *_, seconds=seconds, **__: seconds)
    monkeypatch.setattr(train, "interleaved", lambda jobs, rounds: {k: [v] * rounds for k, v in jobs.items()})
    figures, bars = train.throughput(tmp_path, 1)
    assert set(figures) == {"96", "224"} and all(bar.ok for bar in bars)
    assert bars[0].value == pytest.approx(1.1) and bars[1].value == pytest.approx(0.55)


def test_the_jobs_of_the_throughput_take_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "BATCH", 8)
    synthetic.make_demo_images(tmp_path / "data", classes=8, images_per_class=8, size=48)
    train._bare_job(64, 1)()
    train._loop_job(tmp_path / "data", tmp_path / "run", 64, 1, precision="bf16")()
    train._loop_job(tmp_path / "data", tmp_path / "carp", 64, 1, method="carp")()
    train._plain_job(tmp_path / "data", 64, 1)()
    train._plain_carp_job(tmp_path / "data", 64, 1)()
