"""The gate: whether an adapted model may replace the previous one.

Labeled evidence comes first: a paired bootstrap on held-out images. Without labels an independent frozen expert judges,
never the adapted model's own signals: an embedder by how well it retrieves within the expert's clusters, a classifier
by what its predictions tell about the expert's neighborhoods. In doubt the previous model stays.
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from lookalike.adaptation.pool import content_ids
from lookalike.adaptation.pool_vectors import embedded
from lookalike.adaptation.settings import AdaptRequest
from lookalike.adaptation.target_classes import codes_of, names_of, normalize, spherical
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.core.report_blocks import number
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import Settings
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.bootstrap import paired_test
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder
from lookalike.models.backbones import BUILTIN

Array = np.ndarray
EXPERTS = ("efficientnet_lite2", "efficientnet_lite0")
"""Frozen models that may judge; the first of another architecture than the model's."""
CLUSTERS = 12
NEIGHBORS = 5
HARM = 0.01
"""An adaptation harms (helps) if it loses (gains) more than this: accuracy of a classifier, MAP@R of an embedder."""


class Thresholds(Settings):
    """Thresholds of the gate without labels; `python -m benchmarks.speed gate` and `gate-embedders` judge them."""

    cluster_map: float = 0.005
    """Embedders: rise of MAP@R by the expert's clusters, more than this."""
    overlap: float = 0.7
    """Embedders: fraction of the ten nearest images that are still among the ten nearest, at least."""
    neighbors: float = 0.02
    """Classifiers: rise of the information that predictions share with the expert's neighborhoods, more than this."""
    matching: float = 0.9
    """Classifiers: fraction of the old model's classes that an optimal matching of old and new predictions assigns to
    themselves, at least."""
    lost: float = 0.0
    """Classifiers: fraction of the old model's predicted classes that are predicted no more, at most."""
    images: int = 100
    """Held-out images, at least."""


LABELS = {
    "cluster_map": "MAP@R by the expert's clusters, change",
    "overlap": "nearest images that stay",
    "neighbors": "information shared with the expert's neighborhoods, change",
    "matching": "classes matched to themselves",
    "lost": "classes lost",
}
# Of each signal: how it compares with its threshold where it holds, and what is said where it does not.
_RISE = "{0:+.3f}; more than {1:+g} is needed"
TESTS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "images": (operator.ge, "{0:.0f} held-out images are too few ({1} are needed)"),
    "cluster_map": (operator.gt, f"it retrieves too little more within the expert's clusters (MAP@R {_RISE})"),
    "overlap": (operator.ge, "of the ten nearest images {0:.0%} stay (least {1:.0%})"),
    "neighbors": (operator.gt, f"its predictions tell too little more about the expert's neighborhoods ({_RISE})"),
    "matching": (operator.ge, "{0:.0%} of the classes keep their meaning (least {1:.0%})"),
    "lost": (operator.le, "it lost {0:.0%} of the classes"),
}


@dataclass(frozen=True)
class Decision:
    """Whether the candidate is promoted, the reasons if not, and the figures behind it."""

    promoted: bool
    reasons: list[str]
    evidence: str
    figures: dict[str, float] = field(default_factory=dict)
    measure: str = ""
    """What `before` and `after` are, where labels decide."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def headline(self) -> dict[str, float]:
        """The figures that decided, with their names in words."""
        names = {"before": f"{self.measure} before", "after": f"{self.measure} after", "difference": "difference"}
        return {name: self.figures[key] for key, name in {**names, **LABELS}.items() if key in self.figures}

    @property
    def summary(self) -> str:
        """The figures that decided, in a line."""
        if self.measure and "before" in self.figures:
            before, after, *change = (self.figures[name] for name in ("before", "after", "difference", "low", "high"))
            value, low, high = (number(100 * value, 1, signed=True) for value in change)
            return f"{self.measure} {before:.3f} before, {after:.3f} after: {value} points ({low} to {high})"
        shown = {what: self.figures[name] for name, what in LABELS.items() if name in self.figures}
        return "; ".join(f"{what} {number(value, signed='change' in what)}" for what, value in shown.items())

    @property
    def message(self) -> str:
        if self.promoted:
            small = " A gain is likely, but not shown to be large." if self.evidence.startswith("without") else ""
            return f"Promoted the adapted model ({self.evidence}).{small}"
        return f"Kept the old model: {'; '.join(self.reasons)}."


# ---- signals ---------------------------------------------------------------------------------------


def nearest(rows: Array, k: int) -> Array:
    """The k nearest other rows of each, as far as there are any; −1 where there is none."""
    return top_k(rows, rows, max(1, min(k, len(rows) - 1)), exclude=np.arange(len(rows)))[1]


def overlap(before: Array, after: Array, k: int = 10) -> float:
    """Fraction of the k nearest of each row that another model has among its k nearest."""
    one, two = nearest(before, k), nearest(after, k)
    return float(((one[:, :, None] == two[:, None, :]) & (one >= 0)[:, :, None]).any(2).mean())


def cluster_codes(expert: Array, clusters: int = CLUSTERS) -> Array:
    """Cluster of each image by k-means of the expert's features."""
    rows = normalize(expert).astype(np.float32)
    centers = spherical(rows, min(clusters, len(rows)))
    return np.asarray((rows @ centers.T).argmax(1))


def map_by_codes(rows: Array, codes: Array) -> float:
    """MAP@R of the rows by these classes; 0 where no class has two."""
    if np.bincount(codes).max() < 2:
        return 0.0
    return float(retrieval_metrics(rows, codes).mean()["map@r"])


def entropy(p: Array) -> Array:
    """In nats, along the last axis."""
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(-1))


def neighbor_information(predicted: Array, near: Array, classes: int, *, draws: int = 8) -> float:
    """What the predicted class of a neighbor tells about an image's own.

    Their mutual information beyond that of shuffled predictions, over ln C. It falls when classes are lost.

    Args:
        predicted: Predicted class of each image.
        near: Neighbors of each image.
        classes: Number of classes C.
        draws: Shuffled predictions that are averaged.

    Shape:
        - predicted: ``(n,)``; near: ``(n, k)``.
    """

    def mutual(codes: Array) -> float:
        one, two = np.broadcast_arrays(codes[:, None], codes[near])
        pairs = np.concatenate([(one * classes + two).ravel(), (two * classes + one).ravel()])
        # As few as there are: a table of all pairs would not fit for many classes.
        both = (np.unique(c, return_counts=True)[1] for c in (np.concatenate([one.ravel(), two.ravel()]), pairs))
        single, joint = (float(entropy(counts / counts.sum())) for counts in both)
        return 2 * single - joint

    rng = numpy_rng(0, "shuffled predictions")
    shuffled_mean = float(np.mean([mutual(rng.permutation(predicted)) for _ in range(draws)]))
    return (mutual(predicted) - shuffled_mean) / float(np.log(max(classes, 2)))


def matching(before: Array, after: Array, classes: int) -> float:
    """Fraction of the old model's predicted classes that the Hungarian method assigns to themselves.

    No signal of the candidate alone detects two exchanged classes; this one does.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((classes, classes))
    np.add.at(table, (before, after), 1)
    rows, columns = linear_sum_assignment(-(table + 0.5 * np.eye(classes)))  # a tie is no exchange
    had = table.sum(1) > 0
    return float((rows == columns)[had].mean())


def lost(before: Array, after: Array) -> float:
    """Fraction of the old model's predicted classes that the candidate never predicts."""
    return float(1 - np.isin(np.unique(before), after).mean())


def embedder_signals(before: Array, after: Array, expert: Array) -> dict[str, float]:
    """Signals from vectors of the same held-out images under the old model, the candidate and the expert."""
    codes = cluster_codes(expert)
    rise = map_by_codes(after, codes) - map_by_codes(before, codes)
    return {"images": len(before), "cluster_map": rise, "overlap": overlap(before, after)}


def classifier_signals(before: Array, after: Array, expert: Array) -> dict[str, float]:
    """Signals from probabilities of the same held-out images under both models, and the expert's vectors of them."""
    old, new, near = before.argmax(1), after.argmax(1), np.maximum(nearest(expert, NEIGHBORS), 0)
    # Models may name different numbers of classes: each is measured by its own.
    known, now = (neighbor_information(c, near, p.shape[1]) for c, p in ((old, before), (new, after)))
    return {
        "images": len(before),
        "neighbors": now - known,
        "matching": matching(old, new, max(before.shape[1], after.shape[1])),
        "lost": lost(old, new),
    }


# ---- decisions -------------------------------------------------------------------------------------


def reasons_to_keep(
    figures: dict[str, float], limits: Thresholds | None = None, *, alarm: str | None = None
) -> list[str]:
    """Why a candidate with these signals is not promoted; the whole of the gate without labels.

    Args:
        figures: What `embedder_signals` or `classifier_signals` returned.
        limits: The thresholds.
        alarm: What is wrong with the stream.
    """
    limits, reasons = limits or Thresholds(), [alarm] if alarm else []
    for name, (holds, why) in TESTS.items():
        if name in figures and not holds(figures[name], getattr(limits, name)):
            reasons.append(re.sub(r"-(?=\d)", "−", why.format(figures[name], getattr(limits, name))))
    return reasons


def without_labels(
    before: Array, after: Array, expert: Array, *, classifier: bool, alarm: str | None = None
) -> Decision:
    """Decide without labels, from probabilities (classifiers) or vectors (embedders) of the same held-out images."""
    figures = (classifier_signals if classifier else embedder_signals)(before, after, expert)
    reasons = reasons_to_keep(figures, alarm=alarm)
    return Decision(not reasons, reasons, "without labels, by an independent expert", figures)


def by_labels(before: Array, after: Array, *, measure: str = "accuracy", least: int = 30, seed: int = 0) -> Decision:
    """Decide by scores of the same labeled held-out images under both models.

    Args:
        before: Score of each image under the previous model.
        after: Score of each image under the candidate.
        measure: Name of the score.
        least: Fewest images that allow a decision.
        seed: Seed of the bootstrap.
    """
    figures: dict[str, float] = {"images": len(before)}
    if len(before) < least:
        reasons = [f"{len(before)} labeled held-out images are too few to tell ({least} are needed)"]
    else:
        test = paired_test(before, after, seed=seed)
        figures |= {"before": float(np.mean(before)), "after": float(np.mean(after)), **test.to_json()}
        low, high = (number(100 * value, 1, signed=True) for value in (test.low, test.high))
        why = f"on labeled images it is not surely better ({measure} {low} to {high} points)"
        reasons = [] if test.better else [why]
    return Decision(not reasons, reasons, "labels", figures, measure)


def stream_alarm(batches: Sequence[Array], *, smallest: int = 8, first: int = 20, seed: int = 0) -> str | None:
    """What is wrong with a stream, by the old model's predictions for its batches; None: nothing."""
    size = max((len(batch) for batch in batches), default=0)
    if size < smallest:
        return f"batches of {size} are too small to adapt to ({smallest} are needed)"
    order = np.concatenate(batches)
    mixed = order[numpy_rng(seed, "shuffled stream").permutation(len(order))]
    shuffled = np.split(mixed, np.cumsum([len(b) for b in batches])[:-1])
    own, usual = (
        np.mean([entropy(np.bincount(b) / len(b)) for b in stream[:first]]) for stream in (list(batches), shuffled)
    )
    if own < usual / 2:
        return f"classes come one at a time (label entropy {own:.2f} a batch, {usual:.2f} when shuffled)"
    return None


# ---- models and images -----------------------------------------------------------------------------


def find_expert(model: Embedder, name: str | None = None) -> Embedder:
    """The frozen expert that judges a model, on its device: the one named, else the first of another architecture.

    Raises:
        LookalikeError: If none can be loaded.
    """
    if name is not None:
        return Embedder.from_pretrained(name, device=model.device)
    names = [one for one in EXPERTS if one not in BUILTIN or BUILTIN[one].architecture != model.architecture]
    for expert in names:
        with contextlib.suppress(LookalikeError):
            return Embedder.from_pretrained(expert, device=model.device)
    raise LookalikeError(
        f"No expert can judge the adapted model without labels: none of {', '.join(names)} can be loaded; give "
        "--expert MODEL, or labeled images with --judge."
    )


def probabilities(model: Embedder, rows: Array) -> Array:
    """Class probabilities of vectors by the model's classifier."""
    assert model.classifier is not None
    with torch.no_grad():
        logits = model.classifier(torch.from_numpy(rows).to(model.device))
        return np.asarray(logits.cpu().double().softmax(1).numpy())


def obstacles(now: Embedder, base: Embedder, request: AdaptRequest, held_out: int) -> list[str]:
    """What makes promotion without labels impossible, known before anything is learned.

    Args:
        now: The model in use.
        base: The model that is adapted.
        request: What was requested.
        held_out: Number of held-out images.
    """
    if request.judge is not None or request.labeled:
        return []
    out, least = [], Thresholds().images
    if held_out < least:
        out.append(f"{held_out} images are held out to judge by, and {least} are needed")
    if now.classifier is not None and base.classifier is None:
        out.append("the model in use names classes and the adapted one will not")
    if request.settings.method == "source":
        out.append("`source` changes nothing")
    return out


def warn_of_obstacles(reasons: Sequence[str]) -> None:
    """Say beforehand why a candidate cannot be promoted, and what can be done."""
    for why in reasons:
        warn(
            f"The adapted model cannot be promoted without labels: {why}. It will be kept as a version; give labeled "
            "images with --judge, now or later to `lookalike promote`."
        )


def decide(
    now: Embedder,
    candidate: Embedder,
    learn: Table,
    aside: Table,
    request: AdaptRequest,
    *,
    expert: Embedder | None = None,
    alarm: str | None = None,
) -> Decision:
    """Decide by labels where there are any, else by an expert.

    Args:
        now: The model in use.
        candidate: The adapted model.
        learn: Target images that were learned from.
        aside: Target images that were held out.
        request: What was requested.
        expert: The frozen expert; needed without labels.
        alarm: What is wrong with the stream.
    """
    rows = candidate.encode(aside, runtime="torch")
    values = [value for value in candidate.state_dict().values() if value.is_floating_point()]
    if not all(bool(torch.isfinite(value).all()) for value in (*values, torch.from_numpy(rows))):
        return Decision(False, ["what it learned is not finite: a lower learning rate may help"], "without labels")
    if request.judge is not None or request.labeled:
        table = aside if request.judge is None else audit(read_table(request.judge), near=False).table
        others = [audit(read_table(folder), near=False).table for folder in (request.source, request.gallery) if folder]
        seen = {id_ for other in (learn, *others) for id_ in content_ids(other)}
        return compare_by_labels(now, candidate, unseen(table, seen), request.seed)
    before = now.encode(aside, runtime="torch")
    if now.classifier is not None and candidate.classifier is None:
        why = "the model in use names classes and the adapted one does not; give labeled images with --judge"
        return Decision(False, [why], "without labels")
    vectors = embedded(expert or find_expert(now, request.expert), content_ids(aside), aside)
    if classifier := now.classifier is not None:
        before, rows = probabilities(now, before), probabilities(candidate, rows)
    return without_labels(before, rows, vectors, classifier=classifier, alarm=alarm)


def unseen(table: Table, seen: set[str]) -> Table:
    """The images of other content ids: one that was learned from is no evidence."""
    return table.take(np.array([id_ not in seen for id_ in content_ids(table)], bool))


def compare_by_labels(now: Embedder, candidate: Embedder, table: Table, seed: int) -> Decision:
    """Accuracy where both name the classes, each by its own list; else MAP@R among the images."""
    table = table.take(table.labels()[0] >= 0)
    if not len(table):
        return Decision(False, ["no labeled image is left to judge by that was not learned from"], "labels")
    codes, names = table.labels()
    models = (now, candidate)
    rows = [model.encode(table, runtime="torch") for model in models]
    if all(model.classifier is not None and set(names) <= set(names_of(model)) for model in models):
        predicted = (probabilities(model, own).argmax(1) for model, own in zip(models, rows, strict=True))
        right = [codes == codes_of(table, names_of(model)) for model, codes in zip(models, predicted, strict=True)]
        return by_labels(right[0].astype(np.float64), right[1].astype(np.float64), seed=seed)
    before, after = (retrieval_metrics(own, codes).per_query["map@r"] for own in rows)
    if not len(before):
        return Decision(False, ["no held-out image has another one of its class to find"], "labels")
    return by_labels(before, after, measure="MAP@R", seed=seed)
