"""NMI: how far k-means clusters of the embeddings agree with the classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Floats, Ints, as_codes, as_rows

BLOCK_BYTES = 64 << 20


def nmi(embeddings: Any, labels: Any, *, clusters: int | None = None, iterations: int = 20, seed: int = 0) -> float:
    """Mutual information of clusters and classes over the arithmetic mean of their entropies.

    k-means with as many clusters as there are classes among the rows, 20 iterations.
    """
    rows = as_rows(embeddings)
    codes = as_codes(labels, len(rows))
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    if not len(rows):
        raise LookalikeError("NMI needs labeled rows, and there are none.")
    wanted = clusters or len(np.unique(codes))
    return mutual_information(kmeans(rows, wanted, iterations=iterations, seed=seed), codes)


def kmeans(rows: Floats, clusters: int, *, iterations: int = 20, seed: int = 0) -> Ints:
    """The cluster of every row. An empty cluster takes over the row that lies farthest from its own center."""
    if not 1 <= clusters <= len(rows):
        raise LookalikeError(f"{len(rows):,} rows cannot be parted into {clusters:,} clusters.")
    rng = numpy_rng(seed, "k-means")
    centers = rows[rng.choice(len(rows), size=clusters, replace=False)]
    for _ in range(iterations):
        place, distance = _assign(rows, centers)
        counts = np.bincount(place, minlength=clusters)
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            far = np.argsort(-distance, kind="stable")[: len(empty)]
            place[far] = empty
            counts = np.bincount(place, minlength=clusters)
        centers = _means(rows, place, counts, centers)
    return _assign(rows, centers)[0]


def _means(rows: Floats, place: Ints, counts: Ints, old: Floats) -> Floats:
    order = np.argsort(place, kind="stable")
    filled = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[filled]
    centers = old.copy()  # a cluster robbed of its last row stays where it was
    centers[filled] = np.add.reduceat(rows[order], starts, axis=0) / counts[filled, None]
    return centers


def _assign(rows: Floats, centers: Floats) -> tuple[Ints, Floats]:
    """The nearest center of each row and the squared distance, less the row's own square."""
    place = np.empty(len(rows), np.int64)
    distance = np.empty(len(rows), np.float32)
    squares = np.einsum("ij,ij->i", centers, centers)
    step = max(1, BLOCK_BYTES // (4 * len(centers)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = squares - 2 * (rows[part] @ centers.T)
        place[part] = block.argmin(axis=1)
        distance[part] = block.min(axis=1)
    return place, distance + np.einsum("ij,ij->i", rows, rows)


def mutual_information(first: Ints, second: Ints) -> float:
    """Normalized by the arithmetic mean of the two entropies; 1 when both hold a single group."""
    one = np.unique(first, return_inverse=True)[1].reshape(-1)
    two = np.unique(second, return_inverse=True)[1].reshape(-1)
    both, counts = np.unique(one * (two.max() + 1) + two, return_counts=True)
    joint = counts / len(one)
    p, q = np.bincount(one) / len(one), np.bincount(two) / len(two)
    a, b = np.divmod(both, two.max() + 1)
    shared = float((joint * np.log(joint / (p[a] * q[b]))).sum())
    mean = -float((p * np.log(p)).sum() + (q * np.log(q)).sum()) / 2
    return min(1.0, max(0.0, shared / mean)) if mean > 0 else 1.0
