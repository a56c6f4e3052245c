"""Settings of the claims about adaptation with retrieval, and their runs by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lookalike.claims import ClaimContext

SMALL_SHIFTS = (("photo", "art_painting"), ("photo", "cartoon"), ("photo", "sketch"))
# The seven shifts of DomainNet-126 in the order of Table 8.
PAPER_SHIFTS = (
    ("real", "clipart"),
    ("real", "painting"),
    ("painting", "clipart"),
    ("clipart", "sketch"),
    ("sketch", "painting"),
    ("real", "sketch"),
    ("painting", "real"),
)
SMALL: dict[str, Any] = {
    "model": "efficientnet_lite0",
    "size": 96,
    "head": 256,
    "source": {"layer": "stage4", "batch": 64, "steps": 200, "rate": 5e-3, "views": 2, "batch_norm": "keep"},
    "adapt": {
        "layer": "stage4",
        "batch": 32,
        "steps": 60,
        "rate": 1e-3,
        "views": 4,
        "bank": {"size": 16384},
        "contrast": {"exclusion": "none"},
    },
}
PAPER: dict[str, Any] = {
    "model": "resnet50",
    "size": 224,
    "head": 256,
    "source": {"layer": "pixels", "batch": 128, "epochs": 60, "rate": 2e-4, "batch_norm": "target-train"},
    "adapt": {"config": "paper_test"},
}


@dataclass(frozen=True)
class Cell:
    """One run: where, how much of the target, what adapts, with which pool and retriever."""

    source: str
    target: str
    fraction: float = 1.0
    subset: int = 0
    over: dict[str, Any] = field(default_factory=dict)
    pool: str = "all"
    """`all`, `without` (no picture of the target's classes) or `none`."""
    retriever: str | None = None
    set: str = "pacs"

    def arguments(self, seed: int, scale: dict[str, Any]) -> dict[str, Any]:
        return {**vars(self), "seed": seed, "scale": scale}

    @property
    def name(self) -> str:
        words = [self.source, self.target, f"{self.fraction:g}", str(self.subset), self.pool, self.retriever or "own"]
        flat = ",".join(f"{k}={v}" for k, v in sorted(_flat(self.over)))
        return "-".join([*words, flat])


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in values.items():
        out += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(f"{before}{key}", value)]
    return out


class Found:
    """Results by cell and seed."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self.seeds = seeds
        self.results: dict[tuple[str, int], dict[str, Any]] = {}

    def has(self, *cells: Cell) -> bool:
        return all((cell.name, seed) in self.results for cell in cells for seed in self.seeds)

    def values(self, cell: Cell, measure: str = "accuracy") -> list[float]:
        return [self.results[cell.name, seed][measure] for seed in self.seeds]

    def rows(self) -> list[dict[str, Any]]:
        return [{"run": name, "seed": seed, **result} for (name, seed), result in sorted(self.results.items())]


def run_cells(context: ClaimContext, cells: list[Cell], seeds: tuple[int, ...], function: Any) -> Found:
    """All runs that are not finished yet, a few at a time; with `finished` only those that are."""
    scale = PAPER if context.scale == "paper" else SMALL
    jobs, places = {}, {}
    for seed in seeds:
        for cell in cells:
            key = f"{cell.name}-seed{seed}"
            jobs[key] = {"data": str(context.data), **cell.arguments(seed, scale)}
            places[key] = (cell.name, seed)
    if context.finished:
        jobs = {key: given for key, given in jobs.items() if context.jobs.stored(key, given) is not None}
    found = Found(seeds)
    done = context.jobs.run_many(jobs, function, processes=context.threads)
    for number, (key, result) in enumerate(done, 1):
        found.results[places[key]] = result
        context.say(f"{number:3} of {len(jobs)}  {key}: {result['accuracy']:.2f}")
    return found
