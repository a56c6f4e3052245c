"""The arithmetic of the benchmark of two jobs at once; no job is run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed import BenchContext, two_jobs
from lookalike.core.files import write_json
from lookalike.data import synthetic


def test_two_jobs_are_compared_with_one_alone_stage_by_stage(monkeypatch):
    started = []

    class Job:
        def __init__(self, words, env):
            place = words.index("--out") + 1
            seconds = {"check": 0.1, "train": 2.0} if words[place].endswith("alone") else {"check": 0.15, "train": 5.0}
            write_json(Path(words[place]) / "result.json", {"seconds": seconds})
            started.append((words[place], env["LOOKALIKE_HOME"]))

        def wait(self):
            return 0

    monkeypatch.setattr(synthetic, "make_demo_images", lambda *_, **__: None)
    monkeypatch.setattr(two_jobs.subprocess, "Popen", Job)
    figures, bars = two_jobs.run(BenchContext())
    assert figures["slowdown"] == {"check": 1.5, "train": 2.5}
    assert [(bar.name, bar.ok) for bar in bars] == [("Two jobs at once: train, over one alone", False)]
    assert len(started) == len({home for _, home in started}) == 3
