"""K-means clustering, plain or spherical, and normalized mutual information with the classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Floats, Ints, as_codes, as_rows

BLOCK_BYTES = 64 << 20


class Clusters(NamedTuple):
    """Result of :func:`kmeans`."""

    labels: Ints
    """Cluster of every row."""
    centers: Floats
    scores: Floats
    """How near a row is to its center: the dot product if spherical, else minus the squared distance."""


def nmi(embeddings: Any, labels: Any, *, clusters: int | None = None, iterations: int = 20, seed: int = 0) -> float:
    """Normalized mutual information between k-means clusters of the embeddings and the classes.

    Normalized by the arithmetic mean of the two entropies. Rows without a label are left out.

    Args:
        embeddings: One vector a row.
        labels: One label a row; None, NaN or a negative number means no label.
        clusters: Number of clusters; by default the number of classes.
        iterations: Iterations of k-means.
        seed: Seed of the initial centers.

    Returns:
        A value from 0 to 1.

    Example:
        >>> from lookalike.evaluation import nmi
        >>> nmi(np.repeat(np.eye(3), 10, axis=0), np.repeat([0, 1, 2], 10))
        1.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    rows = as_rows(embeddings)
    codes = as_codes(labels, len(rows))
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    if not len(rows):
        raise LookalikeError("NMI needs labeled rows, and there are none.")
    count = clusters or len(np.unique(codes))
    if not 1 <= count <= len(rows):
        raise LookalikeError(f"{len(rows):,} rows cannot be divided into {count:,} clusters.")
    initial = rows[numpy_rng(seed, "k-means").choice(len(rows), size=count, replace=False)]
    return float(normalized_mutual_info_score(codes, kmeans(rows, initial, iterations=iterations).labels))


def kmeans(rows: Floats, initial: Floats, *, iterations: int = 20, spherical: bool = False) -> Clusters:
    """Lloyd's algorithm from given initial centers; spherical compares unit vectors by dot product.

    It ends once the assignment is stable. The center of an empty cluster moves to the row that is farthest from its
    own center.

    Example:
        >>> from lookalike.evaluation.clustering import kmeans
        >>> rows = np.float32([[0, 0], [0, 1], [5, 5], [5, 6]])
        >>> kmeans(rows, rows[:2]).labels
        array([0, 0, 1, 1])
    """
    centers, previous = initial, None
    for _ in range(iterations):
        labels, scores = _assign(rows, centers, spherical)
        if previous is not None and np.array_equal(labels, previous):
            return Clusters(labels, centers, scores)
        previous = labels
        members = sparse.csr_matrix((np.ones(len(rows)), (labels, np.arange(len(rows)))), (len(initial), len(rows)))
        sums = members @ rows
        sizes = np.linalg.norm(sums, axis=1) if spherical else np.bincount(labels, minlength=len(initial))
        centers = np.asarray(sums / np.maximum(sizes, 1e-12)[:, None], dtype=np.float32)
        empty = np.flatnonzero(np.bincount(labels, minlength=len(initial)) == 0)
        centers[empty] = rows[np.argsort(scores, kind="stable")[: len(empty)]]
    labels, scores = _assign(rows, centers, spherical)
    return Clusters(labels, centers, scores)


def _assign(rows: Floats, centers: Floats, spherical: bool) -> tuple[Ints, Floats]:
    labels, scores = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    squares = np.einsum("ij,ij->i", centers, centers)
    step = max(1, BLOCK_BYTES // (4 * len(centers)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = rows[part] @ centers.T
        if not spherical:
            block = 2 * block - squares
        labels[part] = block.argmax(axis=1)
        scores[part] = block.max(axis=1)
    return labels, scores if spherical else scores - np.einsum("ij,ij->i", rows, rows)
