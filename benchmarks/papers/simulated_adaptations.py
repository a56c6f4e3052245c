"""Simulated adaptations on cached features, helpful and harmful: a model of one domain, adapted to another.

`simulate` is one cell of a gate's benchmark: all recipes on one shift and seed, with the gate's signals on held-out
images and the gain by the labels of all images that were not learned from.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.papers import t3ar_measure
from benchmarks.papers.t3ar_measure import predict
from benchmarks.papers.t3ar_protocols import SMALL
from lookalike.adaptation import gate, target_classes
from lookalike.adaptation.pool import nearest, no_retrievals
from lookalike.adaptation.pool_vectors import embedded
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.task import AdaptTask, CachedViews, mixed_parts, recalibrated, target_views, to_tensor
from lookalike.core.device import CPU
from lookalike.core.seeds import numpy_rng
from lookalike.data import Table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder

SCALE: dict[str, Any] = SMALL
"""As the claims have it: the defaults of `adapt`."""
LEARN, HELD_OUT = 700, 300
"""Images of the target that are adapted to, and that the gate judges by; all but the former judge the gate."""
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
EXPERT = "efficientnet_lite2"
CLUSTERS = 8  # as many as `adapt` finds in the domains of PACS
HELP = ("bn", "tent", "shot", "t3ar", "adacontrast")
_CONTRAST_ALONE: dict[str, Any] = {"lr": 3e-3, "weights": {"labels": 0.0}}
# What each recipe changes in the settings; those not of HELP are made to do harm, in grades.
RECIPES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in HELP},
    "rate x 30": {"method": "shot", "lr": 3e-2},
    "entropy alone": {"method": "tent", "lr": 1e-2, "steps": 240},
    "sorted batches": {"contrast": {"pool_set": "none"}, "batch_size": 8, "stream": True, "lr": 3e-3},
    "shuffled labels": {"method": "finetune", "lr": 1e-3},
    "pool of noise": {"contrast": {"pool_set": "all", "exclusion": "none"}, **_CONTRAST_ALONE},
    "pool is the target": {
        "contrast": {"pool_set": "all", "exclusion": "none", "exclude_class": False},
        **_CONTRAST_ALONE,
    },
    "swapped": {"method": "shot"},  # a good adaptation but for two classes
    "merged": {"method": "shot"},
}
GRADED = ("entropy alone", "sorted batches", "pool of noise", "pool is the target")
GRADES = (1.0, 0.3, 0.1, 0.03)


@dataclass(frozen=True)
class Features:
    """What the layer holds of images under views, and their labels."""

    table: Table
    ids: list[str]
    arrays: dict[str, np.ndarray]
    labels: np.ndarray

    @property
    def center(self) -> np.ndarray:
        return self.arrays["center"][0]

    def take(self, rows: np.ndarray) -> Features:
        arrays = {kind: array[:, rows] for kind, array in self.arrays.items()}
        return Features(self.table.take(rows), [self.ids[i] for i in rows], arrays, self.labels[rows])


@cache
def domain_features(data: str, domain: str) -> Features:
    """Features of a domain of PACS, made once; the claims use the same."""
    table = t3ar_measure.domain(Path(data) / "pacs", "pacs", domain)
    backbone = Embedder.from_pretrained(SCALE["model"], size=SCALE["size"], device=CPU)
    views: Any = target_views(backbone, SCALE["adapt"]["layer"], table, ("weak", "strong"))
    return Features(table, t3ar_measure.content_ids(table), dict(views.arrays), table.labels()[0])


@cache
def source_model(data: str, domain: str, seed: int) -> Embedder:
    """A classifier of a domain, made once."""
    return t3ar_measure.source_model(t3ar_measure.domain(Path(data) / "pacs", "pacs", domain), seed, SCALE)


def settings_of(recipe: str, grade: int = 0) -> AdaptSettings:
    """What a recipe is run with. Harm comes in grades: from ruin to what is hard to see."""
    over = dict(RECIPES[recipe])
    if recipe in GRADED:
        over["lr"] *= GRADES[grade % len(GRADES)]
    return t3ar_measure.settings_for(SCALE, over)


def split_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows held out for the gate, rows to learn from, and all but the latter; of few images three tenths are held."""
    order = numpy_rng(seed, "held out").permutation(count)
    held = min(HELD_OUT, round(0.3 * count))
    learn = order[held : held + LEARN]
    return np.sort(order[:held]), np.sort(learn), np.setdiff1d(order, learn)


def adapted(
    base: Embedder,
    learn: Features,
    pool: list[Features],
    recipe: str,
    seed: int,
    grade: int,
    *,
    centers: np.ndarray | None = None,
    moving: bool = False,
) -> tuple[Embedder, str | None]:
    """The adapted model, and what the stream alarm says. `centers` are prototypes; `moving`: of clusters."""
    settings, layer = settings_of(recipe, grade), SCALE["adapt"]["layer"]
    if settings.method == "bn":
        parts = [to_tensor(learn.center[part]) for part in mixed_parts(learn.ids)]
        return recalibrated(base, parts, layer), None
    if settings.stream:  # one class at a time in truth; what the model makes of them is for the alarm to see
        learn = learn.take(np.argsort(learn.labels, kind="stable"))
    rng = numpy_rng(seed, recipe)
    rows, seen = predict(base, layer, learn.center, centers)
    predicted = seen.argmax(1)
    retrieved, outside, labels, names = no_retrievals(len(rows), 0), learn.center[:0], None, list[str]()
    if recipe == "t3ar":
        inputs, ids = np.concatenate([part.center for part in pool]), [id_ for part in pool for id_ in part.ids]
        retrieved = nearest(rows, predict(base, layer, inputs)[0], learn.ids, ids, settings.num_neighbors)
        outside, names = inputs[retrieved.used], [ids[i] for i in retrieved.used]
    elif recipe == "pool of noise":
        mean, spread = learn.center.mean(0, np.float32), learn.center.std(0, np.float32)
        outside = (mean + spread * rng.standard_normal(learn.center.shape)).astype(np.float32)
    elif recipe == "pool is the target":
        outside = learn.center
    elif recipe == "shuffled labels":
        some = rng.random(len(predicted)) < (0.7, 0.5, 0.35, 0.2)[grade % len(GRADES)]
        labels = predicted.copy()
        labels[some] = rng.permutation(labels[some])
    neighbors, scores = retrieved.among_used(), retrieved.scores
    if len(outside) and not names:
        names = [f"outside-{i}" for i in range(len(outside))]
        neighbors, scores = rng.integers(0, len(outside), (len(rows), 2)), np.full((len(rows), 2), 0.5)
    model = copy.deepcopy(base)
    task = AdaptTask(
        settings,
        model,
        layer,
        learn.ids,
        lambda kinds: CachedViews(layer, learn.arrays, kinds, seed=seed),
        true_labels=labels,
        prototypes=centers,
        recluster=moving,
        neighbors=neighbors,
        scores=scores,
        pool_ids=names,
        pool=(lambda places: to_tensor(outside[places])) if len(outside) else None,
        seed=seed,
    )
    alarm = None
    if settings.stream:
        size = settings.batch_size
        alarm = gate.stream_alarm([predicted[i : i + size] for i in range(0, len(predicted), size)], seed=seed)
    t3ar_measure.train(task)
    return model.eval(), alarm


def simulate(
    *, data: str, source: str, target: str, seed: int, grade: int, classifier: bool, recipes: list[str]
) -> list[dict[str, Any]]:
    """All recipes on one shift and seed: the gain on unseen images, and the gate's signals without labels.

    Args:
        data: Folder of the data sets.
        source: Domain that the model was trained on.
        target: Domain that it is adapted to.
        seed: Seed of the model, the split and the adaptations.
        grade: How much harm the recipes made for it do, which classes are changed, and where prototypes come from.
        classifier: Judge classifiers; else embedders without their classifier.
        recipes: Names of recipes.

    Returns:
        A row for each recipe: `gain` (accuracy or MAP@R), the signals, and the alarm.
    """
    torch.set_num_threads(1)
    base = copy.deepcopy(source_model(data, source, seed))
    every = domain_features(data, target)
    pool = [domain_features(data, name) for name in DOMAINS if name not in ("photo", source, target)]
    held, learned, unseen = split_rows(len(every.ids), seed)
    aside, learn, layer = every.take(held), every.take(learned), SCALE["adapt"]["layer"]
    labels, at = every.labels[unseen], np.searchsorted(unseen, held)
    centers, moving = None, False
    if not classifier:
        base.classifier = None
        centers, moving = _prototypes(base, data, source, learn, seed, grade)
    before, reported = predict(base, layer, every.center[unseen])
    vectors = embedded(Embedder.from_pretrained(EXPERT, device=CPU), aside.ids, aside.table)
    rows, shot = [], None
    for recipe in recipes:
        if recipe not in CHANGES or shot is None:
            model, alarm = adapted(base, learn, pool, recipe, seed, grade, centers=centers, moving=moving)
        else:  # the same model, whose predictions are changed
            model, alarm = shot
        shot = (model, alarm) if recipe == "shot" else shot
        after, now = predict(model, layer, every.center[unseen])
        if classifier:
            now = CHANGES[recipe](now, grade) if recipe in CHANGES else now
            right = [float((p.argmax(1) == labels).mean()) for p in (reported, now)]
            figures = gate.classifier_signals(reported[at], now[at], vectors)
        else:
            right = [retrieval_metrics(own, labels).mean()["map@r"] for own in (before, after)]
            figures = gate.embedder_signals(before[at], after[at], vectors)
        figures |= {"gain": right[1] - right[0], "before": right[0]}
        numbers = {name: round(float(value), 6) for name, value in figures.items()}
        rows.append({"source": source, "target": target, "seed": seed, "recipe": recipe, "alarm": alarm, **numbers})
    return rows


def _prototypes(
    base: Embedder, data: str, source: str, learn: Features, seed: int, grade: int
) -> tuple[np.ndarray, bool]:
    """Of labeled images of the source, or of clusters of the target, in turns by the grade; and whether they move."""
    layer = SCALE["adapt"]["layer"]
    if grade % 2:
        gallery = domain_features(data, source)
        inside = predict(base, layer, gallery.center)[0]
        return target_classes.prototypes(inside, gallery.labels, int(gallery.labels.max()) + 1), False
    rows = target_classes.normalize(predict(base, layer, learn.center)[0])
    return target_classes.spherical(rows, CLUSTERS, seed=seed), True


def _pair(p: np.ndarray, grade: int) -> tuple[int, int]:
    """Two classes that follow each other by how much they are predicted; which two, the grade says."""
    first = grade % (p.shape[1] - 1)
    a, b = np.argsort(-p.sum(0), kind="stable")[first : first + 2]
    return int(a), int(b)


def _swapped(p: np.ndarray, grade: int) -> np.ndarray:
    """Two classes exchanged."""
    a, b = _pair(p, grade)
    out = p.copy()
    out[:, [a, b]] = p[:, [b, a]]
    return out


def _merged(p: np.ndarray, grade: int) -> np.ndarray:
    """A class given to another."""
    a, b = _pair(p, grade)
    out = p.copy()
    out[:, a] += out[:, b]
    out[:, b] = 0.0
    return out


CHANGES = {"swapped": _swapped, "merged": _merged}
