"""The training benchmark's own arithmetic; its runs need the data sets."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.speed import BenchContext, train
from lookalike import training
from lookalike.core.files import write_json
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
    monkeypatch.setattr(train, "two_jobs", lambda home: {"check": 1.4, "features": 2.0, "train": 2.2, "measure": 1.9})
    monkeypatch.setattr(train, "throughput", lambda home, threads: ({}, []))
    monkeypatch.setattr(train, "checkpoint_reading", lambda home: ({}, 1.01))
    figures, bars = train.run(BenchContext(data=tmp_path))
    assert calls == [("cub", 0), ("cub", 1), ("cub", 2), ("cars", 0)]
    assert len(bars) == 3 * 3 + 1 + 4 + 1
    timed = [bar for bar in bars if "seconds" in bar.name or "Two jobs" in bar.name or "checkpoint" in bar.name]
    assert all(bar.ok for bar in timed)
    assert all(bar.ok is good for bar in bars if bar not in timed)
    assert [bar.name for bar in bars[:2]] == [
        f"CUB seed 0: lower end of the gain over {name}, points" for name in ("the starting model", "step 0")
    ]
    assert figures["cub"][0]["milliseconds_a_step"] == 10
    assert figures["bare"]["milliseconds_a_step"] > 0


def test_two_jobs_are_compared_with_one_alone_stage_by_stage(tmp_path, monkeypatch):
    started = []

    class Job:
        def __init__(self, words, env):
            place = words.index("--out") + 1
            seconds = (
                {"prepare": 1.0, "train": 2.0} if words[place].endswith("alone") else {"prepare": 1.5, "train": 5.0}
            )
            write_json(Path(words[place]) / "result.json", {"seconds": seconds})
            started.append((words[place], env["LOOKALIKE_HOME"]))

        def wait(self):
            return 0

    few = functools.partial(synthetic.make_demo_images, size=32)
    monkeypatch.setattr(synthetic, "make_demo_images", few)
    monkeypatch.setattr(train.subprocess, "Popen", Job)
    assert train.two_jobs(tmp_path) == {"prepare": 1.5, "train": 2.5}
    assert len(started) == len({home for _, home in started}) == 3


def test_throughput_sets_our_loop_beside_the_bare_cost_and_a_plain_loop(tmp_path, monkeypatch):
    jobs = {"bare": 1.0, "plain": 2.0, "loop": 1.1}
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
    train._plain_job(tmp_path / "data", 64, 1, views=2)()
