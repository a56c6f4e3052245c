"""Runs of the claims about cross-batch memories: a cell is what is varied, a trial is one run of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.papers import ClaimContext, Missing
from benchmarks.papers.mixed import SETS, mixed
from lookalike.core.settings import merge

# Whole networks at 64 px: a run takes one to two minutes on one thread.
SMALL: dict[str, Any] = {
    "data": {"split": "table", "validation_fraction": 0, "near_duplicates": False},
    "model": {"name": "efficientnet_lite0", "size": 64, "pooling": "avg", "batch_norm": "frozen"},
    "head": {"kind": "random", "embedding_dim": 128, "prewarm_epochs": 2},
    "method": {"name": "xbm"},
    "views": {"mode": "end_to_end"},
    "optimizer": {"lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "constant"},
    "keep": "trained",
    "log": {"tensorboard": False, "drift_every_n_steps": 20},
}
# The lower part of the network is computed once; enough for comparing rules that differ little.
CACHED: dict[str, Any] = {"views": {"mode": "cached", "layer": "stage3", "num_cached": 3}}
STEPS = {16: 200, 32: 150, 64: 60, 128: 60, 256: 50}  # where a claim does not ask for equal epochs

PAPER_BATCH = 64

RULES: dict[str, dict[str, Any]] = {
    "none": {"size": 0},
    "xbm": {"drift": "none"},
    "xbm*": {"drift": "none", "batch_loss": True},
    "xbn": {"drift": "xbn"},
    "xbn*": {"drift": "xbn", "batch_loss": True},
    "axbn": {"drift": "axbn"},
    "ema": {"drift": "ema"},
}


@dataclass(frozen=True)
class Cell:
    """One way to train: a rule for the memory, a batch, a memory as a share of the training images."""

    rule: str
    batch: int = 32
    size: float = 1.0
    rate: float = 1e-4
    steps: int | None = None
    cached: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the memory."""
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.rule, f"b{self.batch}", f"m{self.size:g}", f"lr{self.rate:g}"]
        parts += [f"{k}{v}" for extra in (self.memory, self.head) for k, v in extra.items()]
        parts += [f"{self.steps}steps"] * (self.steps is not None) + ["cached"] * self.cached
        return "-".join(parts)

    def settings(self, base: Mapping[str, Any]) -> dict[str, Any]:
        whole = "steps" in base  # at the paper's scale: its epochs, end to end
        steps = base["steps"] * PAPER_BATCH // self.batch if whole else self.steps or STEPS[self.batch]
        given = {
            "head": dict(self.head),
            "memory": {"size": self.size, **RULES[self.rule], **self.memory},
            "sampler": {"classes_per_batch": self.batch // 4, "images_per_class": 4},
            "optimizer": {"lr": self.rate},
            "steps": steps,
            "evaluate_every": steps,
        }
        return merge(base, CACHED if self.cached and not whole else {}, given)


class Named(Protocol):
    """A cell of any paper's runs."""

    @property
    def name(self) -> str: ...


class Found:
    """Results of cells by seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self.results: dict[tuple[str, int], dict[str, Any]] = {}

    def has(self, *cells: Named) -> bool:
        """Whether all of them are finished on every seed."""
        return all((cell.name, seed) in self.results for cell in cells for seed in self.seeds)

    def values(self, cell: Named, measure: str = "recall") -> list[float]:
        """One number a seed, in the order of the seeds: runs of two cells are paired by place."""
        if not self.has(cell):
            raise Missing(cell.name)
        return [self.results[cell.name, seed][measure] for seed in self.seeds]

    def row(self, cell: Cell) -> dict[str, Any]:
        """A line of the table of results: means over the seeds, and recall@1 of each."""
        means = {name: round(statistics.fmean(self.values(cell, name)), 4) for name in MEANS}
        return {
            "rule": cell.rule,
            "batch": cell.batch,
            "memory": cell.size if cell.rule != "none" else "–",
            "rate": cell.rate,
            **{k: str(v) for k, v in {**cell.memory, **cell.head}.items()},
            "recall@1": round(statistics.fmean(self.values(cell)), 2),
            "by seed": [round(value, 2) for value in self.values(cell)],
            **means,
        }


MEANS = ("step 0", "drift", "drift max", "cosine", "stale", "stale original", "floor")


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Sequence[int]) -> Found:
    """Every cell on every seed, a seed at a time, so that what is finished early can be compared already."""
    cells = list({cell.name: cell for cell in cells}.values())
    data, base = _scale(context)
    jobs: dict[str, dict[str, Any]] = {}
    places: dict[str, tuple[str, int]] = {}
    for seed in seeds:
        for cell in cells:
            key = f"{cell.name}-seed{seed}"
            jobs[key] = {"data": data, "settings": cell.settings(base), "seed": seed}
            places[key] = (cell.name, seed)
    if context.finished:
        jobs = {key: given for key, given in jobs.items() if context.jobs.stored(key, given) is not None}
    elif base is SMALL and any(context.jobs.stored(key, given) is None for key, given in jobs.items()):
        context.say("Preparing the images")
        for cached in sorted({cell.cached for cell in cells}):
            _train(data, Cell("xbn", steps=1, cached=cached).settings(base), 0)
    found = Found(seeds)
    for number, (key, result) in enumerate(context.jobs.run_many(jobs, trial, processes=context.threads), 1):
        found.results[places[key]] = result
        context.say(f"{number:3} of {len(jobs)}  {key}: recall@1 {result['recall']:.2f}, drift {result['drift']:.3f}")
    return found


def _scale(context: ClaimContext) -> tuple[str, dict[str, Any]]:
    """Where the images are and what every run shares."""
    if context.scale == "small":
        for name in SETS:
            context.folder(name)
        return str(context.data), SMALL
    from lookalike.training.recipe import load

    return str(context.folder("sop")), merge(load("xbn_sop"), {"data": {"validation_fraction": 0}, "keep": "trained"})


def trial(*, data: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """One run; recall@1 (%) on classes it has not seen, and what the drift meter read."""
    import torch

    torch.set_num_threads(1)
    return _train(data, settings, seed)


def _train(data: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    from lookalike.core import progress
    from lookalike.training import train

    table: Any = mixed(data) if settings["model"]["name"] == SMALL["model"]["name"] else data
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            run: Any = train(data=table, settings=settings, seed=seed, out=Path(folder) / "run", report=False)
            return readings(run.result, run.read_log())
    finally:
        progress.set_level(level)


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What is kept of a run."""

    def mean(key: str) -> float:
        values = [row[key] for row in log if key in row]
        return round(statistics.fmean(values), 5) if values else 0.0

    def last(key: str) -> float:
        return round(next((row[key] for row in reversed(log) if key in row), 0.0), 5)

    recall = {name: round(100 * found["recall@1"]["value"], 3) for name, found in result["measured"].items()}
    return {
        "recall": recall["trained"],
        "step 0": recall["step 0"],
        "frozen": recall["starting model"],
        "drift": mean("drift/mean"),
        "drift max": mean("drift/max"),
        "cosine": last("drift/cosine"),
        "stale": last("memory/stale"),
        "stale original": last("memory/stale_original"),
        "floor": last("memory/floor"),
        "gain": last("memory/gain"),
        "loss": last("loss"),
        "seconds": result["seconds"]["train"],
    }
