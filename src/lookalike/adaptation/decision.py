"""The evidence on held-out images, by labels where there are any, and the gate's decision on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.adaptation import gate, gate_retrieval, signals
from lookalike.adaptation.gate import Decision
from lookalike.adaptation.gate_retrieval import Seen
from lookalike.adaptation.network import TEMPERATURE
from lookalike.adaptation.pool_vectors import embedded
from lookalike.adaptation.target_classes import Classes, codes_of, names_of
from lookalike.adaptation.view_provider import strong_view
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder
from lookalike.models.inference.runtime_base import eval_mode

if TYPE_CHECKING:
    from lookalike.adaptation.request import AdaptRequest


def decide(
    models: tuple[Embedder, Embedder, Embedder],
    learn: Table,
    aside: Table,
    request: AdaptRequest,
    classes: Classes,
    *,
    expert: Embedder,
    alarm: str | None,
) -> Decision:
    """`models` are the one in use, the anchor and the candidate."""
    now, anchor, candidate = models
    rows = candidate.encode(aside, runtime="torch")
    if not _is_finite(candidate, rows):
        return Decision(False, ["what it learned is not finite: a lower rate may help"], "without labels")
    if request.judge is not None or request.labeled:
        table = aside if request.judge is None else _audited(request.judge)
        others = [] if request.source is None else [_audited(request.source)]
        others += [] if request.gallery is None else [_audited(request.gallery)]
        return _by_labels(now, candidate, _unseen(table, learn, *others), request.seed)
    if candidate.classifier is None:
        return _by_what_it_finds(
            now, Seen(rows, viewed(candidate, aside, request.seed)), aside, request.seed, classes, alarm
        )
    old, beside = (probabilities(model, model.encode(aside, runtime="torch"), None) for model in (now, anchor))
    new = probabilities(candidate, rows, None)
    ids = [str(id_) for id_ in aside.column("content_id")]
    near = np.maximum(signals.nearest(embedded(expert, ids, aside), 5), 0)
    bn = request.settings.method == "bn"
    return gate.without_labels(old, beside, new, near, alarm=alarm, anchor_asked=bn)


def _is_finite(model: Embedder, rows: np.ndarray) -> bool:
    """Whether its weights are numbers, and what it makes of images."""
    told = [rows] if model.classifier is None else [rows, probabilities(model, rows, None)]
    values = [value for value in model.state_dict().values() if value.is_floating_point()]
    return all(bool(torch.isfinite(value).all()) for value in (*values, *map(torch.from_numpy, told)))


def _audited(folder: str) -> Table:
    return audit(read_table(folder), near=False).table


def _unseen(table: Table, *learned: Table) -> Table:
    """Those that were not learned from: an image that was is no evidence."""
    seen = {str(id_) for other in learned for id_ in other.column("content_id")}
    return table.take(np.array([str(id_) not in seen for id_ in table.column("content_id")], bool))


def _by_what_it_finds(
    now: Embedder, after: Seen, aside: Table, seed: int, classes: Classes, alarm: str | None
) -> Decision:
    why = None
    if classes.prototypes is None:
        why = f"there is nothing to judge by: {classes.how}; give labeled images with --judge"
    elif now.classifier is not None:  # it was earned by labels
        why = "the model in use names classes and the adapted one does not; give labeled images with --judge"
    if why:
        return Decision(False, [why], "without labels")
    before = Seen(now.encode(aside, runtime="torch"), viewed(now, aside, seed))
    return gate_retrieval.without_labels(before, after, probabilities(now, before.rows, classes.of(now)), alarm=alarm)


def viewed(model: Embedder, table: Table, seed: int) -> np.ndarray:
    """Vectors of a strong view of each image."""
    found = model.features(table, layer="pooled", view=strong_view(model.preprocess), seed=seed, runtime="torch")
    with eval_mode(model), torch.no_grad():
        return np.asarray(model.from_features(torch.from_numpy(found)).numpy())


def _by_labels(now: Embedder, candidate: Embedder, table: Table, seed: int) -> Decision:
    """Accuracy where both name the classes, each by its own list; else what they find among the images."""
    table = table.take(table.labels()[0] >= 0)
    if not len(table):
        return Decision(False, ["no labeled image is left to judge by that was not learned from"], "labels")
    codes, names = table.labels()
    models = (now, candidate)
    if all(model.classifier is not None and set(names) <= set(names_of(model)) for model in models):
        told = [probabilities(model, model.encode(table, runtime="torch"), None).argmax(1) for model in models]
        right = [
            (own == codes_of(table, names_of(model))).astype(np.float64)
            for own, model in zip(told, models, strict=True)
        ]
        return gate.by_labels(right[0], right[1], seed=seed)
    before, after = (retrieval_metrics(model.encode(table, runtime="torch"), codes).per_query for model in models)
    if not len(before["recall@1"]):
        return Decision(False, ["no held-out image has another one of its class to find"], "labels")
    return gate.by_finding(before, after, seed=seed)


def probabilities(model: Embedder, rows: np.ndarray, prototypes: np.ndarray | None) -> np.ndarray:
    """By the prototypes where they are given, else by the model's classifier."""
    with torch.no_grad():
        x = torch.from_numpy(rows)
        if prototypes is not None:
            logits = x @ torch.from_numpy(prototypes).T / TEMPERATURE
        else:
            assert model.classifier is not None
            logits = model.classifier(x)
        out: np.ndarray = logits.double().softmax(1).numpy()
    return out
