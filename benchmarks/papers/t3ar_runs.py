"""Runs of the claims about adaptation with retrieval: cells, what their runs share, and one run (see t3ar_measure)."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import ClaimContext
from benchmarks.papers.grid import GridResults, run_grid, training_run
from benchmarks.papers.t3ar_protocols import PAPER, SMALL
from lookalike.core.engine import LocalEngine
from lookalike.core.progress import plural

LAYOUTS = {"pacs": "pacs", "domainnet126": "domainnet"}
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
        "weights": {"contrast": 0.1},
    },
}
PAPER_TRAIN: dict[str, Any] = {
    "device": "auto",  # cells at small scale are those of one thread of a processor
    "model": "resnet50",
    "size": 224,
    "head": None,
    "adapt": {"config": "paper_train"},
    "methods": {"finetune": {"weight_decay": 0.01}},  # mixup 0 for CUB, as Table 6 has it
}
# At the paper's scale: DINO (its ResNet-50 is not in timm), and CLIP as the stronger retriever.
PAPER_RETRIEVERS = {
    "efficientnet_lite0": "vit_base_patch16_224.dino",
    "efficientnet_lite2": "open_clip:ViT-B-16:openai",
}
REVISION = 2
"""Of the experiment; raised whenever a run computes something else. Methods have their own (`Method.revision`)."""


@dataclass(frozen=True)
class Cell:
    """One run: where, how much of the target, what adapts, with which pool and retriever."""

    source: str
    target: str
    fraction: float = 1.0
    subset: int = 0
    over: dict[str, Any] = field(default_factory=dict)
    pool: str = "all"
    """`all`, `without` (no image of the target's classes), `styles` (the data set's other domains but photo and the
    source), `none`, or data sets joined by +."""
    retriever: str = EXPERT
    """A frozen expert by name, or `own`: the model itself."""
    set: str = "pacs"
    embedder: str = ""
    """For a model without classes: a kind of `t3ar_measure.EmbedderKind`; else it is a classifier."""

    def arguments(self, seed: int, scale: dict[str, Any]) -> dict[str, Any]:
        """Everything a run depends on: the resolved settings, too, so that another default is another run."""
        from benchmarks.papers.t3ar_measure import settings_for

        over = {name: value for name, value in self.over.items() if name != "pretrain_steps"}
        settings = settings_for(scale, over, self.fraction).model_dump(mode="json")
        return {**vars(self), "seed": seed, "scale": scale, "settings": settings}

    @property
    def name(self) -> str:
        parts = (self.source, self.target, f"{self.fraction:g}", str(self.subset))
        parts += (self.pool, self.retriever, self.embedder)
        flat = ",".join(f"{k}={v}" for k, v in sorted(_flat(self.over)))
        return "-".join([*parts, flat])


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in values.items():
        out += _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(f"{before}{key}", value)]
    return out


def arguments(data: str, cell: Cell, seed: int, *, paper: bool) -> dict[str, Any]:
    """Everything that a run depends on; at the paper's scale with its retrievers and its pool, which is DATA/pool."""
    if not paper:
        return {"data": data, **cell.arguments(seed, TRAIN if cell.set == "cub" else SMALL)}
    pool = "all" if cell.set == "cub" and cell.pool != "none" else cell.pool
    cell = replace(cell, retriever=PAPER_RETRIEVERS.get(cell.retriever, cell.retriever), pool=pool)
    return {"data": data, **cell.arguments(seed, PAPER_TRAIN if cell.set == "cub" else PAPER)}


def run_cells(context: ClaimContext, cells: list[Cell], seeds: tuple[int, ...]) -> GridResults:
    """Every cell on every seed; what many runs share is prepared first."""
    data = str(context.data)

    def prepare_shared(missing: dict[str, dict[str, Any]]) -> None:
        context.say(f"{plural(len(missing), 'run')} to do; preparing what they share")
        for part in shared(data, list(missing.values())):
            for key, count in context.jobs.run_many(part, prepare, engine=LocalEngine(context.workers)):
                context.say(f"  {key}: {count}")

    return run_grid(
        context,
        cells,
        seeds,
        lambda cell, seed: arguments(data, cell, seed, paper=context.scale == "paper"),
        trial,
        prepare=prepare_shared,
        whole_seeds=True,
        measure="accuracy",
        revision=REVISION,
        methods=lambda cell: () if _keeps(cell) else (cell.over.get("method", "t3ar"),),
        describe=lambda result: f"{result['accuracy']:.2f}",
    )


def _keeps(cell: Cell) -> bool:
    """Whether nothing learns in this cell."""
    return cell.over.get("method") in ("source", "bn") or cell.embedder in ("frozen", "bn")


@cache
def domain(data: str, name: str, part: str) -> Any:
    """A domain of PACS or DomainNet-126, or a side of CUB's official split."""
    from benchmarks.papers import t3ar_measure
    from lookalike.data import read_table

    if name != "cub":
        return t3ar_measure.domain(Path(data) / name, LAYOUTS[name], part)
    table = read_table(Path(data) / "cub", layout="cub")
    return t3ar_measure.different(table.where("official_split" if table.has("official_split") else "split", part))


@cache
def pool_of(data: str, kind: str, around: tuple[str, ...] = ()) -> Any:
    """A pool by its kind (see `Cell.pool`); `around` are data set, source and target, for `styles`."""
    from lookalike.adaptation.pool import read_pool
    from lookalike.data import read_table

    if kind == "none":
        return None
    if kind == "styles":
        name, *others = around
        whole = read_table(Path(data) / name, layout=LAYOUTS[name])
        domains = whole.column("domain")
        return read_pool([whole.take(~np.isin(domains, ["photo", *others]))])
    if kind not in ("all", "without"):
        return read_pool([Path(data) / name for name in kind.split("+")])
    table = read_table(Path(data) / "pool")
    if kind == "without":
        with (Path(data) / "pool" / "pool.csv").open(encoding="utf-8") as file:
            plain = {row["path"] for row in csv.DictReader(file) if not row["pacs_class"]}
        table = table.take(np.array([path in plain for path in table.column("path")], bool))
    return read_pool([table])


def expert_of(name: str, scale: dict[str, Any]) -> Any:
    from lookalike.core.device import CPU
    from lookalike.models import Embedder

    return Embedder.from_pretrained(name, size=scale["size"], device=scale.get("device", CPU))


def shared(data: str, cells: list[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """What many runs share, as jobs by name, in the order they can be done in; those of one part at once."""
    first: dict[str, dict[str, Any]] = {}
    second: dict[str, dict[str, Any]] = {}
    for cell in cells:
        scale, set_, pool = cell["scale"], cell["set"], cell["pool"]
        if scale["adapt"].get("layer", "pixels") == "pixels":
            continue
        parts = [("train", "adapt")] if set_ == "cub" else [(cell["source"], "source"), (cell["target"], "adapt")]
        for part, settings in parts:
            first[f"views {set_} {part}"] = {"data": data, "what": [set_, part, settings], "scale": scale}
        if pool == "styles":  # domains, whose features are views of the data set
            continue
        if pool != "none":
            first[f"pool {pool}"] = {"data": data, "what": [pool], "scale": scale}
            if cell["retriever"] != "own":
                expert = cell["retriever"]
                part = "train" if set_ == "cub" else cell["target"]
                first[f"vectors {pool} {expert}"] = {"data": data, "what": [pool, expert], "scale": scale}
                vectors = {"data": data, "what": [set_, part, "by", expert], "scale": scale}
                first[f"vectors {set_} {part} {expert}"] = vectors
        if set_ != "cub":
            name = f"source {set_} {cell['source']} {cell['seed']}"
            second[name] = {"data": data, "what": [set_, cell["source"], cell["seed"]], "scale": scale}
    return [first, second]


def prepare(*, data: str, what: list[Any], scale: dict[str, Any]) -> int:
    """One of the things that runs share: views or vectors of images, activations of a pool, or a source model."""
    import torch

    from benchmarks.papers import t3ar_measure
    from lookalike.adaptation.pool_vectors import embedded
    from lookalike.adaptation.task import pool_views, target_views
    from lookalike.models import features_for

    torch.set_num_threads(1)
    if len(what) == 3 and isinstance(what[2], int):
        t3ar_measure.source_model(domain(data, *what[:2]), what[2], scale)
        return 1
    if len(what) == 3:
        table, settings = domain(data, *what[:2]), scale[what[2]]
        model = expert_of(scale["model"], scale)
        features_for(model, table)
        kinds = ("weak",) if what[2] == "source" else ("weak", "strong")
        target_views(model, settings["layer"], table, kinds, views=settings.get("num_views", 4))
        return len(table)
    if len(what) == 4:
        table = domain(data, *what[:2])
        return len(embedded(expert_of(what[3], scale), [str(i) for i in table.column("content_id")], table))
    pool = pool_of(data, what[0])
    whole = pool.table(np.arange(len(pool)))
    if len(what) == 2:
        return len(embedded(expert_of(what[1], scale), pool.ids, whole))
    pool_views(expert_of(scale["model"], scale), scale["adapt"]["layer"], whole)
    return len(pool)


def trial(*, data: str, seed: int, scale: dict[str, Any], settings: dict[str, Any], **cell: Any) -> dict[str, Any]:
    """One run: accuracy (%) on all of the target, on its images that were not adapted to, and by class.

    On CUB (train time) `source` is the starting model: `imagenet`, or `pretrained` on the pool (`pretrain_steps` in
    `over`) first; accuracy is that on the official test images.
    """
    import torch

    from benchmarks.papers import t3ar_measure
    from lookalike.adaptation.settings import AdaptSettings

    if "device" not in scale:
        torch.set_num_threads(1)
    name, steps, chosen = cell["set"], int(cell["over"].get("pretrain_steps", 0)), AdaptSettings.parse(settings)
    pool = pool_of(data, cell["pool"], (name, cell["source"], cell["target"]) if cell["pool"] == "styles" else ())
    expert = None if cell["retriever"] == "own" else expert_of(cell["retriever"], scale)
    if name == "cub":
        return _train_time(data, seed, scale, chosen, pool, expert, cell["source"], steps)
    if cell["embedder"]:
        return _embedder(data, seed, scale, chosen, pool, expert, name, cell)
    base = t3ar_measure.source_model(domain(data, name, cell["source"]), seed, scale)
    table = domain(data, name, cell["target"])
    rows = t3ar_measure.stratified(table.labels()[0], cell["fraction"], 100 * seed + cell["subset"])
    model, used = t3ar_measure.adapted(base, table, rows, chosen, pool=pool, expert=expert, seed=seed)
    return {**t3ar_measure.accuracy(model, chosen.layer, table, rows), "used": used}


def _train_time(
    data: str, seed: int, scale: dict[str, Any], settings: Any, pool: Any, expert: Any, source: str, steps: int
) -> dict[str, Any]:
    from benchmarks.papers import t3ar_measure
    from lookalike.adaptation.pool_vectors import retrieve

    table, test = domain(data, "cub", "train"), domain(data, "cub", "test")
    start = expert_of(scale["model"], scale)
    if source == "pretrained":
        start, pool = _pretrained(scale, pool, steps, seed), None
    retrieved = None
    if pool is not None:
        ids = t3ar_measure.content_ids(table)
        retrieved = retrieve(expert or start, ids, table, pool, settings, seed=seed)
    model = t3ar_measure.train_classifier(
        start, table, settings, seed, head=scale["head"], retrieved=retrieved, pool=pool
    )
    measured = t3ar_measure.accuracy(model, settings.layer, test, np.zeros(0, np.int64))
    del measured["by_class"]
    return {**measured, "images": len(table), "used": 0 if retrieved is None else len(retrieved.used)}


def _embedder(
    data: str, seed: int, scale: dict[str, Any], settings: Any, pool: Any, expert: Any, name: str, cell: dict[str, Any]
) -> dict[str, Any]:
    from benchmarks.papers import t3ar_measure

    model, table = expert_of(scale["model"], scale), domain(data, name, cell["target"])
    gallery = domain(data, name, cell["source"])
    return t3ar_measure.evaluate_embedder(
        model, table, gallery, cell["embedder"], settings, pool=pool, expert=expert or model, seed=seed
    )


def _pretrained(scale: dict[str, Any], pool: Any, steps: int, seed: int) -> Any:
    """The backbone after learning from the pool without labels."""
    from lookalike.core.device import CPU
    from lookalike.models import Embedder

    settings: dict[str, Any] = {"model": {"name": scale["model"], "size": scale["size"]}, "keep": "trained"}
    if scale["model"] == PAPER_TRAIN["model"]:
        settings["method"] = "dino"  # as Table 10; CARP, our own, where it must be quick
    table = pool.table(np.arange(len(pool)))
    with training_run("pretrain", threads=None, data=table, settings=settings, steps=steps, seed=seed) as run:
        return Embedder.from_pretrained(run.path, device=scale.get("device", CPU))
