"""Signals about a model without labels. Each maps arrays to a number; none of them alone is evidence."""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.retrieval import retrieval_metrics

Array = np.ndarray


def entropy(p: Array) -> Array:
    """In nats, along the last axis."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


def information(p: Array) -> float:
    """(entropy of the mean − mean entropy) / ln C: sure of each image, and of different things."""
    return float((entropy(p.mean(0)) - entropy(p).mean()) / np.log(max(p.shape[1], 2)))


def confidence(p: Array) -> float:
    """Mean of the largest probability."""
    return float(p.max(1).mean())


def nuclear(p: Array) -> float:
    """Nuclear norm over its largest possible value."""
    return float(np.linalg.norm(p, "nuc") / np.sqrt(len(p) * min(p.shape)))


def density(features: Array, temperature: float = 0.05) -> float:
    """Soft neighborhood density; largest when all points fall together, so never a sign of health by itself."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    scores = rows @ rows.T / temperature
    np.fill_diagonal(scores, -1 / temperature)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return float(-(p * np.log(p + 1e-5)).sum(1).mean())


def kappa(predicted: Array, near: Array) -> float:
    """How often the retriever's neighbors are predicted alike, beyond what the class shares alone would give."""
    same = float((predicted[near] == predicted[:, None]).mean())
    chance = float(((np.bincount(predicted) / len(predicted)) ** 2).sum())
    return 0.0 if chance >= 1 else (same - chance) / (1 - chance)


def shared(predicted: Array, near: Array, classes: int, *, draws: int = 8) -> float:
    """What the class of a neighbor tells about an image's own class.

    Their mutual information beyond that of shuffled predictions, over ln C. Unlike kappa it falls when classes are
    lost.
    """
    rng = numpy_rng(0, "dealt out")
    chance = [_mutual(rng.permutation(predicted), near, classes) for _ in range(draws)]
    return (_mutual(predicted, near, classes) - float(np.mean(chance))) / float(np.log(max(classes, 2)))


def _mutual(predicted: Array, near: Array, classes: int) -> float:
    """In nats, of the classes of an image and a neighbor, whichever of the two is asked."""
    one, two = np.broadcast_arrays(predicted[:, None], predicted[near])
    each = np.concatenate([one.ravel(), two.ravel()])
    pairs = np.concatenate([(one * classes + two).ravel(), (two * classes + one).ravel()])
    # As few as there are: a table of all pairs would not fit for many classes.
    return float(2 * _entropy_of(each) - _entropy_of(pairs))


def _entropy_of(codes: Array) -> float:
    counts = np.unique(codes, return_counts=True)[1]
    return float(entropy(counts / counts.sum()))


def worst_class(candidate: Array, anchor: Array, *, least: int = 10) -> tuple[float, float]:
    """`agreement` class by class, on the surest half of what the anchor assigns to it.

    Classes of fewer than `least` images are skipped; two exchanged classes give 0.

    Returns:
        Agreement of the worst class, and the fraction of the images whose class was tested.
    """
    told, worst, asked = anchor.argmax(1), 1.0, 0
    for code in np.flatnonzero(np.bincount(told, minlength=anchor.shape[1]) >= least):
        rows = np.flatnonzero(told == code)
        sure = rows[np.argsort(-anchor[rows, code], kind="stable")][: (len(rows) + 1) // 2]
        worst = min(worst, float((candidate[sure].argmax(1) == code).mean()))
        asked += len(rows)
    return worst, asked / max(len(anchor), 1)


def agreement(candidate: Array, anchor: Array) -> float:
    """On the more confident half of the anchor's images: how often the candidate predicts the same."""
    sure = surest_half(anchor)
    return float((candidate[sure].argmax(1) == anchor[sure].argmax(1)).mean())


def surest_half(p: Array) -> Array:
    """Rows of the images with the highest largest probability."""
    return np.argsort(-p.max(1), kind="stable")[: max(1, (len(p) + 1) // 2)]


def divergence(candidate: Array, anchor: Array) -> float:
    """Jensen–Shannon divergence of the mean predictions, in nats."""
    a, b = candidate.mean(0), anchor.mean(0)
    return float(entropy((a + b) / 2) - (entropy(a) + entropy(b)) / 2)


def lost(candidate: Array, anchor: Array) -> float:
    """The share of the anchor's predicted classes that the candidate never predicts."""
    had = np.unique(anchor.argmax(1))
    return float(1 - np.isin(had, candidate.argmax(1)).mean())


# --- of what a model finds --------------------------------------------------------------------------


def overlap(before: Array, after: Array, k: int = 10) -> float:
    """Share of the k nearest of each row that another model has among its k nearest."""
    return _shared(nearest(before, k), nearest(after, k))


def stable(rows: Array, again: Array, k: int = 10) -> float:
    """Share of the k nearest of each image that another view of it (`again`) has among its k nearest."""
    own = np.arange(len(rows))
    return _shared(nearest(rows, k), top_k(again, rows, max(1, min(k, len(rows) - 1)), exclude=own)[1])


def found_by_names(rows: Array, codes: Array) -> float:
    """MAP@R of the rows by these classes; 0 where no class has two."""
    if np.bincount(codes).max() < 2:
        return 0.0
    return float(retrieval_metrics(rows, codes).mean()["map@r"])


def nearest(rows: Array, k: int) -> Array:
    """The k nearest other rows of each, as far as there are any; −1 where there is none."""
    return top_k(rows, rows, max(1, min(k, len(rows) - 1)), exclude=np.arange(len(rows)))[1]


def _shared(one: Array, two: Array) -> float:
    return float(((one[:, :, None] == two[:, None, :]) & (one >= 0)[:, :, None]).any(2).mean())
