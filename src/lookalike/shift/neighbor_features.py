"""Features of an image's neighborhood that tell, without labels, whether its nearest neighbor has the same class.

Recall@1 depends on the distance from training, but as much on how many classes there are and how many images each has.
Those are unknown, and show in the neighbors: whether they choose each other, share neighbors, and stay the same when
images are compared by the features before the head or by half of the dimensions; whether both resemble the same
training classes; and how many directions the folder uses for its size. Nothing here depends on the scale of the
similarities, which another style changes.
"""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k_scores

NEIGHBORS = 50  # the neighbor that stands for an image's surroundings
TEMPERATURES = (0.05, 0.1)  # temperatures at which an image belongs to the classes of training
FEATURES = (
    *("first", "gap 2", "gap 5", "gap 10", "gap 50", "mutual", "back"),
    *("shared 5", "shared 10", "shared 20"),
    *("features first", "features rank", "features 10", "half first", "half rank", "half 10"),
    *("hub", "own hub"),
    *("classes sharp", "classes", "same class", "profile"),
    *("directions", "features directions", "size"),  # of the folder
)


def neighbor_features(vectors: np.ndarray, features: np.ndarray, class_centers: np.ndarray) -> np.ndarray:
    """Features of every image of a folder (columns: ``FEATURES``).

    Args:
        vectors: Unit embeddings of shape ``(n, d)``, n ≥ 3.
        features: Unit features before the head, shape ``(n, f)``.
        class_centers: Unit mean embeddings of the training classes, shape ``(classes, d)``; without any, the
            columns about classes are 0.

    Returns:
        Array of shape ``(n, len(FEATURES))``.
    """
    rows = np.arange(len(vectors))
    scores = vectors @ vectors.T
    values, near = nearest(scores, NEIGHBORS)
    level, spread = _background(scores)
    nearest_row, first = near[:, 0], values[:, 0]
    gaps = [(first - values[:, min(rank, values.shape[1]) - 1]) / spread for rank in (2, 5, 10, NEIGHBORS)]
    columns = [(first - level) / spread, *gaps, near[nearest_row, 0] == rows, _rank(near[nearest_row], rows)]
    columns += [overlap(near, near[nearest_row], count) for count in (5, 10, 20)]
    half = numpy_rng(0, "half of the dimensions").permutation(vectors.shape[1])[: max(1, vectors.shape[1] // 2)]
    for other in (features, _unit(vectors[:, half])):
        seen = nearest(other @ other.T, NEIGHBORS)[1]
        columns += [seen[:, 0] == nearest_row, _rank(seen, nearest_row), overlap(near, seen, 10)]
    chosen = np.log1p(np.bincount(near[:, :5].ravel(), minlength=len(near)))
    columns += [chosen[nearest_row], chosen, *_by_classes(vectors @ class_centers.T, nearest_row)]
    columns += [np.full(len(rows), value) for value in (_directions(vectors), _directions(features))]
    columns.append(np.full(len(rows), np.log(len(rows))))
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


def class_means(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Unit mean embedding of every class."""
    return _unit(np.stack([vectors[labels == code].mean(axis=0) for code in np.unique(labels)]))


def nearest(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Highest similarities of every row, without the row itself.

    Args:
        scores: Similarities of shape ``(n, n)``.
        count: Number of neighbors.

    Returns:
        Similarities and indices of shape ``(n, count)``, best first; ties by index.
    """
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    return top_k_scores(scores, min(count, len(scores) - 1))


def overlap(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """Fraction of the first ``count`` neighbors that two lists have in common, for every row."""
    member = np.zeros((len(a), len(a)), bool)
    np.put_along_axis(member, a[:, :count], True, axis=1)
    return np.asarray(np.take_along_axis(member, b[:, :count], axis=1).mean(axis=1))


def _rank(near: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Log of the position of the target in each list; after the last if it is not there."""
    hit = near == target[:, None]
    return np.asarray(np.log1p(np.where(hit.any(axis=1), hit.argmax(axis=1), near.shape[1])))


def _by_classes(scores: np.ndarray, nearest_row: np.ndarray) -> list[np.ndarray]:
    """Whether an image and its nearest neighbor resemble the same training classes, in four ways."""
    if not scores.shape[1]:
        return [np.zeros(len(scores))] * (len(TEMPERATURES) + 2)
    out = []
    for temperature in TEMPERATURES:
        probabilities = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        out.append((probabilities * probabilities[nearest_row]).sum(axis=1))
    likeliest = scores.argmax(axis=1)
    profile = _unit(scores - scores.mean(axis=1, keepdims=True))
    return [*out, likeliest == likeliest[nearest_row], (profile * profile[nearest_row]).sum(axis=1)]


def _directions(vectors: np.ndarray) -> float:
    """Log of the participation ratio: squared sum of the eigenvalues over the sum of their squares."""
    rows = vectors - vectors.mean(axis=0)
    inner = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T  # the same eigenvalues
    return float(2 * np.log(max(np.trace(inner), 1e-12)) - np.log(max(np.square(inner).sum(), 1e-24)))


def _background(scores: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the similarities of different images."""
    count = len(scores) * (len(scores) - 1)
    diagonal = np.diagonal(scores)
    level = (scores.sum(dtype=np.float64) - diagonal.sum()) / count
    square = (np.square(scores).sum(dtype=np.float64) - np.square(diagonal).sum()) / count
    return float(level), float(np.sqrt(max(square - level * level, 1e-12)))


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
