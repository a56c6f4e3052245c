"""Whether training end to end in bfloat16 gives as good a model as in float32: Cars, over three seeds."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.train import SEEDS, has_bf16, trained
from lookalike.core.errors import LookalikeError

SEED_RANGE = 1.0  # of the float32 runs, that the mean of the bf16 runs may lie below theirs


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    if not has_bf16():
        raise LookalikeError("This processor has no bfloat16.")
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-bf16-") as home:
        recall, lost = bf16_recall(context.folder("cars"), Path(home), context.say)
    name = "Cars in bf16: recall@1 below float32, over its range of seeds"
    return {"recall": recall}, [Bar(name, lost, SEED_RANGE, "lower")]


def bf16_recall(cars: Path, home: Path, say: Callable[[str], None]) -> tuple[dict[str, list[float]], float]:
    """recall@1 of Cars end to end by precision and seed, and how far bf16 is below float32, over the latter's range."""
    recall: dict[str, list[float]] = {"f32": [], "bf16": []}
    for seed in SEEDS:
        for precision, values in recall.items():
            say(f"End to end on Cars in {precision}, seed {seed}")
            actual = trained(cars, "cars", seed, home / f"cars-{precision}-{seed}", precision=precision)
            values.append(actual["recall@1"]["trained"])
    wide = max(recall["f32"]) - min(recall["f32"])
    lost = statistics.fmean(recall["f32"]) - statistics.fmean(recall["bf16"])
    return recall, round(lost / wide, 3) if wide else float(lost > 0)
