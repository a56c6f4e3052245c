"""Adaptation as papers measure it: a classifier of one domain, adapted to (a part of) another, and its accuracy there.

The lower part of the network is computed once for a fixed set of views of each image (`layer`), whatever the seed,
the method and the part of the target. Source models are made once and kept. With `layer: pixels` nothing is shared and
everything learns.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from lookalike.adaptation import target_classes
from lookalike.adaptation.candidate import held_out
from lookalike.adaptation.methods import AdaptMethod
from lookalike.adaptation.pool import Pool, Retrieved, content_ids, no_retrievals
from lookalike.adaptation.pool_vectors import retrieve
from lookalike.adaptation.settings import AdaptSettings, resolve
from lookalike.adaptation.target_classes import TEMPERATURE, prototypes
from lookalike.adaptation.task import (
    AdaptTask,
    CachedViews,
    crops,
    fit,
    mixed_parts,
    pool_views,
    recalibrated,
    target_views,
)
from lookalike.core import folders, progress
from lookalike.core.device import CPU
from lookalike.core.files import hash_bytes
from lookalike.core.locks import wait_for_lock
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import merge
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.methods.base import PIXELS
from lookalike.models import Embedder, features_for
from lookalike.models.heads import make_norm


def settings_for(scale: Mapping[str, Any], over: Mapping[str, Any], fraction: float = 1.0) -> AdaptSettings:
    """T3AR's settings at a scale, a baseline's own over them, and what is varied on top.

    `few` of a scale is what a tenth of the target, or less, is run with.
    """
    plain = merge(scale["adapt"], scale.get("few", {}) if fraction <= 0.1 else {})
    own = scale.get("methods", {}).get(over.get("method", "t3ar"), {})
    return resolve(plain.pop("config", None), merge(plain, own, over))


def different(table: Table) -> Table:
    """The readable images, each content once."""
    readable = audit(table, near=False).table
    return readable.take(np.sort(np.unique(readable.column("content_id").astype(str), return_index=True)[1]))


def domain(folder: str | Path, layout: str, name: str) -> Table:
    """One domain of a data set; `real/val` is a split of one."""
    name, _, split = name.partition("/")
    table = read_table(folder, layout=layout).where("domain", name)
    return different(table.where("split", split) if split else table)


def stratified(labels: np.ndarray, fraction: float, subset: int) -> np.ndarray:
    """Rows of a part of every class, at least one; the subsets of one size are drawn anew."""
    if fraction >= 1:
        return np.arange(len(labels))
    rng = numpy_rng(subset, "subset", fraction)
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rng.permutation(rows)[: max(1, round(fraction * len(rows)))])
    return np.sort(np.concatenate(chosen))


# ---- tasks and predictions ---------------------------------------------------------------------------


def task_for(
    model: Embedder,
    table: Table,
    rows: np.ndarray,
    settings: AdaptSettings,
    seed: int,
    *,
    retrieved: Retrieved | None = None,
    pool: Pool | None = None,
    **more: Any,
) -> AdaptTask:
    """The task of adapting to some rows of a table, with views out of caches of the whole table."""
    retrieved = retrieved or no_retrievals(len(rows), 0)
    used, layer, learn = retrieved.used, settings.layer, table.take(rows)
    outside = None
    if pool is not None and len(used):
        if layer == PIXELS:
            outside = pool_views(model, layer, pool.table(used))
        else:
            every = pool_views(model, layer, pool.table(np.arange(len(pool))))
            outside = lambda places: every(used[places])  # noqa: E731

    def views(kinds: Sequence[str]) -> Any:
        if layer == PIXELS:
            return target_views(model, layer, learn, kinds, views=settings.num_views, seed=seed)
        whole: Any = target_views(model, layer, table, kinds, views=settings.num_views)
        return CachedViews(layer, {kind: array[:, rows] for kind, array in whole.arrays.items()}, kinds, seed=seed)

    return AdaptTask(
        settings,
        model,
        layer,
        content_ids(learn),
        views,
        neighbors=retrieved.among_used(),
        scores=retrieved.scores,
        pool_ids=[] if pool is None else [pool.ids[i] for i in used],
        pool=outside,
        table=learn,
        seed=seed,
        **more,
    )


def train(task: AdaptTask) -> AdaptMethod:
    """Take the steps of a task silently, in a folder that is removed."""
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            return fit(task, Run.create("adapt", {}, path=Path(folder) / "run"))
    finally:
        progress.set_level(level)


def predict(
    model: Embedder, layer: str, inputs: Any, centers: np.ndarray | None = None, *, batch: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """Unit features and class probabilities (by the classifier, or prototypes) of cached activations or pixels."""
    rows, result = [], []
    with torch.no_grad():
        for start in range(0, len(inputs), batch):
            part = np.asarray(inputs[start : start + batch])
            x = torch.from_numpy(part if part.dtype == np.uint8 else part.astype(np.float32)).to(model.device)
            features = model(x) if layer == PIXELS else model.from_layer(layer, x)
            rows.append(features.cpu().numpy())
            if centers is not None:
                logits = features @ torch.from_numpy(centers).to(model.device).T / TEMPERATURE
            else:
                logits = (
                    features.new_zeros(len(features), 1) if model.classifier is None else model.classifier(features)
                )
            result.append(logits.cpu().double().softmax(1).numpy())
    return np.concatenate(rows), np.concatenate(result)


def batches_of(model: Embedder, table: Table, rows: np.ndarray, layer: str) -> Iterator[torch.Tensor]:
    """What the layer (or the pixels) of some images hold, in batches for statistics."""
    parts = [rows[part] for part in mixed_parts(content_ids(table.take(rows)))]
    if layer == PIXELS:
        yield from crops(model, table, parts)
        return
    below = features_for(model, table, layer=layer)[0]
    for part in parts:
        yield torch.from_numpy(np.asarray(below[part], np.float32))


# ---- classifiers -------------------------------------------------------------------------------------


def train_classifier(
    start: Embedder,
    table: Table,
    settings: AdaptSettings,
    seed: int,
    *,
    head: int | None,
    norm: str = "none",
    retrieved: Retrieved | None = None,
    pool: Pool | None = None,
) -> Embedder:
    """A classifier by the labels of `table`: head by PCA, classifier from the class means, then all above `layer`.

    `norm` is the layer after the head: batch-norm at the paper's scale (its bottleneck, A.1).
    """
    model = copy.deepcopy(start)
    labels, names = table.labels()
    rows = np.asarray(features_for(model, table)[0])
    if head:
        model.set_pca_head(rows, head)
        model.norm = make_norm(norm, head).eval().to(model.device)
    with torch.no_grad():
        embedded = model.eval().from_features(torch.from_numpy(np.array(rows)).to(model.device)).cpu().numpy()
        model.classifier = nn.Linear(model.dim, len(names), device=model.device)
        model.classifier.weight.copy_(torch.from_numpy(prototypes(embedded, labels, len(names)) / TEMPERATURE))
        model.classifier.bias.zero_()
    model.card["classes"] = names
    every = np.arange(len(table))
    train(task_for(model, table, every, settings, seed, retrieved=retrieved, pool=pool, true_labels=labels))
    return model


def source_model(table: Table, seed: int, scale: Mapping[str, Any]) -> Embedder:
    """A classifier trained on the source alone, made once and kept. `scale` names model, size, head and settings."""
    device = scale.get("device", CPU)
    known = {name: scale.get(name) for name in ("model", "size", "head", "norm", "source")}
    key = hash_bytes("source 2", str(seed), json.dumps(known, sort_keys=True), table.fingerprint())
    path = folders.home() / "jobs" / "sources" / key
    with wait_for_lock(folders.home() / "locks" / f"source-{key}.lock"):  # runs side by side share it
        if not (path / "config.json").is_file():
            start = Embedder.from_pretrained(scale["model"], size=scale["size"], device=device)
            settings = resolve(None, {**scale["source"], "method": "finetune"})
            made = train_classifier(start, table, settings, seed, head=scale["head"], norm=scale.get("norm", "none"))
            made.save_pretrained(path)
        return Embedder.from_pretrained(path, device=device)


def adapted(
    base: Embedder,
    table: Table,
    rows: np.ndarray,
    settings: AdaptSettings,
    *,
    pool: Pool | None = None,
    expert: Embedder | None = None,
    source: Table | None = None,
    seed: int = 0,
) -> tuple[Embedder, int]:
    """`base` adapted to `rows` of a table, and how many pool images it used. Only `mcc` looks at the source."""
    learn, model = table.take(rows), copy.deepcopy(base)
    if settings.method == "bn" or (settings.method != "source" and settings.batch_norm != "keep"):
        model = recalibrated(base, batches_of(base, table, rows, settings.layer), settings.layer)
    if settings.method in ("source", "bn"):
        return model.eval(), 0
    retrieved, beside = no_retrievals(len(rows), 0), None
    if pool is not None:
        retrieved = retrieve(expert or base, content_ids(learn), learn, pool, settings, seed=seed)
    if settings.method == "mcc" and source is not None:
        theirs = target_views(model, settings.layer, source, ("weak",), views=settings.num_views, seed=seed)
        beside = (lambda places, step: theirs.views(places, slice(None), step)[0]), source.labels()[0]
    train(task_for(model, table, rows, settings, seed, retrieved=retrieved, pool=pool, labeled_source=beside))
    return model.eval(), len(retrieved.used)


def accuracy(model: Embedder, layer: str, table: Table, rows: np.ndarray) -> dict[str, Any]:
    """Accuracy (%) on all images, on those not adapted to, and by class."""
    labels, names = table.labels()
    known = {name: place for place, name in enumerate(model.card["classes"])}
    every = np.arange(len(table))
    inputs: Any = (
        crops(model, table, np.split(every, every[256::256]))
        if layer == PIXELS
        else [features_for(model, table, layer=layer)[0]]
    )
    predicted = np.concatenate([predict(model, layer, part)[1].argmax(1) for part in inputs])
    right = predicted == np.array([known.get(name, -1) for name in names])[labels]
    rest = np.setdiff1d(every, rows)
    by_class = {name: 100 * float(right[labels == code].mean()) for code, name in enumerate(names)}
    return {
        "accuracy": round(100 * float(right.mean()), 3),
        "unseen": round(100 * float(right[rest].mean()), 3) if len(rest) else None,
        "class_mean": round(float(np.mean(list(by_class.values()))), 3),
        "by_class": {name: round(value, 2) for name, value in by_class.items()},
        "images": len(rows),
    }


# ---- models without a classifier -----------------------------------------------------------------------

EmbedderKind = Literal["frozen", "bn", "gallery", "clusters", "contrast", "clusters with shot"]


def evaluate_embedder(
    model: Embedder,
    table: Table,
    gallery: Table,
    kind: EmbedderKind,
    settings: AdaptSettings,
    *,
    pool: Pool | None,
    expert: Embedder,
    seed: int = 0,
) -> dict[str, Any]:
    """Adapt a model without a classifier; recall@1 and MAP@R (%) on held-out images.

    Classes come from prototypes of a gallery, from clusters of the target, or from nowhere (contrast alone). The labels
    of the target are used for measuring only.
    """
    codes, layer = table.labels()[0], settings.layer
    aside = held_out(table, settings.held_out_fraction, seed)
    rows, start = np.flatnonzero(~aside), copy.deepcopy(model).eval()
    if kind == "bn" or (kind != "frozen" and settings.batch_norm != "keep"):
        start = recalibrated(model, batches_of(model, table, rows, layer), layer)
    below = features_for(start, table, layer=layer)[0]
    out: dict[str, Any] = {"images": len(rows), "used": 0}
    if kind not in ("frozen", "bn"):
        learn = target_classes.normalize(predict(start, layer, below[rows])[0])
        centers = None
        if kind == "gallery":
            known, names = gallery.labels()
            inside = predict(start, layer, features_for(start, gallery, layer=layer)[0])[0]
            centers = prototypes(inside, known, len(names))
        elif kind != "contrast":
            centers = target_classes.find_clusters(learn, seed=seed)[0]
        retrieved, some = None, table.take(rows)
        if pool is not None:
            retrieved = retrieve(expert, content_ids(some), some, pool, settings, seed=seed)
        task = task_for(
            start,
            table,
            rows,
            settings,
            seed,
            retrieved=retrieved,
            pool=pool,
            prototypes=centers,
            friends=target_classes.reciprocal(learn) if centers is None else None,
            recluster=kind != "gallery",
        )
        train(task)
        out |= {"classes": task.classes, "used": len(task.pool_ids)}
    held = np.flatnonzero(aside)
    scores = retrieval_metrics(predict(start.eval(), layer, below[held])[0], codes[held]).mean()
    return {**out, "recall": round(100 * scores["recall@1"], 3), "accuracy": round(100 * scores["map@r"], 3)}
