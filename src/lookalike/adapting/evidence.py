"""The evidence on held-out pictures, by labels where there are any, and the gate's decision on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.adapting import finding, gate, signals
from lookalike.adapting.classes import Classes, codes_of
from lookalike.adapting.finding import Seen
from lookalike.adapting.gate import Decision
from lookalike.adapting.network import TEMPERATURE
from lookalike.adapting.retrieving import embedded
from lookalike.adapting.supply import strong_view
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.retrieval import retrieval
from lookalike.models import Embedder
from lookalike.models.program import evaluating

if TYPE_CHECKING:
    from lookalike.adapting.asked import Asked


def decide(
    models: tuple[Embedder, Embedder, Embedder],
    learn: Table,
    aside: Table,
    asked: Asked,
    classes: Classes,
    *,
    expert: Embedder,
    alarm: str | None,
) -> Decision:
    """`models` are the one in use, the anchor and the candidate."""
    now, anchor, candidate = models
    rows = candidate.encode(aside, runtime="torch")
    if not np.isfinite(rows).all():
        return Decision(False, ["what it learnt is not finite: a lower rate may help"], "without labels")
    if asked.judge is not None or asked.labelled:
        table = aside if asked.judge is None else _unseen(audit(read_table(asked.judge), near=False).table, learn)
        return _by_labels(now, candidate, table, classes, asked.seed)
    if candidate.classifier is None:
        why = None
        if classes.prototypes is None:
            why = f"there is nothing to judge by: {classes.how}; give labelled pictures with --judge"
        elif now.classifier is not None:  # it was earned by labels
            why = "the model in use names classes and the adapted one does not; give labelled pictures with --judge"
        if why:
            return Decision(False, [why], "without labels")
        before = Seen(now.encode(aside, runtime="torch"), _viewed(now, aside, asked.seed))
        after = Seen(rows, _viewed(candidate, aside, asked.seed))
        return finding.without_labels(before, after, probabilities(now, before.rows, classes.of(now)), alarm=alarm)
    old, beside = (probabilities(model, model.encode(aside, runtime="torch"), None) for model in (now, anchor))
    new = probabilities(candidate, rows, None)
    ids = [str(id_) for id_ in aside.column("content_id")]
    near = np.maximum(signals.nearest(embedded(expert, ids, aside), 5), 0)
    bn = asked.settings.method == "bn"
    return gate.without_labels(old, beside, new, near, alarm=alarm, anchor_asked=bn)


def _viewed(model: Embedder, table: Table, seed: int) -> np.ndarray:
    """Vectors of a strong view of each picture."""
    found = model.features(table, layer="pooled", view=strong_view(model.preprocess), seed=seed, runtime="torch")
    with evaluating(model), torch.no_grad():
        return np.asarray(model.from_features(torch.from_numpy(found)).numpy())


def _unseen(table: Table, learn: Table) -> Table:
    """Those that were not learnt from: a picture that was is no evidence."""
    seen = {str(id_) for id_ in learn.column("content_id")}
    return table.take(np.array([str(id_) not in seen for id_ in table.column("content_id")], bool))


def _by_labels(now: Embedder, candidate: Embedder, table: Table, classes: Classes, seed: int) -> Decision:
    """Accuracy where both name the classes, else recall@1 among the pictures."""
    table = table.take(table.labels()[0] >= 0)
    if not len(table):
        return Decision(False, ["no labelled picture is left to judge by that was not learnt from"], "labels")
    codes, names = table.labels()
    naming = all(m.classifier is not None for m in (now, candidate)) and set(names) <= set(classes.names)
    right = []
    for model in (now, candidate):
        rows = model.encode(table, runtime="torch")
        if naming:
            hits = probabilities(model, rows, None).argmax(1) == codes_of(table, classes.names)
            right.append(hits.astype(np.float64))
        else:
            right.append(retrieval(rows, codes).per_query["recall@1"])
    if not len(right[0]):
        return Decision(False, ["no held-out picture has another one of its class to find"], "labels")
    return gate.by_labels(right[0], right[1], measure="accuracy" if naming else "recall@1", seed=seed)


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
