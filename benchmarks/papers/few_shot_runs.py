"""Few-shot adaptation at the paper's scale (ooDML's tables 7 and 8): a model is trained, and its head adapted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.papers.grid import training_run
from benchmarks.papers.tables import EPISODES, FEW, FEW_LR
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.data import Table
from lookalike.shift.few_shot import fewshot_job, fewshot_trial
from lookalike.shift.split_set import Split
from lookalike.shift.trials import FROZEN
from lookalike.training.settings import TrainSettings, resolve


def run_few_shot(
    table: Any, row: Mapping[str, Any], seed: int, *, steps: Mapping[str, int] = FEW, episodes: int = EPISODES
) -> dict[str, float]:
    """Train on one side of a split, and adapt the head to a few images of each class of the other.

    Args:
        table: Images with a column `split`.
        row: The row, as JSON.
        seed: Seed of the training.
        steps: Steps of adaptation by the measure of a row.
        episodes: Random draws of the images.

    Returns:
        Recall@1 in percent by number of shots, and the same of the model that is not adapted.
    """
    with training_run(
        "train", threads=None, data=table, recipe=row["recipe"], settings=row["settings"], seed=seed
    ) as run:
        job = few_shot_job(run, table, steps, episodes)
        rows = fewshot_trial(**job)["episodes"]

    def mean(side: str, shots: str) -> float:
        values = [100 * one[side]["recall@1"] for one in rows if f"few-{one['shots']}" == shots]
        return round(statistics.fmean(values), 3)

    return {name.replace("few", side): mean(side, name) for name in FEW for side in ("few", "zero")}


def few_shot_job(run: Run, table: Table, steps: Mapping[str, int], episodes: int) -> dict[str, Any]:
    """Arguments of `fewshot_trial` for a trained model: Margin at the run's β on its head, by cached features."""
    trained, stored = resolve(run.config), run.path / "few-shot.parquet"
    table.save(stored)
    codes, names = table.labels()
    sides = ([names[code] for code in np.unique(codes[table.column("split") == side])] for side in ("train", "test"))
    split = Split(1, "", 0.0, *map(tuple, sides))
    config = {"shots": [int(name.removeprefix("few-")) for name in FEW], "episodes": episodes, "adapt_steps": 1}
    views = {"mode": "cached", "layer": "pooled", "num_cached": 8}
    cached = {"model": {"name": str(run.model), "weights": None}, "views": views, "optimizer": {"head_lr": FEW_LR}}
    settings = TrainSettings.parse(merge(trained.model_dump(mode="json"), cached))
    job = fewshot_job(stored, split, trained.method.name, settings, config, "")
    shots = {name.removeprefix("few-"): count for name, count in steps.items()}
    return {**job, "method": FROZEN, "shots": shots}  # nothing is trained once more
