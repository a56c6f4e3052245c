"""Claim 8: MoCo with XBN is ahead early. Small: part of Tiny-ImageNet at 32 px, from scratch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome, Missing
from benchmarks.papers.paired import difference, more
from lookalike.core.settings import merge

IMAGES = 60  # of each class
EPOCHS = 10
RULES = ("none", "xbn")
SMALL = {
    "data": {"split": "images", "test_fraction": 0.2, "near_duplicates": False},
    "sampler": {"batch_size": 128},
    "memory": {"size": 2048},
    "log": {"tensorboard": False},
    "keep": "trained",
}


def compare(context: ClaimContext, seeds: Sequence[int]) -> ClaimOutcome:
    """k-NN accuracy on the held-out fifth after every epoch, paired by seed."""
    folder = str(context.folder("tinyimagenet100" if context.scale == "small" else "cifar10"))
    images, epochs = (IMAGES, EPOCHS) if context.scale == "small" else (None, 15)
    jobs: dict[str, dict[str, Any]] = {
        f"moco-{rule}-seed{seed}": {"data": folder, "rule": rule, "seed": seed, "images": images, "epochs": epochs}
        for seed in seeds
        for rule in RULES
    }
    if context.finished and any(context.jobs.stored(key, given) is None for key, given in jobs.items()):
        raise Missing
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for key, result in context.jobs.run_many(jobs, trial, processes=context.threads):
        given = jobs[key]
        found[given["rule"], given["seed"]] = result
        context.say(f"{key}: k-NN {result['curve'][-1]:.2f} (untrained {result['curve'][0]:.2f})")
    gaps = {
        name: difference([found["none", seed][name] for seed in seeds], [found["xbn", seed][name] for seed in seeds])
        for name in ("early", "last")
    }
    note = f"k-NN accuracy of MoCo with XBN − MoCo: {gaps['early']} halfway, {gaps['last']} after {epochs} epochs"
    rows = [{"rule": rule, "seed": seed, **result} for (rule, seed), result in sorted(found.items())]
    figures = {name: gap.to_json() for name, gap in gaps.items()}
    return ClaimOutcome(more(gaps["early"], 4.0), {**figures, "runs": rows}, note)


def trial(*, data: str, rule: str, seed: int, images: int | None, epochs: int) -> dict[str, Any]:
    """One run from scratch; k-NN accuracy (%) before it and after every epoch."""
    import torch

    from lookalike.core import progress
    from lookalike.training import pretrain

    torch.set_num_threads(1)
    table = _some(data, images)
    train = 0.8 * len(table) if images else (table.column("split") == "train").sum()
    each = int(train) // 128
    given = {"memory": {"drift": rule}, "steps": epochs * each, "evaluate_every": each, "log": {"every_n_steps": each}}
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            settings = merge(SMALL, given) if images else given
            options: dict[str, Any] = {"recipe": "moco_cifar", "report": False, "out": Path(folder) / "run"}
            run: Any = pretrain(data=table, settings=settings, seed=seed, **options)
            curve = [round(100 * row["knn/accuracy@200"], 3) for row in run.read_log() if "knn/accuracy@200" in row]
    finally:
        progress.set_level(level)
    return {"early": curve[len(curve) // 2], "last": curve[-1], "curve": curve}


def _some(data: str, images: int | None) -> Any:
    """The first so many images of every class in the table's order."""
    import numpy as np

    from lookalike.data import read_table

    table = read_table(data)
    if images is None:
        return table
    codes, names = table.labels()
    rows = [np.flatnonzero(codes == code)[:images] for code in range(len(names))]
    return table.take(np.sort(np.concatenate(rows))).without("split", "official_split")
