"""What can be told of a model without labels. Each takes arrays and gives a number; none of them alone is proof."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def entropy(p: Array) -> Array:
    """In nats, along the last axis."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


def information(p: Array) -> float:
    """(entropy of the mean − mean entropy) / ln C: sure of each picture, and of different things."""
    return float((entropy(p.mean(0)) - entropy(p).mean()) / np.log(p.shape[1]))


def confidence(p: Array) -> float:
    return float(p.max(1).mean())


def nuclear(p: Array) -> float:
    """Nuclear norm over its largest possible value."""
    return float(np.linalg.norm(p, "nuc") / np.sqrt(len(p) * min(p.shape)))


def density(features: Array, temperature: float = 0.05) -> float:
    """Soft neighbourhood density; largest when all points fall together, so never a sign of health by itself."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    scores = rows @ rows.T / temperature
    np.fill_diagonal(scores, -1 / temperature)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return float(-(p * np.log(p + 1e-5)).sum(1).mean())


def kappa(predicted: Array, near: Array) -> float:
    """How often the retriever's neighbours are predicted alike, beyond what the class shares alone would give."""
    same = float((predicted[near] == predicted[:, None]).mean())
    chance = float(((np.bincount(predicted) / len(predicted)) ** 2).sum())
    return 0.0 if chance >= 1 else (same - chance) / (1 - chance)


def agreement(candidate: Array, anchor: Array) -> float:
    """On the more confident half of the anchor's pictures: how often the candidate predicts the same."""
    sure = np.argsort(-anchor.max(1), kind="stable")[: max(1, (len(anchor) + 1) // 2)]
    return float((candidate[sure].argmax(1) == anchor[sure].argmax(1)).mean())


def divergence(candidate: Array, anchor: Array) -> float:
    """Jensen–Shannon divergence of the mean predictions, in nats."""
    a, b = candidate.mean(0), anchor.mean(0)
    return float(entropy((a + b) / 2) - (entropy(a) + entropy(b)) / 2)


def lost(candidate: Array, anchor: Array) -> float:
    """The share of the anchor's predicted classes that the candidate never predicts."""
    had = np.unique(anchor.argmax(1))
    return float(1 - np.isin(had, candidate.argmax(1)).mean())
