"""Settings of the claims about adaptation with retrieval, and their runs by name."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.papers import ClaimContext
from benchmarks.papers.cells import Found
from benchmarks.papers.t3ar_protocols import PAPER, SMALL

EXPERT = "efficientnet_lite0"
# Train time: the labels of CUB, on top of the starting model.
TRAIN: dict[str, Any] = {
    "model": "efficientnet_lite0",
    "size": 96,
    "head": 256,
    "adapt": {
        "layer": "stage4",
        "batch_size": 64,
        "steps": 300,
        "lr": 2e-3,
        "num_views": 2,
        "batch_norm": "keep",
        "bank": {"size": 16384},
        "contrast": {"exclusion": "none"},
        "weights": {"contrast": 0.1},
    },
}
PAPER_TRAIN: dict[str, Any] = {"model": "resnet50", "size": 224, "head": None, "adapt": {"config": "paper_train"}}


@dataclass(frozen=True)
class Cell:
    """One run: where, how much of the target, what adapts, with which pool and retriever."""

    source: str
    target: str
    fraction: float = 1.0
    subset: int = 0
    over: dict[str, Any] = field(default_factory=dict)
    pool: str = "all"
    """`all`, `without` (no image of the target's classes), `none`, or data sets joined by +."""
    retriever: str = EXPERT
    """A frozen expert by name, or `own`: the model itself."""
    set: str = "pacs"
    embedder: str = ""
    """For a model without classes: `frozen`, `bn`, `gallery`, `clusters` or `contrast`; else it is a classifier."""

    def arguments(self, seed: int, scale: dict[str, Any]) -> dict[str, Any]:
        return {**vars(self), "seed": seed, "scale": scale}

    @property
    def name(self) -> str:
        words = [
            self.source,
            self.target,
            f"{self.fraction:g}",
            str(self.subset),
            self.pool,
            self.retriever,
            self.embedder,
        ]
        flat = ",".join(f"{k}={v}" for k, v in sorted(_flat(self.over)))
        return "-".join([*words, flat])


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in values.items():
        out += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(f"{before}{key}", value)]
    return out


def run_cells(context: ClaimContext, cells: list[Cell], seeds: tuple[int, ...]) -> Found:
    """All runs that are not finished yet, a few at a time; with `finished` only those that are."""
    from benchmarks.papers.t3ar_runs import prepare, shared, trial

    big, data = context.scale == "paper", str(context.data)
    jobs, places = {}, {}
    for seed in seeds:
        for cell in cells:
            scale = (PAPER_TRAIN if big else TRAIN) if cell.set == "cub" else (PAPER if big else SMALL)
            key = f"{cell.name}-seed{seed}"
            jobs[key] = {"data": data, **cell.arguments(seed, scale)}
            places[key] = (cell.name, seed)
    left = [key for key, given in jobs.items() if context.jobs.stored(key, given) is None]
    if context.finished:
        jobs = {key: given for key, given in jobs.items() if key not in left}
    elif left:
        context.say(f"{len(left)} of {len(jobs)} runs to do; preparing what they share")
        for part in shared(data, [jobs[key] for key in left]):
            for key, count in context.jobs.run_many(part, prepare, processes=context.threads):
                context.say(f"  {key}: {count}")
    found, start = Found(seeds), time.monotonic()
    fresh = set(left)
    for key, result in context.jobs.run_many(jobs, trial, processes=context.threads):
        found.results[places[key]] = result
        if key in fresh:
            fresh.discard(key)
            done = len(left) - len(fresh)
            rest = (time.monotonic() - start) / done * len(fresh) / 60
            context.say(f"{done:3} of {len(left)}  {key}: {result['accuracy']:.2f}; about {rest:.0f} min left")
    return found
