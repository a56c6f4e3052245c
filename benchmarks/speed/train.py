"""Training: a head on cached CUB features, and end to end on Cars: what is gained, how surely, in what time.

And what a second job on the same cores costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from lookalike.core.files import read_json

SEEDS = (0, 1, 2)
ABOVE = 0.001  # points; the least that lies above 0 where three decimals are given
RATIO = 1.5
TWO_JOBS = 2.2  # two jobs share the cores: 2 would be without loss


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    cub, cars = context.folder("cub"), context.folder("cars")
    figures: dict[str, Any] = {"cub": [], "bare": _bare_step(context.threads)}
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        for seed in SEEDS:
            context.say(f"A head on CUB, seed {seed}")
            found = _run(cub, "cub", seed, Path(home) / f"cub-{seed}")
            figures["cub"].append(found)
            for name, called in (("starting model", "the starting model"), ("step 0", "step 0")):
                low = found["gain"][name]["low"]
                bars.append(Bar(f"CUB seed {seed}: lower end of the gain over {called}, points", low, ABOVE))
            bars.append(Bar(f"CUB seed {seed}: seconds", found["seconds"]["all"], 120, "lower"))
        context.say("End to end on Cars, seed 0")
        figures["cars"] = found = _run(cars, "cars", 0, Path(home) / "cars")
        bars.append(Bar("Cars end to end: recall@1 over the frozen model's", found["ratio"], RATIO))
        context.say("Two jobs at once")
        figures["two_jobs"] = slowdown = two_jobs(Path(home))
        bars += [
            Bar(f"Two jobs at once: {stage}, over one alone", slowdown[stage], TWO_JOBS, "lower")
            for stage in ("check", "features", "train", "measure")
        ]
    return figures, bars


def _run(data: Path, recipe: str, seed: int, out: Path) -> dict[str, Any]:
    """One run of a recipe: recall@1 in %, gains in points with paired 95 % intervals over classes."""
    from lookalike.training import train

    start = time.monotonic()
    done = train(data=data, recipe=recipe, seed=seed, out=out, report=False)
    seconds = time.monotonic() - start
    result = done.result  # type: ignore[union-attr]
    values = {name: found["recall@1"]["value"] for name, found in result["measured"].items()}
    gains = {
        name: {k: round(100 * v, 3) if k != "p" else v for k, v in found["recall@1"].items()}
        for name, found in result["differences"].items()
    }
    return {
        "seed": seed,
        "recall@1": {name: round(100 * value, 2) for name, value in values.items()},
        "gain": gains,
        "ratio": round(values["trained"] / values["starting model"], 4),
        "best_step": result["best_step"],
        "queries": result["queries"],
        "seconds": {**result["seconds"], "all": round(seconds, 1)},
        "milliseconds_a_step": round(1000 * result["seconds"]["train"] / max(result["steps"], 1), 2),
    }


def two_jobs(home: Path) -> dict[str, float]:
    """How many times slower each stage of `train` is with a second one beside it on the same cores."""
    from lookalike.data.synthetic import make_demo_images

    data = home / "images"
    make_demo_images(data, classes=40, images_per_class=16)
    (alone,) = _jobs(data, home, ["alone"])
    pair = _jobs(data, home, ["first", "second"])
    return {stage: round(sum(job[stage] for job in pair) / 2 / max(alone[stage], 1e-9), 2) for stage in alone}


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


def _bare_step(threads: int, steps: int = 60) -> dict[str, float]:
    """The bare maths of a head's step at 32×4×512: the product, the loss and AdamW, and nothing around them."""
    import torch

    from lookalike.core.seeds import torch_rng
    from lookalike.losses.pml import MultiSimilarityLoss
    from lookalike.models.pooling import unit

    torch.set_num_threads(threads)
    rows = torch.randn(128, 1280, generator=torch_rng(0, "bench"))
    labels = torch.arange(32).repeat_interleave(4)
    head, criterion = torch.nn.Linear(1280, 512), MultiSimilarityLoss()
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-4, fused=True)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        criterion(unit(head(unit(rows))), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return {"milliseconds_a_step": round(1000 * sorted(times)[steps // 2], 2)}
