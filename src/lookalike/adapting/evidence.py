"""The evidence on held-out pictures, by labels where there are any, and the gate's decision on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.adapting import gate
from lookalike.adapting.classes import Classes, codes_of
from lookalike.adapting.gate import Decision
from lookalike.adapting.network import TEMPERATURE
from lookalike.adapting.retrieving import embedded
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.neighbours import top_k
from lookalike.evaluation.retrieval import retrieval
from lookalike.models import Embedder

BY_NAMES = "It was judged by the classes it names, not by what it finds: labelled pictures (--judge) tell that."

if TYPE_CHECKING:
    from lookalike.adapting.asked import Asked


def decide(
    models: tuple[Embedder, Embedder, Embedder],
    learn: Table,
    aside: Table,
    asked: Asked,
    classes: Classes,
    *,
    moved: np.ndarray | None,
    expert: Embedder,
    alarm: str | None,
) -> Decision:
    """`models` are the one in use, the anchor and the candidate; `moved` are the candidate's prototypes, if any."""
    if asked.judge is not None or asked.labelled:
        table = aside if asked.judge is None else _unseen(audit(read_table(asked.judge), near=False).table, learn)
        return _by_labels(models[0], models[2], table, classes, asked.seed)
    candidate = models[2]
    if candidate.classifier is None and classes.prototypes is None:
        why = f"there is nothing to judge by: {classes.how}; give labelled pictures with --judge"
        return Decision(False, [why], "without labels")
    p: list[np.ndarray] = []
    for model in models:
        own = moved if model is candidate and moved is not None else classes.of(model)
        rows = model.encode(aside, runtime="torch")
        p.append(probabilities(model, rows, None if model.classifier is not None else own))
    ids = [str(id_) for id_ in aside.column("content_id")]
    eyes = embedded(expert, ids, aside)
    near = top_k(eyes, eyes, min(5, max(1, len(ids) - 1)), exclude=np.arange(len(ids)))[1]
    bn = asked.settings.method == "bn"
    found = gate.without_labels(p[0], p[1], p[2], np.maximum(near, 0), alarm=alarm, anchor_asked=bn)
    return found if candidate.classifier is not None else replace(found, caution=BY_NAMES)


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
