"""Runs of the claims about cross-batch memories: generated products, Cars, and MoCo from scratch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.papers import ClaimContext
from benchmarks.papers.grid import GridResults, recalls, run_grid, run_training
from lookalike.core.settings import merge

REVISION = 1
"""Raise it whenever a run with the same settings computes something else."""
RECIPE = "xbn_cars"
SHARED: dict[str, Any] = {
    "data": {"validation_fraction": 0, "near_duplicates": False},
    "views": {"mode": "cached", "layer": "stage2", "num_cached": 3},
    "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_steps": 20},
    "head": {"kind": "pca", "embedding_dim": 512},
    "method": {"name": "xbm", "temperature": 0.1},
    "keep": "trained",
    "log": {"tensorboard": False, "every_n_steps": 50, "drift_every_n_steps": 50},
}
# Many classes of few images, as in SOP; and Cars, where the memory is at most 63 steps old.
REGIMES: dict[str, dict[str, Any]] = {
    "products": {"data": {"split": "table"}, "model": {"size": 64, "pooling": "avg"}, "steps": 900},
    "cars": {"data": {"split": "halves"}, "model": {"size": 96, "pooling": "avg"}, "steps": 450},
}
IMAGES_PER_CLASS = {"products": 2, "cars": 4}
CURVE_CLASSES = 200  # test classes of the learning curve

RULES: dict[str, dict[str, Any]] = {
    "none": {"size": 0, "drift": "none"},
    "xbm": {"drift": "none"},
    "xbm*": {"drift": "none", "batch_loss": True},
    "xbn": {"drift": "xbn"},
    "xbn*": {"drift": "xbn", "batch_loss": True},
    "axbn": {"drift": "axbn", "r": "auto"},
    "axbn-published": {"drift": "axbn", "r": 0.01, "q": 1.0},
    "ema": {"drift": "ema", "beta": 0.1},
    "ema0.9": {"drift": "ema", "beta": 0.9},
    "shrink": {"drift": "shrink"},
}


@dataclass(frozen=True)
class Cell:
    """One way to train: data, batch size and memory rule; the memory holds all training images.

    Args:
        rule: One of `RULES`.
        batch: Images of a batch.
        data: One of `REGIMES`.
        wait: Use the memory only in the second half of the steps, filled then; else from the first step. `auto`: from
            when the measured drift is small enough, the product's default.
        norm: Norm layer behind the head.
        steps: Number of steps; that of the regime by default.
    """

    rule: str
    batch: int = 32
    data: str = "products"
    wait: bool | Literal["auto"] = True
    norm: str = "none"
    steps: int | None = None

    @property
    def name(self) -> str:
        parts = [self.data, f"b{self.batch}", self.rule]
        if self.rule != "none":
            parts += {True: [], False: ["nowait"], "auto": ["auto"]}[self.wait]
        parts += [self.norm] * (self.norm != "none") + [f"{self.steps}steps"] * (self.steps is not None)
        return "-".join(parts)

    def settings(self) -> dict[str, Any]:
        """What differs from the recipe, with everything that the claims are about written out."""
        regime, each = REGIMES[self.data], IMAGES_PER_CLASS[self.data]
        steps = self.steps or regime["steps"]
        wait: int | str = {True: steps // 2, False: 0, "auto": "auto"}[self.wait] if self.rule != "none" else 0
        memory = {"size": 1.0, "batch_loss": False, "warmup_steps": wait, "fill": wait != 0, **RULES[self.rule]}
        own = {
            "head": {"norm": self.norm},
            "memory": memory,
            "sampler": {"classes_per_batch": self.batch // each, "images_per_class": each},
            "steps": steps,
            "evaluate_every": -(-steps // 3),
        }
        return merge(SHARED, regime, own)


MEANS = ("step 0", "frozen", "drift", "drift max", "cosine", "stale", "stale original", "floor")


def row(results: GridResults, cell: Cell) -> dict[str, Any]:
    """A row of the table of runs: means over the seeds, and recall@1 of each."""
    curves = [results.results[cell.name, seed]["curve"] for seed in results.seeds]
    return {
        "data": cell.data,
        "rule": cell.rule,
        "batch": cell.batch,
        "memory from": {True: "half of the steps", False: "the start", "auto": "where drift is small"}[cell.wait],
        "recall@1": round(results.mean(cell), 2),
        "by seed": results.by_seed(cell),
        "curve": [round(statistics.fmean(values), 2) for values in zip(*curves, strict=True)],
        **results.means(cell, MEANS),
    }


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Sequence[int]) -> GridResults:
    """Every cell on every seed."""

    def arguments(cell: Cell, seed: int) -> dict[str, Any]:
        data = "products" if cell.data == "products" else str(context.folder(cell.data))
        return {"data": data, "settings": cell.settings(), "seed": seed}

    return run_grid(
        context,
        cells,
        seeds,
        arguments,
        trial,
        revision=REVISION,
        methods=lambda cell: ("xbm",),
        whole_seeds=True,
        describe=lambda result: (
            f"recall@1 {result['recall']:.2f} (step 0 {result['step 0']:.2f}), curve {result['curve']}, "
            f"{result['seconds']:.0f} s"
        ),
    )


def trial(*, data: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run: recall@1 (%) on unseen classes with its learning curve, and the readings of the drift meter."""
    from benchmarks.papers.products import products

    table: Any = products() if data == "products" else data
    settings = merge(settings, {"log": {"test_classes": CURVE_CLASSES}})
    return readings(*run_training("train", data=table, recipe=RECIPE, settings=settings, seed=seed))


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is stored of a run."""

    def mean(key: str) -> float:
        values = [line[key] for line in log if key in line]
        return round(statistics.fmean(values), 5) if values else 0.0

    def last(key: str) -> float:
        return round(next((line[key] for line in reversed(log) if key in line), 0.0), 5)

    return {
        **recalls(result),
        "curve": [round(100 * line["test/recall@1"], 2) for line in log if "test/recall@1" in line],
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


# ---- MoCo with and without XBN, on a part of Tiny-ImageNet at 32 px ------------------------------------------------

MOCO_IMAGES, MOCO_EPOCHS = 60, 10  # images per class
MOCO_SMALL = {
    "data": {"split": "images", "test_fraction": 0.2, "near_duplicates": False},
    "sampler": {"batch_size": 128},
    "memory": {"size": 2048},
    "log": {"tensorboard": False},
    "keep": "trained",
}


@dataclass(frozen=True)
class MoCoCell:
    """MoCo with a drift rule of its memory."""

    drift: str

    @property
    def name(self) -> str:
        return f"moco-{self.drift}"


def run_moco(context: ClaimContext, cells: Iterable[MoCoCell], seeds: Sequence[int]) -> GridResults:
    folder = str(context.folder("tinyimagenet100"))
    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: {"data": folder, "drift": cell.drift, "seed": seed},
        moco_trial,
        revision=REVISION,
        methods=lambda cell: ("moco",),
        measure="early",
        describe=lambda result: f"k-NN {result['curve'][-1]:.2f} (untrained {result['curve'][0]:.2f})",
    )


def moco_trial(*, data: str, drift: str, seed: int) -> dict[str, Any]:
    """One run from scratch; k-NN accuracy (%) before it and after every epoch."""
    table = _first_images(data, MOCO_IMAGES)
    each = int(0.8 * len(table)) // 128
    own = {
        "memory": {"drift": drift},
        "steps": MOCO_EPOCHS * each,
        "evaluate_every": each,
        "log": {"every_n_steps": each},
    }
    _, log = run_training("pretrain", data=table, recipe="moco_cifar", settings=merge(MOCO_SMALL, own), seed=seed)
    curve = [round(100 * line["knn/accuracy@200"], 3) for line in log if "knn/accuracy@200" in line]
    return {"early": curve[len(curve) // 2], "last": curve[-1], "curve": curve}


def _first_images(data: str, images: int) -> Any:
    """The first images of every class, in the table's order."""
    from lookalike.data import read_table

    table = read_table(data)
    codes, names = table.labels()
    rows = [np.flatnonzero(codes == code)[:images] for code in range(len(names))]
    return table.take(np.sort(np.concatenate(rows))).without("split", "official_split")
