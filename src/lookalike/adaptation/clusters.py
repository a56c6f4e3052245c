"""Classes for a model that has none: prototypes of a labeled gallery, clusters of the target, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.clustering import kmeans
from lookalike.evaluation.neighbors import top_k

LEAST = 0.05  # silhouette below which clusters say nothing
SAMPLE = 2000


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def prototypes(rows: np.ndarray, codes: np.ndarray, classes: int) -> np.ndarray:
    """The normalized mean of each class; a class without images gets a row of zeros."""
    sums = np.zeros((classes, rows.shape[1]), np.float64)
    np.add.at(sums, codes[codes >= 0], rows[codes >= 0].astype(np.float64))
    return unit(sums).astype(np.float32)


def spherical(rows: np.ndarray, count: int, *, restarts: int = 10, steps: int = 30, seed: int = 0) -> np.ndarray:
    """Centroids of spherical k-means: the best of several starts."""
    best, most = rows[:count], -np.inf
    for start in range(restarts):
        rng = numpy_rng(seed, "spherical k-means", count, start)
        centers = rows[np.sort(rng.choice(len(rows), count, replace=False))]
        result = kmeans(rows, centers, iterations=steps, spherical=True)
        total = float(result.scores.sum())
        if total > most:
            best, most = result.centers, total
    return np.asarray(best, np.float32)


@dataclass(frozen=True)
class Clusters:
    centers: np.ndarray | None
    silhouette: float
    why: str
    """How they were made, or why there are none."""


def silhouette(rows: np.ndarray, centers: np.ndarray, seed: int = 0) -> float:
    from sklearn.metrics import silhouette_score

    some = rows if len(rows) <= SAMPLE else rows[numpy_rng(seed, "silhouette").choice(len(rows), SAMPLE, replace=False)]
    place = (some @ centers.T).argmax(1)
    if not 1 < len(np.unique(place)) < len(some):
        return -1.0
    return float(silhouette_score(some, place, metric="cosine"))


def find(rows: np.ndarray, wanted: int | None = None, *, seed: int = 0) -> Clusters:
    """As many clusters as are wanted, else as many as fit best among 8, 16, 32 … up to a quarter of the images."""
    if wanted is not None and len(rows) < 4 * wanted:
        return Clusters(None, -1.0, f"{len(rows)} images are too few for {wanted} clusters")
    counts = [wanted] if wanted else []
    while not wanted and 8 * 2 ** len(counts) <= len(rows) // 4:
        counts.append(8 * 2 ** len(counts))
    if not counts:
        return Clusters(None, -1.0, f"{len(rows)} images are too few to cluster")
    tried = [(spherical(rows, count, seed=seed), count) for count in counts]
    scores = [silhouette(rows, centers, seed) for centers, _ in tried]
    place = int(np.argmax(scores))
    (centers, count), score = tried[place], scores[place]
    if score < LEAST:
        return Clusters(None, score, f"the images do not fall into groups (silhouette {score:.2f} at {count})")
    return Clusters(centers, score, f"{count} clusters of the target (silhouette {score:.2f})")


def again(rows: np.ndarray, old: np.ndarray, seed: int = 0) -> np.ndarray:
    """Clusters of the present features, each in the place of the old one it is nearest to, so that logits compare."""
    from scipy.optimize import linear_sum_assignment

    rows = unit(rows)
    if len(rows) < len(old) or not np.isfinite(rows).all():  # what diverged is told when it is judged
        return old
    new = spherical(rows, len(old), seed=seed)
    mine, theirs = linear_sum_assignment(-(old @ new.T))
    out = np.empty_like(old)
    out[mine] = new[theirs]
    return out


def reciprocal(rows: np.ndarray, k: int = 5) -> np.ndarray:
    """For each row those of its k nearest that have it among their k nearest; −1 elsewhere."""
    k = min(k, len(rows) - 1)
    if k < 1:
        return np.full((len(rows), 1), -1)
    near = top_k(rows, rows, k, exclude=np.arange(len(rows)))[1]
    both = np.array([[i in near[j] for j in row] for i, row in enumerate(near)])
    return np.where(both, near, -1)
