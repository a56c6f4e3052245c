"""Runs of the claims about CARP, each from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome, Verdict
from benchmarks.papers.grid import GridResults, run_grid, run_training
from lookalike.core.settings import merge

IMAGES, HELD_OUT = 40, 20  # per class: to train on, and to classify
EPOCHS, BATCH, PROTOTYPES, BLOCK = 5, 64, 2048, 128
SMALL_BLOCK = 32
REVISION = 1
"""Of the experiments; raised whenever a run computes something else for the same settings."""
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

    @property
    def name(self) -> str:
        parts = [self.method, f"b{self.batch}", f"e{self.epochs:g}"]
        if self.method == "carp":
            parts += [f"K{self.prototypes}", f"B{self.block}", self.teacher]
        return "-".join(parts + [f"{k}{v}" for k, v in sorted(self.more.items())])

    def settings(self, base: Mapping[str, Any], images: int) -> dict[str, Any]:
        """What differs from the recipe; evaluated at the start and after every quarter."""
        steps = max(10, round(self.epochs * images / self.batch))
        method: dict[str, Any] = {"name": self.method, **self.more}
        if self.method == "carp":
            method |= {"prototypes": self.prototypes, "block_size": self.block, "teacher": self.teacher}
        own: dict[str, Any] = {
            "method": method,
            "sampler": {"batch_size": self.batch},
            "steps": steps,
            "evaluate_every": -(-steps // 4),
            "log": {"every_n_steps": max(1, steps // 20), "tensorboard": False},
        }
        if self.method != "carp":
            own = merge(_baseline(self.method), own)
        return merge(base, own)


DEFAULT = Cell()


def _baseline(method: str) -> dict[str, Any]:
    """A baseline's own settings from scratch, its heads as wide as CARP's."""
    from lookalike import methods

    narrow: dict[str, dict[str, Any]] = {
        "simsiam": {"projection_dim": 512, "hidden_dim": 512, "prediction_dim": 128},
        "dino": {"output_dim": PROTOTYPES, "hidden_dim": 512, "bottleneck_dim": 128},
        "moco": {"memory": {"size": 2048}},
    }
    kind = methods.find(method)
    return merge(kind.default_overrides, kind.from_scratch_overrides, {"method": narrow[method]})


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Sequence[int]) -> GridResults:
    shared = {"data": str(context.folder("tinyimagenet100")), "recipe": "carp_small", "part": True}
    base = {"keep": "trained", "data": {"near_duplicates": False}}
    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: {**shared, "settings": cell.settings(base, 100 * IMAGES), "seed": seed},
        trial,
        revision=REVISION,
        methods=lambda cell: (cell.method,),
        measure="knn",
        describe=lambda result: (
            f"k-NN {result['knn']:.2f} (untrained {result['untrained']:.2f}), clusters {result['clusters']:.1f}"
        ),
    )


def trial(*, data: str, recipe: str, settings: dict[str, Any], seed: int, part: bool) -> dict[str, Any]:
    """One run from scratch: k-NN accuracy (%) before, during and after it, and the readings of the collapse guard."""
    table: Any = first_images(data) if part else data
    return readings(*run_training("pretrain", data=table, recipe=recipe, settings=settings, seed=seed))


def first_images(data: str) -> Any:
    """The first so many images of every class, of the official training and validation sides."""
    import numpy as np

    from lookalike.data import read_table

    table = read_table(data)
    codes, names = table.labels()
    train = table.column("split") == "train"
    rows = []
    for code in range(len(names)):
        for side, count in ((train, IMAGES), (~train, HELD_OUT)):
            rows.append(np.flatnonzero((codes == code) & side)[:count])
    return table.take(np.sort(np.concatenate(rows)))


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is stored of a run."""

    def curve(key: str) -> list[float]:
        return [round(100 * row[key], 3) for row in log if key in row]

    def last(name: str) -> float:
        return round(next((row[name] for row in reversed(log) if name in row), 0.0), 5)

    teacher, student = curve("knn/accuracy@20"), curve("knn/student_accuracy@20")
    names = ("clusters", "in_use", "in_use_at_random", "consistency", "balance", "spread", "state")
    return {
        "knn": teacher[-1],
        "untrained": teacher[0],
        "curve": teacher,
        "student": student,
        "ahead": round(teacher[len(teacher) // 2] - student[len(student) // 2], 3) if student else 0.0,
        **{name: last(f"guard/{name}") for name in names},
        "seconds": result["seconds"]["train"],
    }


MEANS = ("untrained", "clusters", "in_use", "spread")


def row(results: GridResults, cell: Cell) -> dict[str, Any]:
    """A row of the table of runs."""
    about: dict[str, Any] = {"method": cell.method, "batch": cell.batch, "epochs": cell.epochs}
    if cell.method == "carp":
        about |= {"K": cell.prototypes, "N_B": cell.block, "teacher": cell.teacher}
        about |= {k: str(v) for k, v in cell.more.items()}
    means = {"curve": results.mean_curve(cell), **results.means(cell, MEANS, 3)}
    return {**about, "k-NN": round(results.mean(cell), 2), "by seed": results.by_seed(cell), **means}


def outcome(verdict: Verdict, note: str, results: GridResults, cells: Sequence[Cell], **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": [row(results, cell) for cell in cells if results.has(cell)]}, note)


# ---- from scratch for as long as a cell may take: can partitions be tested at all? -----------------------------------

SCRATCH_SEEDS = (0, 1)
SCRATCH_NETWORKS = {"resnet10_small": 64, "resnet18_cifar": 32}
"""Networks of the pilot by their input size."""
SCRATCH_STEPS = {"resnet10_small": 1200, "resnet18_cifar": 40}
"""Steps within 20 minutes of one thread: 0.77 s a step were measured for the first; the second costs about 14 s."""
SCRATCH_PROTOTYPES, SCRATCH_BLOCK, SCRATCH_BATCH = 4096, 256, 128


@dataclass(frozen=True)
class ScratchCell:
    """CARP from scratch on all of Tiny-ImageNet's training images: an arm of the partition, on one network."""

    arm: str = "default"
    network: str = "resnet10_small"

    @property
    def name(self) -> str:
        return f"scratch-{self.network}-{self.arm}"

    def settings(self) -> dict[str, Any]:
        """What differs from the recipe `carp_small`."""
        steps = SCRATCH_STEPS[self.network]
        method = {"name": "carp", "prototypes": SCRATCH_PROTOTYPES, "block_size": SCRATCH_BLOCK}
        method |= {"one-block": {"block_size": SCRATCH_PROTOTYPES}, "constant": {"partition": "constant"}}.get(
            self.arm, {}
        )
        return {
            "data": {"near_duplicates": False},
            "model": {"name": self.network, "size": SCRATCH_NETWORKS[self.network]},
            "method": method,
            "sampler": {"batch_size": SCRATCH_BATCH},
            "steps": steps,
            "evaluate_every": steps // 4,
            "keep": "trained",
            "log": {"every_n_steps": steps // 20, "tensorboard": False, "knn_images": 5000},
        }


def run_scratch(context: ClaimContext, cells: Iterable[ScratchCell], seeds: Sequence[int]) -> GridResults:
    """Every arm on every seed."""
    shared = {"data": str(context.folder("tinyimagenet100")), "recipe": "carp_small", "part": False}
    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: {**shared, "settings": cell.settings(), "seed": seed},
        trial,
        revision=REVISION,
        methods=lambda cell: ("carp",),
        measure="knn",
        whole_seeds=True,
        describe=lambda result: f"k-NN {result['knn']:.2f} (untrained {result['untrained']:.2f}), {result['curve']}",
    )


def scratch_row(results: GridResults, cell: ScratchCell) -> dict[str, Any]:
    """A row of the table of runs."""
    return {"arm": cell.arm, "network": cell.network, "k-NN": round(results.mean(cell), 2),
            "curve": results.mean_curve(cell), "by seed": results.by_seed(cell),
            **results.means(cell, MEANS, 3)}  # fmt: skip


def untrained(results: GridResults, cell: Cell) -> str:
    return f"untrained {results.mean(cell, 'untrained'):.2f}"
