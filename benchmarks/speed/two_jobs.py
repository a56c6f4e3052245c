"""Two training jobs at once: how many times slower each stage is than alone, on the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from lookalike.core.files import read_json

SLOWDOWN = 2.2  # two jobs share the cores: 2 would be without loss
SHORTEST = 1.0  # seconds alone; a shorter stage measures the start of a process


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        alone, pair = two_jobs(Path(home))
    slowdown = {stage: round(sum(job[stage] for job in pair) / 2 / max(alone[stage], 1e-9), 2) for stage in alone}
    bars = [
        Bar(f"Two jobs at once: {stage}, over one alone", slowdown[stage], SLOWDOWN, "lower")
        for stage in alone
        if alone[stage] >= SHORTEST
    ]
    return {"seconds_alone": alone, "seconds_beside_another": pair, "slowdown": slowdown}, bars


def two_jobs(home: Path) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Seconds by stage of a `train` alone, and of two beside each other."""
    from lookalike.data.synthetic import make_demo_images

    data = home / "images"
    make_demo_images(data, classes=40, images_per_class=16)
    (alone,) = _jobs(data, home, ["alone"])
    return alone, _jobs(data, home, ["first", "second"])


def _jobs(data: Path, home: Path, names: list[str]) -> list[dict[str, float]]:
    """Seconds by stage of jobs that run at the same time, each in a process with caches of its own."""
    settings = ["views.mode=end_to_end", "model.size=96", "sampler.classes_per_batch=8", "evaluate_every=1000"]
    words = [word for setting in settings for word in ("--set", setting)]
    jobs = []
    for name in names:
        command = [sys.executable, "-m", "lookalike", "train", data, "--steps", "40", "--no-report", "--quiet"]
        environment = {**os.environ, "LOOKALIKE_HOME": str(home / f"home-{name}")}
        jobs.append(subprocess.Popen([*map(str, command), *words, "--out", str(home / name)], env=environment))
    for job in jobs:
        if job.wait():
            raise RuntimeError(f"a training job ended with exit code {job.returncode}")
    return [read_json(home / name / "result.json", "result")["seconds"] for name in names]
