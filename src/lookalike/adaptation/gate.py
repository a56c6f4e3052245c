"""The gate: whether an adapted model may replace the previous one.

Labeled evidence comes first: a paired bootstrap on held-out images. Without labels the candidate must agree with an
anchor (the base model, with the target's batch-norm statistics if the candidate has them), as a whole and class by
class, since no signal of the candidate alone detects two exchanged classes; and its classes must agree with the
neighbors of the retriever hardly less than those of the previous model. In doubt the previous model stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lookalike.adaptation import signals
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import Settings
from lookalike.evaluation.bootstrap import paired_test


class Thresholds(Settings):
    """Thresholds of the label-free gate; `python -m benchmarks.speed gate` measures what they let through."""

    agreement: float = 0.75
    """With the anchor's prediction, on the half it is most confident of, at least."""
    worst_class: float = 0.4
    """The same class by class, on the surest half of each: of the worst class, at least."""
    neighbors: float = -0.02
    """Change of what the retriever's neighbors tell of an image's class, as a share of the most possible, more than
    this."""
    images: int = 100
    """Held-out images, at least."""


UNASKED = 0.95  # agreement, where most images are of classes too small to be asked one by one: they may be exchanged
THRESHOLDS = {
    "agreement": "agreement with the anchor",
    "worst_class": "agreement, worst class",
    "neighbors": "neighbor information, change",
    # Of a model without a classifier (finding.py).
    "overlap": "nearest images that stay",
    "names": "MAP@R by the old model's surest classes, change",
    "stable": "found again through another view, change",
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
        asked = ("before", "after", "difference") if self.evidence == "labels" else tuple(THRESHOLDS)
        names = {"before": f"{self.measure} before", "after": f"{self.measure} after", **THRESHOLDS}
        if not self.figures.get("asked_by_class", 1):
            asked = tuple(key for key in asked if key != "worst_class")
        return {names.get(key, key): self.figures[key] for key in asked if key in self.figures}

    @property
    def sentence(self) -> str:
        if self.promoted:
            small = "" if self.evidence == "labels" else " A gain is likely, but not shown to be large."
            return f"Promoted the adapted model ({self.evidence}).{small}"
        return f"Kept the old model: {'; '.join(self.reasons)}."


def by_labels(
    before: np.ndarray, after: np.ndarray, *, measure: str = "accuracy", least: int = 30, seed: int = 0
) -> Decision:
    """Decide by scores of the same labeled held-out images under both models, as right (1) or wrong (0).

    Args:
        before: Score of each image under the previous model.
        after: Score of each image under the candidate.
        measure: Name of the score.
        least: Fewest images that allow a decision.
        seed: Seed of the bootstrap.
    """
    if len(before) < least:
        why = f"{len(before)} labeled held-out images are too few to tell ({least} are needed)"
        return Decision(False, [why], "labels", {"images": len(before)}, measure)
    found = paired_test(before, after, seed=seed)
    figures = {"before": float(np.mean(before)), "after": float(np.mean(after)), **found.to_json()}
    if found.better:
        return Decision(True, [], "labels", figures, measure)
    ends = f"{measure} {100 * found.low:+.1f} to {100 * found.high:+.1f} points"
    why = f"on labeled images it is not surely better ({ends})"
    return Decision(False, [why], "labels", figures, measure)


def by_finding(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], *, seed: int = 0) -> Decision:
    """Decide by retrieval scores of labeled images: recall@1 must improve, MAP@R must not fall."""
    found = by_labels(before["recall@1"], after["recall@1"], measure="recall@1", seed=seed)
    ranks = paired_test(before["map@r"], after["map@r"], seed=seed)
    if not found.promoted or ranks.high >= 0:
        return found
    why = f"on labeled images MAP@R is surely worse ({100 * ranks.low:+.1f} to {100 * ranks.high:+.1f} points)"
    return replace(found, promoted=False, reasons=[why])


def measure(before: np.ndarray, anchor: np.ndarray, candidate: np.ndarray, near: np.ndarray) -> dict[str, float]:
    """The signals, from probabilities of the same held-out images and the retriever's neighbors among them."""
    old, new = before.argmax(1), candidate.argmax(1)
    # Models may name different numbers of classes: each is measured by its own.
    known, then, now = (signals.shared(p.argmax(1), near, p.shape[1]) for p in (before, anchor, candidate))
    worst, asked = signals.worst_class(candidate, anchor)
    return {
        "images": len(before),
        "agreement": signals.agreement(candidate, anchor),
        "worst_class": worst,
        "asked_by_class": asked,
        "neighbors": now - known,
        "anchor_neighbors": then - known,
        "divergence": signals.divergence(candidate, anchor),
        "information": signals.information(candidate) - signals.information(before),
        "beyond_anchor": signals.information(candidate) - signals.information(anchor),
        "kappa": signals.kappa(new, near) - signals.kappa(old, near),
        "anchor_information": signals.information(anchor) - signals.information(before),
        "nuclear": signals.nuclear(candidate) - signals.nuclear(before),
        "confidence": signals.confidence(candidate) - signals.confidence(before),
        "lost": signals.lost(candidate, anchor),
    }


def failed(found: dict[str, float], limits: Thresholds) -> list[str]:
    """The tests that a candidate with these signals fails, in words."""
    by_class = found["asked_by_class"] >= 0.5
    agreement = limits.agreement if by_class else max(limits.agreement, UNASKED)
    small = "" if by_class else ", since most classes are too small to be asked one by one"
    asked = [
        (
            found["images"] >= limits.images,
            f"{found['images']:.0f} held-out images are too few ({limits.images} are needed)",
        ),
        (
            found["agreement"] >= agreement,
            f"it agrees with the anchor on {found['agreement']:.0%} of its surest half (least {agreement:.0%}{small})",
        ),
        (
            found["worst_class"] >= limits.worst_class,
            f"it agrees with the anchor on {found['worst_class']:.0%} of the surest half of one class "
            f"(least {limits.worst_class:.0%})",
        ),
        (
            found["neighbors"] > limits.neighbors,
            f"its classes go less along with the retriever's neighbors ({found['neighbors']:+.3f}; more than "
            f"{limits.neighbors:+g} is asked)",
        ),
        (found["lost"] <= 0.3, f"it lost {found['lost']:.0%} of the classes"),
    ]
    return [why for holds, why in asked if not holds]


def reasons_to_keep(
    found: dict[str, Any], limits: Thresholds, *, alarm: str | None = None, anchor_asked: bool = False
) -> list[str]:
    """Why a candidate with these signals is not promoted; the whole of the label-free gate.

    `anchor_asked`: the candidate is the anchor itself, because that was asked for. A candidate that neither carries
    more information than the anchor nor goes more along with the retriever is not promoted where the anchor would be.
    """
    reasons = [alarm] if alarm else []
    reasons += failed(found, limits)
    if not reasons and max(found["information"], found["neighbors"]) <= 0:
        reasons = ["nothing says that it is better: no more information, alone or from the retriever's neighbors"]
    # The anchor agrees with itself and loses nothing; what is left is whether it is better than the model before.
    better = max(found["anchor_information"], found["anchor_neighbors"]) > 0
    alone = better and found["anchor_neighbors"] > limits.neighbors
    beyond = found["beyond_anchor"] > 0 or found["neighbors"] > found["anchor_neighbors"]
    if not reasons and not anchor_asked and alone and not beyond:
        reasons = ["it is no better than the target's batch-norm statistics alone"]
    return reasons


def without_labels(
    before: np.ndarray,
    anchor: np.ndarray,
    candidate: np.ndarray,
    near: np.ndarray,
    *,
    alarm: str | None = None,
    limits: Thresholds | None = None,
    anchor_asked: bool = False,
) -> Decision:
    """The label-free gate, from probabilities of the same held-out images."""
    limits = limits or Thresholds()
    found = measure(before, anchor, candidate, near)
    reasons = reasons_to_keep(found, limits, alarm=alarm, anchor_asked=anchor_asked)
    return Decision(not reasons, reasons, "without labels", found)


def stream_alarm(batches: list[np.ndarray], *, smallest: int = 8, look: int = 20, seed: int = 0) -> str | None:
    """What is wrong with a stream, by the anchor's predictions for its batches."""
    size = max((len(batch) for batch in batches), default=0)
    if size < smallest:
        return f"batches of {size} are too small to adapt to ({smallest} are needed)"
    first = batches[:look]
    order = np.concatenate(batches)
    mixed = numpy_rng(seed, "shuffled stream").permutation(len(order))
    shuffled = np.split(order[mixed], np.cumsum([len(b) for b in batches])[:-1])[:look]
    own, usual = (np.mean([signals.entropy(np.bincount(b) / len(b)) for b in s]) for s in (first, shuffled))
    if own < usual / 2:
        return f"classes come one at a time (label entropy {own:.2f} a batch, {usual:.2f} when shuffled)"
    return None
