"""What a folder says about itself without labels: signals that go with recall@1.

Recall@1 depends on how far the pictures are from training, but as much on how many classes there are and how many
pictures each has. Those are unknown, and show in how neighbours behave: whether they choose each other, whether they
share neighbours, and whether they stay the same when pictures are compared by the features before the head or by one
half of the dimensions.
"""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.shift.structure import effective_rank

EDGE = 50  # the neighbour that stands for a picture's surroundings


def signals(vectors: np.ndarray, features: np.ndarray) -> dict[str, float]:
    """Signals of at least 3 pictures: `vectors` are their unit embeddings, `features` the unit features before the
    head."""
    scores = vectors @ vectors.T
    values, near = nearest(scores, EDGE)
    level, spread = _background(scores)
    first = values[:, 0]

    def gap(rank: int) -> float:
        return float((first - values[:, min(rank, values.shape[1]) - 1]).mean() / spread)

    out = {
        "first": float((first.mean() - level) / spread),
        "close": float(first.mean()),
        "gap 2": gap(2),
        "gap 5": gap(5),
        "gap 10": gap(10),
        "gap 50": gap(50),
        "mutual": float((near[near[:, 0], 0] == np.arange(len(near))).mean()),
        "reciprocal 5": _reciprocal(near, 5),
        "reciprocal 10": _reciprocal(near, 10),
        "shared 5": float(overlap(near, near[near[:, 0]], 5).mean()),
        "shared 10": float(overlap(near, near[near[:, 0]], 10).mean()),
        "triangles": _triangles(near, 10),
        "hubs": float(np.log1p(np.bincount(near[:, :5].ravel(), minlength=len(near)).std())),
        "spread": float(np.log(spread)),
        "rank": _rank(vectors),
        "size": float(np.log(len(vectors))),
    }
    half = numpy_rng(0, "half of the dimensions").permutation(vectors.shape[1])[: max(1, vectors.shape[1] // 2)]
    for name, rows in (("features", features), ("half", _unit(vectors[:, half]))):
        other = nearest(rows @ rows.T, 20)[1]
        out[f"{name} 1"] = float((other[:, 0] == near[:, 0]).mean())
        out |= {f"{name} {k}": float(overlap(near, other, k).mean()) for k in (5, 10, 20)}
    return out


def nearest(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest scores of every row and where they are, best first, the row itself left out."""
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    count = min(count, len(scores) - 1)
    place = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    values = np.take_along_axis(scores, place, axis=1)
    order = np.lexsort((place, -values), axis=1)
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(place, order, axis=1)


def overlap(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """For every row which share of its first `count` neighbours two lists have in common."""
    member = np.zeros((len(a), len(a)), bool)
    np.put_along_axis(member, a[:, :count], True, axis=1)
    return np.asarray(np.take_along_axis(member, b[:, :count], axis=1).mean(axis=1))


def _rank(vectors: np.ndarray) -> float:
    """The logarithm of how many directions are used."""
    rows = (vectors - vectors.mean(axis=0)).astype(np.float64)
    small = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows  # the same eigenvalues
    values = np.linalg.eigvalsh(small)
    return float(np.log(effective_rank(np.maximum(values, 1e-12 * max(float(values[-1]), 1e-12)))))


def _background(scores: np.ndarray) -> tuple[float, float]:
    """Mean and spread of the scores of different pictures."""
    count = len(scores) * (len(scores) - 1)
    diagonal = np.diagonal(scores)
    level = (scores.sum(dtype=np.float64) - diagonal.sum()) / count
    square = (np.square(scores).sum(dtype=np.float64) - np.square(diagonal).sum()) / count
    return float(level), float(np.sqrt(max(square - level * level, 1e-12)))


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def _graph(near: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros((len(near), len(near)), np.float32)
    np.put_along_axis(out, near[:, :count], 1.0, axis=1)
    return out


def _reciprocal(near: np.ndarray, count: int) -> float:
    """Share of neighbours that have the picture among theirs."""
    graph = _graph(near, count)
    return float((graph * graph.T).sum() / graph.sum())


def _triangles(near: np.ndarray, count: int) -> float:
    """Share of neighbours of neighbours that are neighbours."""
    graph = _graph(near, count)
    used = min(count, near.shape[1])
    return float(((graph @ graph) * graph).sum() / (len(near) * used * used))
