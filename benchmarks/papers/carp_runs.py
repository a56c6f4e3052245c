"""Runs of the claims about CARP: a cell is what is varied, a trial is one run of it, from scratch."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome, Verdict
from benchmarks.papers.cells import Found
from benchmarks.papers.paired import Difference, difference
from lookalike.core.settings import merge

IMAGES, HELD = 40, 20  # of each class: to train on, and to be named
EPOCHS, BATCH, PROTOTYPES, BLOCK = 5, 64, 2048, 128
SMALL_BLOCK = 32
SEEDS = (0, 1, 2)
WITHOUT = ("previous", "stopgrad")
"""Two readings of "no momentum encoder"; a siamese net has the stop-gradient one's gradient, doubled."""


@dataclass(frozen=True)
class Cell:
    """One way to train; `None` leaves a setting to the method."""

    block: int | None = BLOCK
    teacher: str = "ema"
    prototypes: int | None = PROTOTYPES
    batch: int = BATCH
    epochs: float = EPOCHS
    method: str = "carp"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the method."""
    halfway: bool = False
    """Evaluated halfway as well."""

    @property
    def name(self) -> str:
        parts = [self.method, f"b{self.batch}", f"e{self.epochs:g}"]
        if self.method == "carp":
            parts += [f"K{self.prototypes}", f"B{self.block}", self.teacher]
        return "-".join(parts + [f"{k}{v}" for k, v in sorted(self.more.items())] + ["halfway"] * self.halfway)

    def settings(self, base: Mapping[str, Any], images: int) -> dict[str, Any]:
        """What differs from the recipe; evaluated at the start and at the end."""
        steps = max(10, round(self.epochs * images / self.batch))
        method: dict[str, Any] = {"name": self.method, **self.more}
        if self.method == "carp":
            method |= {"prototypes": self.prototypes, "block_size": self.block, "teacher": self.teacher}
        given: dict[str, Any] = {
            "method": method,
            "sampler": {"batch_size": self.batch},
            "steps": steps,
            "evaluate_every": -(-steps // 2) if self.halfway else steps,
            "log": {"every_n_steps": max(1, steps // 20), "tensorboard": False},
        }
        if self.method != "carp":
            given = merge(_others(self.method), given)
        return merge(base, given)


DEFAULT = Cell()


def _others(method: str) -> dict[str, Any]:
    """A baseline's own settings from scratch, its heads as wide as CARP's."""
    from lookalike import methods

    narrow: dict[str, dict[str, Any]] = {
        "simsiam": {"projection_dim": 512, "hidden_dim": 512, "prediction_dim": 128},
        "dino": {"output_dim": PROTOTYPES, "hidden_dim": 512, "bottleneck_dim": 128},
        "moco": {"memory": {"size": 2048}},
    }
    found = methods.find(method)
    return merge(found.default_overrides, found.from_scratch_overrides, {"method": narrow[method]})


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Sequence[int]) -> Found:
    """Every cell on every seed, a seed at a time, so that what is finished early can be compared already."""
    cells = list({cell.name: cell for cell in cells}.values())
    small = context.scale == "small"
    data = str(context.folder("tinyimagenet100" if small else "imagenet"))
    recipe, images = ("carp_small", 100 * IMAGES) if small else ("carp_imagenet", 1_281_167)
    base = {"keep": "trained", "data": {"near_duplicates": False}}
    jobs, places = {}, {}
    for seed in seeds:
        for cell in cells:
            key = f"{cell.name}-seed{seed}"
            given = cell.settings(base, images)
            jobs[key] = {"data": data, "recipe": recipe, "settings": given, "seed": seed, "part": small}
            places[key] = (cell.name, seed)
    if context.finished:
        jobs = {key: given for key, given in jobs.items() if context.jobs.stored(key, given) is not None}
    found = Found(seeds)
    for number, (key, result) in enumerate(context.jobs.run_many(jobs, trial, processes=context.threads), 1):
        found.results[places[key]] = result
        context.say(
            f"{number:3} of {len(jobs)}  {key}: k-NN {result['knn']:.2f} (untrained {result['untrained']:.2f}), "
            f"clusters {result['clusters']:.1f}"
        )
    return found


def trial(*, data: str, recipe: str, settings: dict[str, Any], seed: int, part: bool) -> dict[str, Any]:
    """One run from scratch: k-NN accuracy (%) before, during and after it, and what the guard read."""
    import torch

    from lookalike.core import progress
    from lookalike.training import pretrain

    torch.set_num_threads(1)
    table: Any = some(data) if part else data
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            out = Path(folder) / "run"
            run: Any = pretrain(data=table, recipe=recipe, settings=settings, seed=seed, out=out, report=False)
            return readings(run.result, run.read_log())
    finally:
        progress.set_level(level)


def some(data: str) -> Any:
    """The first so many images of every class, of the official training and validation sides."""
    import numpy as np

    from lookalike.data import read_table

    table = read_table(data)
    codes, names = table.labels()
    train = table.column("split") == "train"
    rows = []
    for code in range(len(names)):
        for side, count in ((train, IMAGES), (~train, HELD)):
            rows.append(np.flatnonzero((codes == code) & side)[:count])
    return table.take(np.sort(np.concatenate(rows)))


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of a run."""

    def curve(key: str) -> list[float]:
        return [round(100 * row[key], 3) for row in log if key in row]

    def last(name: str) -> float:
        return round(next((row[name] for row in reversed(log) if name in row), 0.0), 5)

    kept, student = curve("knn/accuracy@20"), curve("knn/student_accuracy@20")
    names = ("clusters", "in_use", "in_use_at_random", "consistency", "balance", "spread", "state")
    return {
        "knn": kept[-1],
        "untrained": kept[0],
        "curve": kept,
        "student": student,
        "ahead": round(kept[len(kept) // 2] - student[len(student) // 2], 3) if student else 0.0,
        **{name: last(f"guard/{name}") for name in names},
        "seconds": result["seconds"]["train"],
    }


def row(found: Found, cell: Cell) -> dict[str, Any]:
    """A line of the table of results."""
    about: dict[str, Any] = {"method": cell.method, "batch": cell.batch, "epochs": cell.epochs}
    if cell.method == "carp":
        about |= {"K": cell.prototypes, "N_B": cell.block, "teacher": cell.teacher}
        about |= {k: str(v) for k, v in cell.more.items()}
    values = found.values(cell, "knn")
    means = {name: round(statistics.fmean(found.values(cell, name)), 3) for name in MEANS}
    return {**about, "k-NN": round(statistics.fmean(values), 2), "by seed": [round(v, 2) for v in values], **means}


MEANS = ("untrained", "clusters", "in_use", "spread")


def outcome(verdict: Verdict, note: str, found: Found, cells: Sequence[Cell], **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": [row(found, cell) for cell in cells if found.has(cell)]}, note)


def gap_between(found: Found, before: Cell, after: Cell, measure: str = "knn", level: float = 0.95) -> Difference:
    return difference(found.values(before, measure), found.values(after, measure), level=level)


def untrained(found: Found, cell: Cell) -> str:
    return f"untrained {statistics.fmean(found.values(cell, 'untrained')):.2f}"
