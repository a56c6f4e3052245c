"""What each image of a folder tells, without labels, of whether its nearest neighbor shows the same thing.

Recall@1 depends on how far the images are from training, but as much on how many classes there are and how many
images each has. Those are unknown, and show in how neighbors behave: whether they choose each other, share
neighbors, and stay the same when images are compared by the features before the head or by one half of the
dimensions; in whether the two are alike in terms of the classes the model was trained on; and in how many directions
the folder uses for its size. Nothing here depends on the scale of the scores, which another look changes.
"""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k_scores

EDGE = 50  # the neighbor that stands for an image's surroundings
SHARPNESS = (0.05, 0.1)  # temperatures at which an image belongs to the classes of training
NAMES = (
    *("first", "gap 2", "gap 5", "gap 10", "gap 50", "mutual", "back"),
    *("shared 5", "shared 10", "shared 20"),
    *("features first", "features rank", "features 10", "half first", "half rank", "half 10"),
    *("hub", "own hub"),
    *("classes sharp", "classes", "same class", "profile"),
    *("directions", "features directions", "size"),  # of the folder
)


def evidence(vectors: np.ndarray, features: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """A row of `NAMES` for each of at least 3 images.

    `vectors` are their unit embeddings, `features` the unit features before the head, `kinds` the unit mean embeddings
    of the classes of training; without any, what is said of classes is 0.
    """
    rows = np.arange(len(vectors))
    scores = vectors @ vectors.T
    values, near = nearest(scores, EDGE)
    level, spread = _background(scores)
    hit, first = near[:, 0], values[:, 0]
    gaps = [(first - values[:, min(rank, values.shape[1]) - 1]) / spread for rank in (2, 5, 10, EDGE)]
    columns = [(first - level) / spread, *gaps, near[hit, 0] == rows, _rank(near[hit], rows)]
    columns += [overlap(near, near[hit], count) for count in (5, 10, 20)]
    half = numpy_rng(0, "half of the dimensions").permutation(vectors.shape[1])[: max(1, vectors.shape[1] // 2)]
    for other in (features, _unit(vectors[:, half])):
        seen = nearest(other @ other.T, EDGE)[1]
        columns += [seen[:, 0] == hit, _rank(seen, hit), overlap(near, seen, 10)]
    chosen = np.log1p(np.bincount(near[:, :5].ravel(), minlength=len(near)))
    columns += [chosen[hit], chosen, *_by_classes(vectors @ kinds.T, hit)]
    columns += [np.full(len(rows), value) for value in (_directions(vectors), _directions(features))]
    columns.append(np.full(len(rows), np.log(len(rows))))
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


def class_means(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The unit mean embedding of every class."""
    return _unit(np.stack([vectors[labels == code].mean(axis=0) for code in np.unique(labels)]))


def nearest(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest scores of every row and where they are, best first, the row itself left out."""
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    return top_k_scores(scores, min(count, len(scores) - 1))


def overlap(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """For every row which share of its first `count` neighbors two lists have in common."""
    member = np.zeros((len(a), len(a)), bool)
    np.put_along_axis(member, a[:, :count], True, axis=1)
    return np.asarray(np.take_along_axis(member, b[:, :count], axis=1).mean(axis=1))


def _rank(near: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The logarithm of where in each list the wanted image stands; after the last if it does not."""
    hit = near == wanted[:, None]
    return np.asarray(np.log1p(np.where(hit.any(axis=1), hit.argmax(axis=1), near.shape[1])))


def _by_classes(scores: np.ndarray, hit: np.ndarray) -> list[np.ndarray]:
    """Do an image and its hit belong to the same classes of training? By shares, by the likeliest, by all scores."""
    if not scores.shape[1]:
        return [np.zeros(len(scores))] * (len(SHARPNESS) + 2)
    out = []
    for temperature in SHARPNESS:
        shares = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
        shares /= shares.sum(axis=1, keepdims=True)
        out.append((shares * shares[hit]).sum(axis=1))
    likeliest = scores.argmax(axis=1)
    profile = _unit(scores - scores.mean(axis=1, keepdims=True))
    return [*out, likeliest == likeliest[hit], (profile * profile[hit]).sum(axis=1)]


def _directions(vectors: np.ndarray) -> float:
    """The logarithm of how many directions are used: the eigenvalues' sum, squared, over the sum of their squares."""
    rows = vectors - vectors.mean(axis=0)
    inner = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T  # the same eigenvalues
    return float(2 * np.log(max(np.trace(inner), 1e-12)) - np.log(max(np.square(inner).sum(), 1e-24)))


def _background(scores: np.ndarray) -> tuple[float, float]:
    """Mean and spread of the scores of different images."""
    count = len(scores) * (len(scores) - 1)
    diagonal = np.diagonal(scores)
    level = (scores.sum(dtype=np.float64) - diagonal.sum()) / count
    square = (np.square(scores).sum(dtype=np.float64) - np.square(diagonal).sum()) / count
    return float(level), float(np.sqrt(max(square - level * level, 1e-12)))


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
