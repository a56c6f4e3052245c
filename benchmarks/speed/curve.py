"""The whole curve of CUB: 9 splits × 8 methods × 3 seeds of 1,000 steps with batches of 112, on cached features.

It takes an hour or more and goes on where it was stopped; the time is then that of the runs, shared out to the cores.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.speed import Bar, BenchContext

SPLITS, SEEDS, STEPS = 9, 3, 1000
MINUTES = 90
MODEL_SETTINGS = {"size": 160, "pooling": "gem"}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike import shift
    from lookalike.core import folders
    from lookalike.core.run import Run

    path = folders.home() / "jobs" / "curve"
    start = time.monotonic()
    if Run.is_run(path):
        context.say(f"Going on with {path}")
        done = shift.run(resume=path, report=False)
    else:
        settings = {"model": MODEL_SETTINGS}
        data = context.folder("cub")
        done = shift.run(
            data=data, layout="cub", count=SPLITS, seeds=SEEDS, steps=STEPS, settings=settings, out=path, report=False
        )
    wall = time.monotonic() - start
    return figures_of(done.result, wall, context.threads)


def figures_of(result: dict[str, Any], wall: float, threads: int) -> tuple[dict[str, Any], list[Bar]]:
    """What the runs took and gave; only runs that trained all their steps count."""
    rows = [row for row in result["rows"] if row["steps"] >= STEPS]
    seconds = sum(sum(row["seconds"].values()) for row in result["rows"])
    by_method = {
        name: round(sum(sum(row["seconds"].values()) for row in rows if row["method"] == name) / 60, 2)
        for name in dict.fromkeys(row["method"] for row in rows)
    }
    minutes = seconds / threads / 60
    figures = {
        "runs": len(rows),
        "minutes": round(minutes, 1),
        "wall_minutes_of_this_call": round(wall / 60, 1),
        "core_minutes_by_method": by_method,
        "ags_recall@1": {name: round(score["value"], 4) for name, score in result["ags"]["recall@1"].items()},
        "ags_map@1000": {name: round(score["value"], 4) for name, score in result["ags"]["map@1000"].items()},
        "table": table(result["rows"]),
    }
    return figures, [
        Bar("runs of at least 1,000 steps", len(rows), 8 * SPLITS * SEEDS),
        Bar("minutes on these cores", round(max(minutes, wall / 60 if wall > 60 else 0.0), 1), MINUTES, "lower"),
    ]


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean recall@1 of every method on every split."""
    from lookalike.shift import ags

    out = []
    for method in ags.methods_of(rows):
        means = [round(float(v.mean()), 4) for v in ags.values_of(rows, method, "recall@1")]
        names = (f"split {k}" for k in ags.fids_of(rows))
        out.append({"method": method, **dict(zip(names, means, strict=True))})
    return out
