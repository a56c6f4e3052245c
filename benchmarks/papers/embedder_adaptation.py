"""How a model without a classifier is adapted, and how good its pseudo-labels are: measured on labeled images.

Classes come from prototypes of a gallery, from clusters of the target, or from nowhere (contrast alone). What counts is
retrieval among images that were not adapted to; the labels of the target are used for measuring only.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import torch
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.papers import t3ar_measure
from lookalike.adaptation import target_classes
from lookalike.adaptation.adapter import predict
from lookalike.adaptation.network import Network, recalibrated
from lookalike.adaptation.pool import Pool
from lookalike.adaptation.pool_vectors import retrieve
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.trial import held_out
from lookalike.data import Table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder, features_for

Kind = Literal["frozen", "bn", "gallery", "clusters", "contrast"]


def measured(
    model: Embedder,
    table: Table,
    gallery: Table,
    kind: Kind,
    settings: AdaptSettings,
    *,
    pool: Pool | None,
    expert: Embedder,
    seed: int = 0,
) -> dict[str, Any]:
    """recall@1 and MAP@R (%) on images kept apart, and the pseudo-labels of the others before and after."""
    codes, names = table.labels()
    aside = held_out(table, settings.held_out_fraction, seed)
    rows = np.flatnonzero(~aside)
    start = model
    if kind == "bn" or (kind != "frozen" and settings.batch_norm != "keep"):
        start = recalibrated(model, t3ar_measure.chunks(model, table, rows, settings.layer), settings.layer)
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
        adapter = t3ar_measure.adapter_for(
            network, table, rows, settings, found, pool, seed, friends=friends, recluster=kind == "clusters"
        )
        out |= {"classes": 0 if made is None else len(made), "used": 0 if found is None else len(found.used)}
        if made is not None:
            out["labels before"] = _agreement(network, below[rows], truth, classes)
        adapter.run()
        if made is not None:
            out["labels after"] = _agreement(network, below[rows], truth, classes)
    kept = np.flatnonzero(aside)
    scores = retrieval_metrics(predict(network, below[kept])[0], codes[kept]).mean()
    return {**out, "recall": round(100 * scores["recall@1"], 3), "accuracy": round(100 * scores["map@r"], 3)}


def _classes(
    network: Network, gallery: Table, learn: np.ndarray, kind: Kind, seed: int
) -> tuple[list[str], torch.Tensor | None]:
    """Names (of a gallery) and prototypes."""
    if kind == "gallery":
        codes, names = gallery.labels()
        rows = predict(network, features_for(network.model, gallery, layer=network.layer)[0])[0]
        return names, torch.from_numpy(target_classes.prototypes(rows, codes, len(names)))
    centers = target_classes.find_clusters(learn, seed=seed).centers if kind == "clusters" else None
    return [], None if centers is None else torch.from_numpy(centers)


def _agreement(network: Network, below: Any, truth: np.ndarray, names: list[str]) -> dict[str, float]:
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
