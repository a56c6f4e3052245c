"""Which model a run ends with: measure the candidates on held-out images, select one, save it.

Trained must be better than the starting model and than step 0: a head that only rotates or truncates the features must
not pass for training, nor a trained head for better than the features it was made from (docs/design/training.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lookalike import methods
from lookalike.core.report_blocks import number
from lookalike.core.run import Run
from lookalike.core.seeds import sample_rows
from lookalike.data.table import Table
from lookalike.evaluation.bootstrap import Interval, PairedDifference, bootstrap_interval, paired_test
from lookalike.evaluation.classification import KNN_COUNTS, KNN_NEIGHBORS, KNN_TEMPERATURE, weighted_knn
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import heads, pooling
from lookalike.models.prototypes import Assignment, Prototypes
from lookalike.training import checkpoint
from lookalike.training.loop import TrainingProgress
from lookalike.training.setup import TrainingSetup, starting_model

FROZEN, START, TRAINED, UNDECIDED = "starting model", "step 0", "trained", "undecided"
MEASURES = ("recall@1", "recall@10", "map@r", "r_precision")
CARD_METRICS = ("recall@1", "map@r")
MAX_FACET_ROWS = 10_000
EMBED_ROWS = 8192  # embedded at a time


@dataclass(frozen=True)
class Outcome:
    """Measurements of the starting model, step 0 and the trained model, and which one is kept."""

    measured: dict[str, EvaluatedModel]
    """By name, over the test images; empty when there were none to measure on."""
    rows: np.ndarray
    """The rows of the table that were measured on."""
    gallery: np.ndarray
    """Which of those rows can be found, by their place in `rows`."""
    side: str
    """`test`, or `validation` when there is no test side."""
    differences: dict[str, dict[str, PairedDifference]]
    """Trained against the two others by name, paired by query, whole classes drawn."""
    selected: str
    """The model the run ends with; `undecided`: the starting model, with the trained one saved next to it."""
    message: str
    neighbors: KNNComparison | None = None
    """What decided about a model that was trained without labels."""

    @property
    def better(self) -> bool:
        """Whether the trained model is significantly better than the starting model and than step 0."""
        if self.neighbors is not None:
            return self.neighbors.difference.better
        return bool(self.differences) and all(by["recall@1"].better for by in self.differences.values())

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"selected": self.selected, "better": self.better, "verdict": self.message}
        out["side"] = self.side
        if self.measured:
            result = self.measured[TRAINED].result
            out |= {"queries": len(result.query_index), "test_classes": len(np.unique(result.labels))}
            out["measured"] = {name: {k: m.intervals[k] for k in MEASURES} for name, m in self.measured.items()}
            out["differences"] = self.differences
        if self.neighbors is not None:
            out["knn"] = asdict(self.neighbors)
        return out


def select_model(parts: TrainingSetup, done: TrainingProgress, run: Run) -> Outcome:
    """Measure the three models and select the one the run ends with; `parts.model` is at the best step afterwards."""
    best = checkpoint.read(run.checkpoints / checkpoint.BEST)
    start_head = _start_head(parts, run)
    checkpoint.load_trainable_state(parts.model, best["model"])
    parts.model.eval()
    side, rows = ("test", parts.test) if len(parts.test) else ("validation", parts.validation)
    how = query_gallery_masks(parts.table.take(rows))
    pretrained = not methods.find(parts.settings.method.name).needs_labels
    if len(rows) and pretrained:
        # What was learned without labels may search among what it was learned from.
        queries, rows = rows, np.union1d(parts.known, rows)
        how = {"query": np.isin(rows, queries), "gallery": np.isin(rows, parts.known)}
    gallery = np.flatnonzero(how["gallery"]) if how else np.arange(len(rows))
    measured: dict[str, EvaluatedModel] = {}
    labels = parts.labels[rows]
    if (np.unique(labels[labels >= 0], return_counts=True)[1] >= 2).any():
        vectors = {
            FROZEN: embed_features(parts.first_head, parts.features[rows], parts.first_norm),
            START: embed_features(start_head, parts.features[rows], parts.start_norm),
            TRAINED: _trained(parts, rows),
        }
        measured = {name: EvaluatedModel(name, z, retrieval_metrics(z, labels, **how)) for name, z in vectors.items()}
    outcome = Outcome(measured, rows, gallery, side, _differences(measured), TRAINED, "")
    if pretrained:
        return _select_pretrained(outcome, parts, best, how)
    if parts.settings.keep == "better" and (done.best_step == 0 or not outcome.better) and measured:
        outcome = replace(outcome, selected=FROZEN)
    return replace(outcome, message=_message(outcome, done, parts.settings.steps))


def _select_pretrained(
    outcome: Outcome, parts: TrainingSetup, best: Mapping[str, Any], how: Mapping[str, Any]
) -> Outcome:
    """Select by k-NN accuracy on held-out images; without labeled images the result is undecided."""
    if not outcome.measured:
        selected, result = TRAINED, "The trained model is kept, as requested."
        if parts.settings.keep != "trained":
            selected = UNDECIDED
            result = f"The starting model stays the default, and the trained one is kept beside it (`{TRAINED}`)."
        message = f"Undecided: there are no labeled images to measure on. {result}"
        return replace(outcome, selected=selected, message=message)
    vectors = {name: model.vectors for name, model in outcome.measured.items() if name != START}
    vectors |= {name: _trained(parts, outcome.rows) for name in iterate_extra_models(parts, best)}
    knn = compare_knn(vectors, parts.labels[outcome.rows], how["gallery"], how["query"])
    selected = TRAINED if knn.difference.better or parts.settings.keep == "trained" else FROZEN
    return replace(outcome, neighbors=knn, selected=selected, message=knn.message(selected == TRAINED))


def _differences(measured: dict[str, EvaluatedModel]) -> dict[str, dict[str, PairedDifference]]:
    def against(name: str, key: str) -> PairedDifference:
        before, after = measured[name].result, measured[TRAINED].result
        return paired_test(before.per_query[key], after.per_query[key], groups=after.labels)

    return {name: {key: against(name, key) for key in MEASURES} for name in (FROZEN, START) if name in measured}


def _message(outcome: Outcome, done: TrainingProgress, steps: int) -> str:
    if not outcome.measured:
        return "There are no labeled images to measure on; the trained model is kept unmeasured."
    end = "" if outcome.selected == TRAINED else " The starting model is kept."
    if done.best_step == 0 and steps:
        return f"Step 0 was the best on the validation images: training did not help.{end}"
    over = {name: _points(outcome.differences[name]["recall@1"]) for name in (FROZEN, START)}
    where = f"on {len(outcome.measured[TRAINED].result.query_index):,} {outcome.side} images"
    start = "Training helped" if outcome.better else "Training was not shown to help"
    return f"{start}: recall@1 {over[FROZEN]} over the {FROZEN} and {over[START]} over step 0, {where}.{end}"


def _points(change: PairedDifference) -> str:
    """A difference in percent with its interval, as `+3.0 points (+1.2 to +4.9)`."""
    value, low, high = (number(100 * v, 1, signed=True) for v in (change.difference, change.low, change.high))
    return f"{value} points ({low} to {high})"


def query_gallery_masks(table: Table) -> dict[str, Any]:
    """Query and gallery masks for `retrieval`, if the table separates them; else empty."""
    if table.has("is_query") and table.has("is_gallery"):
        query, gallery = (table.column(name).astype(bool) for name in ("is_query", "is_gallery"))
        if query.any() and gallery.any() and not (query.all() and gallery.all()):
            return {"query": query, "gallery": gallery}
    return {}


def _start_head(parts: TrainingSetup, run: Run) -> nn.Module:
    if parts.settings.head.kind == "none":
        return nn.Identity()
    path = run.checkpoints / checkpoint.START
    if not path.exists():  # the starting model came with a head: step 0 is the starting model
        return parts.first_head
    state = checkpoint.read(path)["head"]
    head = nn.Linear(state["weight"].shape[1], state["weight"].shape[0])
    head.load_state_dict(state)
    trained = parts.model.head
    return heads.BlockLinear.from_linear(head, trained.blocks) if isinstance(trained, heads.BlockLinear) else head


@torch.no_grad()
def embed_features(head: nn.Module, features: np.ndarray, norm: nn.Module | None = None) -> np.ndarray:
    """Unit embeddings (n, d) that a head, and a norm layer after it, make of pooled features (n, feature_dim)."""
    device, out = next((p.device for p in head.parameters()), None), []
    for start in range(0, len(features), EMBED_ROWS):
        rows = pooling.unit(torch.from_numpy(np.array(features[start : start + EMBED_ROWS], np.float32)).to(device))
        for layer in (head, norm):
            if layer is not None and not isinstance(layer, nn.Identity):
                rows = pooling.unit(layer.eval()(rows))
        out.append(rows.cpu().numpy())
    return np.concatenate(out)


def _trained(parts: TrainingSetup, rows: np.ndarray) -> np.ndarray:
    views = parts.settings.views
    if views.mode == "cached" and views.layer == "pooled":
        return embed_features(parts.model.head, parts.features[rows], parts.model.norm)
    return parts.model.encode(parts.table.take(rows), runtime="torch", progress=True)


@dataclass(frozen=True)
class KNNComparison:
    """k-NN accuracy on held-out images of models trained without labels."""

    accuracy: dict[str, dict[int, float]]
    """By model and number of neighbors."""
    intervals: dict[str, Interval]
    """For 20 neighbors, bootstrapped over classes."""
    difference: PairedDifference
    """Trained minus start, paired by image."""
    images: int

    def message(self, use_trained: bool) -> str:
        points = _points(self.difference)
        summary = f"k-NN accuracy {points} over the starting model, on {self.images:,} held-out images"
        if self.difference.better:
            return f"Pretraining helped: {summary}."
        result = "The trained model is kept, as requested." if use_trained else "The starting model is kept."
        return f"Pretraining was not shown to help: {summary}. {result}"


def compare_knn(
    vectors: Mapping[str, np.ndarray], labels: np.ndarray, known: np.ndarray, held_out: np.ndarray
) -> KNNComparison:
    """Classify held-out images by the labels of their neighbors, with each model.

    `vectors` are unit embeddings (n, d) by model name; `known` and `held_out` are masks of their rows.
    """
    accuracy, right = {}, {}
    for name, rows in vectors.items():
        sides = (rows[known], labels[known], rows[held_out], labels[held_out])
        result = weighted_knn(*sides, k=KNN_COUNTS, temperature=KNN_TEMPERATURE)
        accuracy[name] = result.accuracy
        right[name] = (result.predicted[KNN_NEIGHBORS] == labels[held_out]).astype(float)
    groups = labels[held_out]
    bands = {name: bootstrap_interval(values, groups=groups) for name, values in right.items()}
    change = paired_test(right[FROZEN], right[TRAINED], groups=groups)
    return KNNComparison(accuracy, bands, change, int(held_out.sum()))


def iterate_extra_models(parts: TrainingSetup, best: Mapping[str, Any]) -> Iterator[str]:
    """Names of the networks saved next to the selected one; the model holds the weights of each in turn."""
    for name, state in best.get("beside", {}).items():
        checkpoint.load_trainable_state(parts.model, state)
        yield name
    checkpoint.load_trainable_state(parts.model, best["model"])


class PrototypeFacet(NamedTuple):
    """Table rows of training images, the prototypes with two or more of them, and the assignment of each row."""

    rows: np.ndarray
    prototypes: Prototypes
    assigned: Assignment


def prototype_facet(parts: TrainingSetup, tensors: Mapping[str, Tensor]) -> PrototypeFacet | None:
    """Assign training images to prototypes with the present model; prototypes with one image are dropped."""
    if not tensors:
        return None
    rows = sample_rows(parts.train, MAX_FACET_ROWS, parts.settings.data.split_seed, "facet")
    features = parts.model.features(parts.table.take(rows), runtime="torch", progress=True)
    prototypes = Prototypes(tensors).select_used(features)
    return PrototypeFacet(rows, prototypes, prototypes.assign(features)) if len(prototypes) else None


def save_models(run: Run, parts: TrainingSetup, outcome: Outcome, done: TrainingProgress) -> PrototypeFacet | None:
    """Save the models of a run as folders, with their results in the model card.

    `model` is the selected one. A model trained without labels is saved as `trained` if it is not selected, and a
    student whose teacher is selected as `student`. Returns the prototypes of the trained model, if it has any.
    """
    settings = parts.settings
    best = checkpoint.read(run.checkpoints / checkpoint.BEST)
    model = parts.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.requires_grad_(True)
    model.name, model.parent = run.path.name, parts.parent
    how = f"{settings.method.name}, step {done.best_step} of {settings.steps}, seed {settings.seed}"
    card = _card(parts, outcome)
    for name in iterate_extra_models(parts, best):
        model.save_pretrained(run.path / name, card={**card, "method": f"{how}, {name}"})
    facet = prototype_facet(parts, best.get("keepsakes", {}))
    if facet is not None:
        model.prototypes = facet.prototypes
    if outcome.selected == TRAINED:
        model.save_pretrained(run.model, card={**card, "method": how})
        return facet
    if not methods.find(settings.method.name).needs_labels:
        model.save_pretrained(run.path / TRAINED, card={**card, "method": how})
    starting_model(settings, parts.device).save_pretrained(run.model, card=card)
    return facet


def _card(parts: TrainingSetup, outcome: Outcome) -> dict[str, Any]:
    results = []
    for name, model in outcome.measured.items():
        title = f"{name} (this one)" if name == outcome.selected else name
        results.append({"model": title, **{k: model.intervals[k].to_json() for k in CARD_METRICS}})
    classes = f" of {parts.classes:,} classes" if parts.classes else ""
    data = f"{parts.table.name}: {len(parts.train):,} images{classes}"
    where = f"{len(outcome.rows):,} {outcome.side} images of the same collection"
    return {"data": data, "results": results, "limits": f"Evaluated on {where}. {outcome.message}"}
