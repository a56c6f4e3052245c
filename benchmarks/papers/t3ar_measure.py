"""Adaptation as papers measure it: a classifier of one domain, adapted to (a part of) another, named right how often.

The lower part of the network is computed once for a fixed set of views of each image (`layer`), whatever the seed,
the method and the part of the target; above it batch-norm statistics, the upper part, head and classifier are each
run's own. Source models are made once and kept. With `layer: pixels` nothing is shared and everything learns.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import nn

from lookalike.adaptation import target_classes
from lookalike.adaptation.adapter import Adapter, on_target, predict
from lookalike.adaptation.network import PIXELS, TEMPERATURE, Network, mixed_parts, recalibrated
from lookalike.adaptation.pool import Pool
from lookalike.adaptation.pool_search import Retrieved, no_retrievals
from lookalike.adaptation.pool_vectors import retrieve
from lookalike.adaptation.settings import AdaptSettings, resolve
from lookalike.adaptation.target_classes import prototypes
from lookalike.adaptation.trial import held_out, squares
from lookalike.adaptation.view_provider import ViewProvider, make_views
from lookalike.core import folders
from lookalike.core.device import CPU
from lookalike.core.files import hash_bytes
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import merge
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder, features_for

VIEWS = 0  # the seed of the fixed views


def settings_for(scale: Mapping[str, Any], over: Mapping[str, Any], fraction: float = 1.0) -> AdaptSettings:
    """T3AR's settings at a scale, a baseline's own over them, and what is varied on top.

    `few` of a scale is what a tenth of the target, or less, is run with.
    """
    plain = merge(scale["adapt"], scale.get("few", {}) if fraction <= 0.1 else {})
    own = scale.get("methods", {}).get(over.get("method", "t3ar"), {})
    return resolve(plain.pop("config", None), merge(plain, own, over))


def different(table: Table) -> Table:
    """The readable images, each content once."""
    found = audit(table, near=False).table
    return found.take(np.sort(np.unique(found.column("content_id").astype(str), return_index=True)[1]))


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


def views_of(
    model: Embedder,
    table: Table,
    rows: np.ndarray,
    pool: Pool | None,
    used: np.ndarray,
    chosen: AdaptSettings,
    seed: int,
) -> ViewProvider:
    """Views of some images of a table and of some of the pool, out of caches of the whole."""
    outside = pool.table(np.arange(len(pool))) if pool is not None and len(used) else None
    if chosen.layer == PIXELS:
        images = pool.table(used) if pool is not None and len(used) else None
        return make_views(model, chosen.layer, table.take(rows), images, views=chosen.num_views, seed=seed)
    whole: Any = make_views(model, chosen.layer, table, outside, views=chosen.num_views, seed=VIEWS)
    return whole.part(rows, used, seed)


def train_classifier(
    start: Embedder,
    table: Table,
    settings: AdaptSettings,
    seed: int,
    *,
    head: int | None,
    found: Retrieved | None = None,
    pool: Pool | None = None,
) -> Embedder:
    """A classifier by the labels of `table`: head by PCA, classifier from the class means, then all above `layer`."""
    model = copy.deepcopy(start)
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
    network = Network(model.eval(), settings.layer)
    adapter_for(network, table, np.arange(len(table)), settings, found, pool, seed, labels=labels).run()
    return network.model


def source_model(table: Table, seed: int, scale: Mapping[str, Any]) -> Embedder:
    """A classifier trained on the source alone, made once and kept. `scale` names model, size, head and settings."""
    known = {name: scale[name] for name in ("model", "size", "head", "source")}
    key = hash_bytes("source", str(seed), json.dumps(known, sort_keys=True), table.fingerprint())
    path = folders.home() / "jobs" / "sources" / key
    if not (path / "config.json").is_file():
        start = Embedder.from_pretrained(scale["model"], size=scale["size"], device=CPU)
        settings = resolve(None, {**scale["source"], "method": "finetune"})
        train_classifier(start, table, settings, seed, head=scale["head"]).save_pretrained(path)
    return Embedder.from_pretrained(path, device=CPU)


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
) -> tuple[Network, int]:
    """`base` adapted to `rows` of a table, and how many pool images it used. Only `mcc` looks at the source."""
    learn = table.take(rows)
    model = copy.deepcopy(base)
    if settings.method == "bn" or (settings.method != "source" and settings.batch_norm != "keep"):
        model = recalibrated(base, chunks(base, table, rows, settings.layer), settings.layer)
    network = Network(model.eval(), settings.layer)
    if settings.method in ("source", "bn"):
        return network, 0
    if settings.method == "on_target":
        return Network(on_target(network, learn, settings, seed=seed), PIXELS), 0
    found, beside = no_retrievals(len(rows), 0), None
    if pool is not None:
        ids = [str(id_) for id_ in learn.column("content_id")]
        found = retrieve(expert or base, ids, learn, pool, settings, seed=seed)
    if settings.method == "mcc" and source is not None:
        theirs = views_of(model, source, np.arange(len(source)), None, found.used, settings, seed)
        beside = theirs, source.labels()[0]
    adapter_for(network, table, rows, settings, found, pool, seed, source=beside).run()
    return network, len(found.used)


def adapter_for(
    network: Network,
    table: Table,
    rows: np.ndarray,
    settings: AdaptSettings,
    found: Retrieved | None,
    pool: Pool | None,
    seed: int,
    **more: Any,
) -> Adapter:
    """The loop over some rows of a table, with what was retrieved for them."""
    found = found or no_retrievals(len(rows), 0)
    ids = [str(id_) for id_ in table.take(rows).column("content_id")]
    names = [] if pool is None else [pool.ids[i] for i in found.used]
    views = views_of(network.model, table, rows, pool, found.used, settings, seed)
    lists, scores = found.among_used(), found.scores
    return Adapter(network, views, ids, settings, lists=lists, scores=scores, pool_ids=names, seed=seed, **more)


def chunks(model: Embedder, table: Table, rows: np.ndarray, layer: str) -> Iterator[torch.Tensor]:
    """What the layer (or the pixels) of some images hold, in batches for statistics."""
    parts = [rows[part] for part in mixed_parts([str(id_) for id_ in table.take(rows).column("content_id")])]
    if layer == PIXELS:
        yield from squares(model, table, parts)
        return
    below = features_for(model, table, layer=layer)[0]
    for part in parts:
        yield torch.from_numpy(np.asarray(below[part], np.float32))


def named(network: Network, table: Table) -> np.ndarray:
    """The class the network gives every image of a table, as a number."""
    if network.layer == PIXELS:
        count = np.arange(len(table))
        parts = squares(network.model, table, np.split(count, count[256::256]))
        return np.concatenate([predict(network, part)[1].argmax(1) for part in parts])
    out: np.ndarray = predict(network, features_for(network.model, table, layer=network.layer)[0])[1].argmax(1)
    return out


def accuracy(network: Network, table: Table, rows: np.ndarray) -> dict[str, Any]:
    """Percent named right: of all images, of those not adapted to, and of each class."""
    labels, names = table.labels()
    known = {name: place for place, name in enumerate(network.model.card["classes"])}
    right = named(network, table) == np.array([known.get(name, -1) for name in names])[labels]
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    by_class = {name: 100 * float(right[labels == code].mean()) for code, name in enumerate(names)}
    return {
        "accuracy": round(100 * float(right.mean()), 3),
        "unseen": round(100 * float(right[rest].mean()), 3) if len(rest) else None,
        "class_mean": round(float(np.mean(list(by_class.values()))), 3),
        "by_class": {name: round(value, 2) for name, value in by_class.items()},
        "images": len(rows),
    }


# ---- models without a classifier -----------------------------------------------------------------------------------

EmbedderKind = Literal["frozen", "bn", "gallery", "clusters", "contrast"]


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
    """Adapt a model without a classifier; recall@1 and MAP@R (%) on held-out images, and its pseudo-labels.

    Classes come from prototypes of a gallery, from clusters of the target, or from nowhere (contrast alone). The labels
    of the target are used for measuring only.
    """
    codes, names = table.labels()
    aside = held_out(table, settings.held_out_fraction, seed)
    rows = np.flatnonzero(~aside)
    start = model
    if kind == "bn" or (kind != "frozen" and settings.batch_norm != "keep"):
        start = recalibrated(model, chunks(model, table, rows, settings.layer), settings.layer)
    network = Network(copy.deepcopy(start).eval(), settings.layer)
    below = features_for(start, table, layer=settings.layer)[0]
    out: dict[str, Any] = {"images": len(rows), "used": 0}
    if kind not in ("frozen", "bn"):
        learn = target_classes.normalize(predict(network, below[rows])[0])
        truth = np.array(names)[codes[rows]]
        classes, made = _classes(network, gallery, learn, kind, seed)
        network = Network(network.model, settings.layer, prototypes=made)
        ids = [str(id_) for id_ in table.take(rows).column("content_id")]
        found = retrieve(expert, ids, table.take(rows), pool, settings, seed=seed) if pool is not None else None
        friends = target_classes.reciprocal(learn) if made is None else None
        adapter = adapter_for(
            network, table, rows, settings, found, pool, seed, friends=friends, recluster=kind == "clusters"
        )
        out |= {"classes": 0 if made is None else len(made), "used": 0 if found is None else len(found.used)}
        if made is not None:
            out["labels before"] = _label_quality(network, below[rows], truth, classes)
        adapter.run()
        if made is not None:
            out["labels after"] = _label_quality(network, below[rows], truth, classes)
    held = np.flatnonzero(aside)
    scores = retrieval_metrics(predict(network, below[held])[0], codes[held]).mean()
    return {**out, "recall": round(100 * scores["recall@1"], 3), "accuracy": round(100 * scores["map@r"], 3)}


def _classes(
    network: Network, gallery: Table, learn: np.ndarray, kind: EmbedderKind, seed: int
) -> tuple[list[str], torch.Tensor | None]:
    """Names (of a gallery) and prototypes."""
    if kind == "gallery":
        codes, names = gallery.labels()
        rows = predict(network, features_for(network.model, gallery, layer=network.layer)[0])[0]
        return names, torch.from_numpy(target_classes.prototypes(rows, codes, len(names)))
    centers = target_classes.find_clusters(learn, seed=seed).centers if kind == "clusters" else None
    return [], None if centers is None else torch.from_numpy(centers)


def _label_quality(network: Network, below: Any, truth: np.ndarray, names: list[str]) -> dict[str, float]:
    """Of pseudo-labels with the truth: those that are right where they have names, else purity; and NMI."""
    given = predict(network, below)[1].argmax(1)
    kinds, codes = np.unique(truth, return_inverse=True)
    table = np.zeros((int(given.max()) + 1, len(kinds)))
    np.add.at(table, (given, codes), 1)
    right = np.mean(np.array(names)[given] == truth) if names else table.max(1).sum() / len(truth)
    return {
        "right" if names else "purity": round(100 * float(right), 2),
        "nmi": round(100 * normalized_mutual_info_score(codes, given), 2),
    }
