"""What a run was worth: the starting model, step 0 and the trained model on images none of them trained on.

"Better" means better than both: a head that only rotates or cuts the features must not pass for training,
and a trained head must not pass for better than the features it was made from (docs/decisions/0053).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lookalike import methods
from lookalike.core.report_blocks import number
from lookalike.core.run import Run
from lookalike.data.table import Table
from lookalike.evaluation.bootstrap import Paired, paired
from lookalike.evaluation.query_images import Measured
from lookalike.evaluation.retrieval import retrieval
from lookalike.models.heads import BlockLinear
from lookalike.models.pooling import unit
from lookalike.training import checkpoint
from lookalike.training.knn_eval import Neighbors, compare_neighbors, put_beside
from lookalike.training.loop import TrainingProgress
from lookalike.training.setup import Assembly

FROZEN, START, TRAINED, UNDECIDED = "starting model", "step 0", "trained", "undecided"
MEASURES = ("recall@1", "recall@10", "map@r", "r_precision")


@dataclass(frozen=True)
class Outcome:
    measured: dict[str, Measured]
    """By name, over the test images; empty when there were none to measure on."""
    rows: np.ndarray
    """The rows of the table that were measured on."""
    gallery: np.ndarray
    """Which of those rows can be found, by their place in `rows`."""
    side: str
    """`test`, or `validation` when there is no test side."""
    differences: dict[str, dict[str, Paired]]
    """Trained against the two others by name, paired by query, whole classes drawn."""
    kept: str
    """Whose model the run ends with; `undecided`: the starting one, with the trained one beside it."""
    sentence: str
    neighbors: Neighbors | None = None
    """What decided about a model that was trained without labels."""

    @property
    def better(self) -> bool:
        """Trained is better than the starting model and than step 0, beyond chance."""
        if self.neighbors is not None:
            return self.neighbors.difference.better
        return bool(self.differences) and all(found["recall@1"].better for found in self.differences.values())

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kept": self.kept, "better": self.better, "verdict": self.sentence, "side": self.side}
        if self.measured:
            result = self.measured[TRAINED].result
            out |= {
                "queries": len(result.query_index),
                "test_classes": len(np.unique(result.labels)),
                "measured": {name: {k: m.intervals[k] for k in MEASURES} for name, m in self.measured.items()},
                "differences": self.differences,
            }
        if self.neighbors is not None:
            out["knn"] = self.neighbors.to_json()
        return out


def judge(parts: Assembly, done: TrainingProgress, run: Run) -> Outcome:
    """Measure the three, decide which is kept; the model in `parts` holds the best step's weights afterwards."""
    best = checkpoint.read(run.checkpoints / checkpoint.BEST)
    start_head = _start_head(parts, run)
    checkpoint.put_back(parts.model, best["model"])
    parts.model.eval()
    side, rows = ("test", parts.test) if len(parts.test) else ("validation", parts.validation)
    how = protocol(parts.table.take(rows))
    pretrained = not methods.find(parts.settings.method.name).needs_labels
    if len(rows) and pretrained:
        # What was learned without labels may search among what it was learned from.
        asked, rows = rows, np.union1d(parts.known, rows)
        how = {"query": np.isin(rows, asked), "gallery": np.isin(rows, parts.known)}
    gallery = np.flatnonzero(how["gallery"]) if how else np.arange(len(rows))
    measured: dict[str, Measured] = {}
    if len(rows) and _pairs(parts.labels[rows]):
        vectors = {
            FROZEN: head_rows(parts.first_head, parts.features[rows], parts.first_norm),
            START: head_rows(start_head, parts.features[rows], parts.start_norm),
            TRAINED: _trained(parts, rows),
        }
        labels = parts.labels[rows]
        for name, found in vectors.items():
            measured[name] = Measured(name, found, retrieval(found, labels, **how))
    outcome = Outcome(measured, rows, gallery, side, _differences(measured), TRAINED, "")
    if pretrained:
        return decided(outcome, parts, best, how)
    if parts.settings.keep == "better" and (done.best_step == 0 or not outcome.better) and measured:
        outcome = replace(outcome, kept=FROZEN)
    return replace(outcome, sentence=_sentence(outcome, done, parts.settings.steps))


def decided(outcome: Outcome, parts: Assembly, best: Mapping[str, Any], how: Mapping[str, Any]) -> Outcome:
    """k-NN on the held-out images decides about what was learned without labels; without any nothing does."""
    if not outcome.measured:
        kept = TRAINED if parts.settings.keep == "trained" else UNDECIDED
        told = "Undecided: there are no labeled images to measure on. "
        told += (
            "The trained model is kept, as was asked for."
            if kept == TRAINED
            else f"The starting model stays the default, and the trained one is kept beside it (`{TRAINED}`)."
        )
        return replace(outcome, kept=kept, sentence=told)
    vectors = {name: found.rows for name, found in outcome.measured.items() if name != START}
    for name in put_beside(parts, best):
        vectors[name] = _trained(parts, outcome.rows)
    labels = parts.labels[outcome.rows]
    found = compare_neighbors(vectors, labels, how["gallery"], how["query"], before=FROZEN, after=TRAINED)
    kept = TRAINED if found.difference.better or parts.settings.keep == "trained" else FROZEN
    return replace(outcome, neighbors=found, kept=kept, sentence=found.sentence(kept == TRAINED))


def _differences(measured: dict[str, Measured]) -> dict[str, dict[str, Paired]]:
    if not measured:
        return {}
    after = measured[TRAINED].result

    def against(name: str, key: str) -> Paired:
        return paired(measured[name].result.per_query[key], after.per_query[key], groups=after.labels)

    return {name: {key: against(name, key) for key in MEASURES} for name in (FROZEN, START)}


def _sentence(outcome: Outcome, done: TrainingProgress, steps: int) -> str:
    if not outcome.measured:
        return "There are no labeled images to measure on; the trained model is kept unmeasured."
    end = "" if outcome.kept == TRAINED else " The starting model is kept."
    if done.best_step == 0 and steps:
        return f"Step 0 was the best on the validation images: training did not help.{end}"
    parts = []
    for name in (FROZEN, START):
        change = outcome.differences[name]["recall@1"]
        low, value, high = (number(100 * v, 1, signed=True) for v in (change.low, change.difference, change.high))
        parts.append(
            f"{value} points ({low} to {high}) over the {name}"
            if name == FROZEN
            else f"{value} ({low} to {high}) over step 0"
        )
    where = f"on {len(outcome.measured[TRAINED].result.query_index):,} {outcome.side} images"
    told = f"recall@1 {parts[0]} and {parts[1]}, {where}"
    if outcome.better:
        return f"Training helped: {told}.{end}"
    return f"Training was not shown to help: {told}.{end}"


def _pairs(labels: np.ndarray) -> bool:
    return bool((np.unique(labels[labels >= 0], return_counts=True)[1] >= 2).any())


def protocol(table: Table) -> dict[str, Any]:
    """Query and gallery, where the table parts them."""
    if table.has("is_query") and table.has("is_gallery"):
        query, gallery = (table.column(name).astype(bool) for name in ("is_query", "is_gallery"))
        if query.any() and gallery.any() and not (query.all() and gallery.all()):
            return {"query": query, "gallery": gallery}
    return {}


def _start_head(parts: Assembly, run: Run) -> nn.Module:
    if parts.settings.head.kind == "none":
        return nn.Identity()
    path = run.checkpoints / checkpoint.START
    if not path.exists():  # the starting model came with a head: step 0 is the starting model
        return parts.first_head
    state = checkpoint.read(path)["head"]
    head = nn.Linear(state["weight"].shape[1], state["weight"].shape[0])
    head.load_state_dict(state)
    trained = parts.model.head
    return BlockLinear.of(head, trained.blocks) if isinstance(trained, BlockLinear) else head


@torch.no_grad()
def head_rows(head: nn.Module, features: np.ndarray, norm: nn.Module | None = None, size: int = 8192) -> np.ndarray:
    """Unit embeddings that a head, and a norm layer behind it, make of pooled features."""
    norm = None if norm is None or isinstance(norm, nn.Identity) else norm.eval()
    device = next((p.device for p in head.parameters()), None)
    out = []
    for start in range(0, len(features), size):
        rows = unit(torch.from_numpy(np.array(features[start : start + size], np.float32)).to(device))
        rows = rows if isinstance(head, nn.Identity) else unit(head(rows))
        out.append((rows if norm is None else unit(norm(rows))).cpu().numpy())
    return np.concatenate(out)


def _trained(parts: Assembly, rows: np.ndarray) -> np.ndarray:
    views = parts.settings.views
    if views.mode == "cached" and views.layer == "pooled":
        return head_rows(parts.model.head, parts.features[rows], parts.model.norm)
    found: np.ndarray = parts.model.encode(parts.table.take(rows), runtime="torch", progress=True)
    return found
