"""Runs of the claims about adaptation with retrieval: one function a run, on numbers and names alone.

The lower half of the network is computed once for a fixed set of views (`layer` of a scale); the upper half, head and
classifier learn. Source models, pool vectors and cached layers are shared by all runs that can share them.
"""

from __future__ import annotations

import copy
import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@cache
def domain(data: str, name: str, domain: str) -> Any:
    from lookalike.data import audit, read_table

    table = audit(read_table(Path(data) / name / domain), near=False).table
    return table.take(np.sort(np.unique(table.column("content_id").astype(str), return_index=True)[1]))


@cache
def outside(data: str, kind: str) -> Any:
    """The data set `pool`, whole or without pictures of PACS classes."""
    from lookalike.adapting.retrieving import read_pool
    from lookalike.data import read_table

    table = read_table(Path(data) / "pool")
    if kind == "without":
        with (Path(data) / "pool" / "pool.csv").open(encoding="utf-8") as file:
            plain = {row["path"] for row in csv.DictReader(file) if not row["pacs_class"]}
        table = table.take(np.array([path in plain for path in table.column("path")], bool))
    return read_pool([table])


def stratified(labels: np.ndarray, fraction: float, subset: int) -> np.ndarray:
    """Rows of a part of every class, at least one; the subsets of one size are drawn anew."""
    from lookalike.core.seeds import numpy_rng

    if fraction >= 1:
        return np.arange(len(labels))
    rng = numpy_rng(subset, "subset", fraction)
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rng.permutation(rows)[: max(1, round(fraction * len(rows)))])
    return np.sort(np.concatenate(chosen))


def source_model(data: str, name: str, source: str, seed: int, scale: dict[str, Any]) -> Any:
    """A classifier trained on the source alone, made once and kept."""
    import json

    from lookalike.core import folders
    from lookalike.core.device import CPU
    from lookalike.core.files import hash_bytes
    from lookalike.models import Embedder

    key = hash_bytes(
        name, source, str(seed), json.dumps(scale, sort_keys=True), domain(data, name, source).fingerprint()
    )
    path = folders.home() / "jobs" / "t3ar" / "sources" / key
    if not (path / "config.json").is_file():
        start = Embedder.from_pretrained(scale["model"], size=scale["size"], device=CPU)
        table = domain(data, name, source)
        model = trained(start, table, {**scale["source"], "method": "finetune"}, seed, head=scale["head"])
        model.save_pretrained(path)
    return Embedder.from_pretrained(path, device=CPU)


def trained(start: Any, table: Any, over: dict[str, Any], seed: int, *, head: int | None, **options: Any) -> Any:
    """A classifier by the labels of `table`; `options` go to the adapter (lists, pool)."""
    import torch
    from torch import nn

    from lookalike.adapting.adapter import Adapter
    from lookalike.adapting.clusters import prototypes
    from lookalike.adapting.network import TEMPERATURE, Network
    from lookalike.adapting.settings import resolve
    from lookalike.adapting.supply import make
    from lookalike.models import features_for

    model, settings = copy.deepcopy(start), resolve(None, over)
    labels, names = table.labels()
    rows = np.asarray(features_for(model, table)[0])
    if head:
        model.set_pca_head(rows, head)
    with torch.no_grad():
        embedded = model.from_features(torch.from_numpy(np.array(rows))).numpy()
        model.classifier = nn.Linear(model.dim, len(names))
        model.classifier.weight.copy_(torch.from_numpy(prototypes(embedded, labels, len(names)) / TEMPERATURE))
        model.classifier.bias.zero_()
    model.card["classes"] = names
    pool = options.pop("pool", None)
    supply = make(model, settings.layer, table, pool, views=settings.views, seed=seed)
    ids = [str(id_) for id_ in table.column("content_id")]
    network = Network(model.eval(), settings.layer)
    Adapter(network, supply, ids, settings, labels=labels, seed=seed, **options).run()
    return network.model


def trial(
    *,
    data: str,
    source: str,
    target: str,
    fraction: float,
    subset: int,
    over: dict[str, Any],
    pool: str,
    retriever: str | None,
    set: str,  # noqa: A002 - the cell's own word
    seed: int,
    scale: dict[str, Any],
) -> dict[str, Any]:
    """Accuracy (%) on all of the target, on its pictures that were not adapted to, and by class."""
    import torch

    from lookalike.adapting.adapter import Adapter
    from lookalike.adapting.network import Network, recalibrated
    from lookalike.adapting.settings import resolve
    from lookalike.adapting.supply import make
    from lookalike.core.settings import merge
    from lookalike.models import features_for

    torch.set_num_threads(1)
    plain = dict(scale["adapt"])
    settings = resolve(plain.pop("config", None), merge(plain, over))
    base = source_model(data, set, source, seed, scale)
    table = domain(data, set, target)
    labels = table.labels()[0]
    rows = stratified(labels, fraction, 100 * seed + subset)
    learn = table.take(rows)
    model = copy.deepcopy(base)
    if settings.batch_norm != "keep" and settings.method != "source":
        squares = [model.square(learn.open_bytes(i)) for i in range(len(learn))]
        model = recalibrated(
            base, [torch.from_numpy(np.stack(squares[i : i + 64])) for i in range(0, len(squares), 64)]
        )
    lists, scores, used, found = retrieved(data, base, retriever, learn, pool, settings, seed)
    network = Network(model.eval(), settings.layer)
    # Before anything learns: the lower half stays as it is now.
    below = None if settings.layer == "pixels" else features_for(model, table, layer=settings.layer)[0]
    if settings.method not in ("source", "bn"):
        pictures = found.table(used) if len(used) else None
        supply = make(model, settings.layer, learn, pictures, views=settings.views, seed=seed)
        names = [found.ids[i] for i in used] if found is not None else []
        ids = [str(id_) for id_ in learn.column("content_id")]
        Adapter(network, supply, ids, settings, lists=lists, scores=scores, pool_ids=names, seed=seed).run()
    right = predicted(network, table, below) == labels
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    by_class = [100 * float(right[labels == c].mean()) for c in np.unique(labels)]
    return {
        "accuracy": round(100 * float(right.mean()), 3),
        "unseen": round(100 * float(right[rest].mean()), 3) if len(rest) else None,
        "class_mean": round(float(np.mean(by_class)), 3),
        "by_class": [round(value, 2) for value in by_class],
        "pictures": len(rows),
        "used": len(used),
    }


def retrieved(data: str, base: Any, retriever: str | None, learn: Any, pool: str, settings: Any, seed: int) -> Any:
    """(lists, scores, used pool pictures, the pool) for the pictures that are learnt from."""
    from lookalike.adapting.retrieving import at_random, embedded, nearest
    from lookalike.core.device import CPU
    from lookalike.models import Embedder

    k = settings.neighbours if settings.method == "t3ar" and settings.contrast.pool_set != "none" else 0
    if pool == "none" or not k:
        return None, None, np.zeros(0, np.int64), None
    found = pool_of(data, pool)
    expert = base if retriever is None else Embedder.from_pretrained(retriever, size=base.preprocess.size, device=CPU)
    ids = [str(id_) for id_ in learn.column("content_id")]
    mine = embedded(expert, ids, learn)
    theirs = embedded(expert, found.ids, found.table(np.arange(len(found))))
    if settings.retrieval == "random":
        near = at_random(mine, theirs, ids, found.ids, k, seed=seed)
    else:
        near = nearest(mine, theirs, ids, found.ids, k, near_copy=settings.near_copy)
    used = near.used
    lists = np.where(near.index >= 0, np.searchsorted(used, near.index), -1)
    return lists, near.scores, used, found


@cache
def pool_of(data: str, kind: str) -> Any:
    """`all`, `without`, or folders of data sets joined by +."""
    from lookalike.adapting.retrieving import read_pool

    return outside(data, kind) if kind in ("all", "without") else read_pool([Path(data) / n for n in kind.split("+")])


def predicted(network: Any, table: Any, below: Any) -> np.ndarray:
    """The class of every picture of a table."""
    from lookalike.adapting.adapter import predict

    if below is None:
        squares = [network.model.square(table.open_bytes(i)) for i in range(len(table))]
        below = np.stack(squares)
    out: np.ndarray = predict(network, below)[1].argmax(1)
    return out
