"""Runs of the claims about cross-batch memories: cells, the joined data set `mixed`, and MoCo from scratch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.papers import ClaimContext
from benchmarks.papers.grid import GridResults, recalls, run_grid, run_training
from lookalike.core import folders
from lookalike.core.files import hash_bytes
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import merge

if TYPE_CHECKING:
    from lookalike.data import Table

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
    """One way to train: a memory rule, a batch size, and a memory as a fraction of the training images."""

    rule: str
    batch: int = 32
    size: float = 1.0
    lr: float = 1e-4
    steps: int | None = None
    cached: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the memory."""
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.rule, f"b{self.batch}", f"m{self.size:g}", f"lr{self.lr:g}"]
        parts += [f"{k}{v}" for extra in (self.memory, self.head) for k, v in extra.items()]
        parts += [f"{self.steps}steps"] * (self.steps is not None) + ["cached"] * self.cached
        return "-".join(parts)

    def settings(self, base: Mapping[str, Any]) -> dict[str, Any]:
        at_scale = "steps" in base  # the paper's epochs, end to end
        steps = base["steps"] * PAPER_BATCH // self.batch if at_scale else self.steps or STEPS[self.batch]
        own = {
            "head": dict(self.head),
            "memory": {"size": self.size, **RULES[self.rule], **self.memory},
            "sampler": {"classes_per_batch": self.batch // 4, "images_per_class": 4},
            "optimizer": {"lr": self.lr},
            "steps": steps,
            "evaluate_every": steps,
        }
        return merge(base, CACHED if self.cached and not at_scale else {}, own)


MEANS = ("step 0", "drift", "drift max", "cosine", "stale", "stale original", "floor")


def row(results: GridResults, cell: Cell) -> dict[str, Any]:
    """A row of the table of runs: means over the seeds, and recall@1 of each."""
    return {
        "rule": cell.rule,
        "batch": cell.batch,
        "memory": cell.size if cell.rule != "none" else "–",
        "rate": cell.lr,
        **{k: str(v) for k, v in {**cell.memory, **cell.head}.items()},
        "recall@1": round(results.mean(cell), 2),
        "by seed": results.by_seed(cell),
        **results.means(cell, MEANS),
    }


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Sequence[int]) -> GridResults:
    cells = list(cells)
    if context.scale == "small":
        for name in SETS:
            context.folder(name)
        data, base = str(context.data), SMALL
    else:
        from lookalike.training.recipe import load

        data = str(context.folder("sop"))
        base = merge(load("xbn_sop"), {"data": {"validation_fraction": 0}, "keep": "trained"})

    def prepare(missing: object) -> None:
        context.say("Preparing the images")
        for cached in sorted({cell.cached for cell in cells}):
            settings = Cell("xbn", steps=1, cached=cached).settings(base)
            run_training("train", threads=None, data=mixed(data), settings=settings, seed=0)

    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: {"data": data, "settings": cell.settings(base), "seed": seed},
        trial,
        method=lambda cell: "xbm",
        prepare=prepare if base is SMALL else None,
        describe=lambda result: f"recall@1 {result['recall']:.2f}, drift {result['drift']:.3f}",
    )


def trial(*, data: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """One run: recall@1 (%) on unseen classes, and the readings of the drift meter."""
    table: Any = mixed(data) if settings["model"]["name"] == SMALL["model"]["name"] else data
    return readings(*run_training("train", data=table, settings=settings, seed=seed))


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What is stored of a run."""

    def mean(key: str) -> float:
        values = [line[key] for line in log if key in line]
        return round(statistics.fmean(values), 5) if values else 0.0

    def last(key: str) -> float:
        return round(next((line[key] for line in reversed(log) if key in line), 0.0), 5)

    return {
        **recalls(result),
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
    folder = str(context.folder("tinyimagenet100" if context.scale == "small" else "cifar10"))
    images, epochs = (MOCO_IMAGES, MOCO_EPOCHS) if context.scale == "small" else (None, 15)
    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: {"data": folder, "drift": cell.drift, "seed": seed, "images": images, "epochs": epochs},
        moco_trial,
        method=lambda cell: "moco",
        measure="early",
        describe=lambda result: f"k-NN {result['curve'][-1]:.2f} (untrained {result['curve'][0]:.2f})",
    )


def moco_trial(*, data: str, drift: str, seed: int, images: int | None, epochs: int) -> dict[str, Any]:
    """One run from scratch; k-NN accuracy (%) before it and after every epoch."""
    table = _first_images(data, images)
    train = 0.8 * len(table) if images else (table.column("split") == "train").sum()
    each = int(train) // 128
    own = {"memory": {"drift": drift}, "steps": epochs * each, "evaluate_every": each, "log": {"every_n_steps": each}}
    settings = merge(MOCO_SMALL, own) if images else own
    _, log = run_training("pretrain", data=table, recipe="moco_cifar", settings=settings, seed=seed)
    curve = [round(100 * line["knn/accuracy@200"], 3) for line in log if "knn/accuracy@200" in line]
    return {"early": curve[len(curve) // 2], "last": curve[-1], "curve": curve}


def _first_images(data: str, images: int | None) -> Any:
    """The first images of every class, in the table's order."""
    from lookalike.data import read_table

    table = read_table(data)
    if images is None:
        return table
    codes, names = table.labels()
    rows = [np.flatnonzero(codes == code)[:images] for code in range(len(names))]
    return table.take(np.sort(np.concatenate(rows))).without("split", "official_split")


# ---- `mixed`: five images of every class of the small sets: many classes, few images, as in SOP --------------------

SETS = ("cub", "cars", "grocery", "tinyimagenet100", "pool")
IMAGES_PER_CLASS = 5
HELD_OUT = 1 / 3


def mixed(data: str | Path) -> Table:
    """The joined table with its split by classes, read once and kept in the cache."""
    from lookalike.data import Table

    name = hash_bytes("mixed 1", str(Path(data).absolute()))
    path = folders.cache("tables") / f"{name}.parquet"
    if not path.exists():
        join(Path(data)).save(path)
    return Table.load(path)


def join(data: Path) -> Table:
    """Five images of every class of every set, drawn once for all; a third of the classes is the test."""
    from lookalike.data import Table

    paths, labels = [], []
    sizes: list[int] = []
    for name in SETS:
        files, codes, names, file_sizes = _read(data, name)
        for code, label in enumerate(names):
            rows = np.flatnonzero(codes == code)
            if len(rows) < IMAGES_PER_CLASS:
                continue
            rng = numpy_rng(0, "mixed", name, label)
            for row in np.sort(rng.permutation(rows)[:IMAGES_PER_CLASS]):
                paths.append(f"{name}/{files[row]}")
                labels.append(f"{name}/{label}")
                sizes.append(int(file_sizes[row]))
    classes = sorted(set(labels))
    test = set(numpy_rng(0, "mixed", "test").permutation(classes)[: round(HELD_OUT * len(classes))])
    split = ["test" if label in test else "train" for label in labels]
    columns = {"path": paths, "label": labels, "split": split, "size": sizes}
    return Table.from_columns(columns, name="mixed", root=data)


def _read(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Paths, label codes, label names and file sizes of one set."""
    from lookalike.data import read_table

    if name == "pool":  # its labels are those of the sources it was drawn from
        import csv

        with (data / name / "pool.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        texts = np.array([f"{row['source']}/{row['source_label']}" for row in rows])
        names, codes = np.unique(texts, return_inverse=True)
        places = np.array([row["path"] for row in rows])
        sizes = np.array([(data / name / place).stat().st_size for place in places])
        return places, codes, names.tolist(), sizes
    table = read_table(data / name)
    codes, labels = table.labels()
    return table.column("path"), codes, labels, table.column("size")
