"""Features of a folder that tell, without labels, which recall@1 to expect of it.

Recall@1 depends on the distance from training, but as much on how many classes there are and how many images each has.
Those are unknown, and show in the neighbors: whether they choose each other, share neighbors, and stay the same when
images are compared by the features before the head or by half of the dimensions; how fast similarity falls with the
rank; how many clusters first neighbors form; whether neighbors resemble the same training classes.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k_scores

NEIGHBORS = 50  # the neighbor that stands for an image's surroundings
TEMPERATURES = (0.05, 0.1)  # temperatures at which an image belongs to the classes of training
FEATURES = (
    *("first", "gap 2", "gap 3", "gap 5", "gap 10", "gap 20", "gap 50", "mutual", "back"),
    *("shared 5", "shared 10", "shared 20"),
    *("features first", "features rank", "features 10", "half first", "half rank", "half 10"),
    *("hub", "own hub"),
    *("classes sharp", "classes", "same class", "profile"),
    *("similarity", "level", "spread", "directions", "features directions", "size", "cluster", "larger cluster"),
)


def folder_features(vectors: np.ndarray, features: np.ndarray, class_centers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Features of a folder (columns: ``FEATURES``), and the nearest neighbor of every image.

    Args:
        vectors: Unit embeddings of shape ``(n, d)``, n ≥ 3.
        features: Unit features before the head, shape ``(n, f)``.
        class_centers: Unit mean embeddings of the training classes, shape ``(classes, d)``; without any, the
            columns about classes are 0.

    Returns:
        Array of shape ``(len(FEATURES),)``, most of them means over the images, and indices of shape ``(n,)``.
    """
    rows = np.arange(len(vectors))
    scores = vectors @ vectors.T
    values, near = nearest(scores, NEIGHBORS)
    level, spread = _background(scores)
    nearest_row, first = near[:, 0], values[:, 0]
    gaps = [(first - values[:, min(rank, values.shape[1]) - 1]) / spread for rank in (2, 3, 5, 10, 20, NEIGHBORS)]
    columns = [(first - level) / spread, *gaps, near[nearest_row, 0] == rows, _rank(near[nearest_row], rows)]
    columns += [overlap(near, near[nearest_row], count) for count in (5, 10, 20)]
    half = numpy_rng(0, "half of the dimensions").permutation(vectors.shape[1])[: max(1, vectors.shape[1] // 2)]
    for other in (features, _unit(vectors[:, half])):
        seen = nearest(other @ other.T, NEIGHBORS)[1]
        columns += [seen[:, 0] == nearest_row, _rank(seen, nearest_row), overlap(near, seen, 10)]
    chosen = np.log1p(np.bincount(near[:, :5].ravel(), minlength=len(near)))
    columns += [chosen[nearest_row], chosen, *_by_classes(vectors @ class_centers.T, nearest_row), first]
    of_folder = [level, spread, _directions(vectors), _directions(features), np.log(len(rows))]
    of_folder += [np.log(len(rows) / count) for count in cluster_counts(vectors, nearest_row)[1:]]
    return np.array([*(np.mean(column) for column in columns), *of_folder], np.float64), nearest_row


def cluster_counts(vectors: np.ndarray, nearest_row: np.ndarray, rounds: int = 3) -> list[int]:
    """Numbers of clusters when first neighbors are joined, then the nearest cluster means, and so on.

    References:
        Sarfraz et al., "Efficient Parameter-free Clustering Using First Neighbor Relations".
    """
    counts: list[int] = []
    for _ in range(rounds):
        size = len(vectors)
        links = coo_matrix((np.ones(size), (np.arange(size), nearest_row)), shape=(size, size))
        count, labels = connected_components(links, directed=False)
        counts.append(count)
        sums = np.zeros((count, vectors.shape[1]), np.float32)
        np.add.at(sums, labels, vectors)
        vectors = _unit(sums)
        nearest_row = nearest(vectors @ vectors.T, 1)[1][:, 0] if count > 1 else np.zeros(1, np.int64)
    return counts


def class_means(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Unit mean embedding of every class."""
    return _unit(np.stack([vectors[labels == code].mean(axis=0) for code in np.unique(labels)]))


def nearest(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Highest similarities of every row and their indices, without the row itself; ties by index."""
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
