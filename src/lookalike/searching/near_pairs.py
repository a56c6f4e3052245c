"""Pairs of vectors that lie very close together, in about N·√N products instead of N².

√N of the vectors are pivots. Every vector belongs to its nearest pivots' cells, and only vectors that share a cell
are compared: two that are nearly the same have nearly the same pivots nearest.
"""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng

SMALL = 2_000  # fewer are compared directly
CELLS = 3  # nearest pivots of a vector
BLOCK = 4_096


def close_pairs(vectors: np.ndarray, least: float) -> list[tuple[int, int, float]]:
    """(i, j, cosine) with i < j and a cosine of at least `least`, for unit rows."""
    count = len(vectors)
    if count <= SMALL:
        return _within(vectors, np.arange(count), least)
    pivots = vectors[numpy_rng(0, "close pairs").choice(count, round(count**0.5), replace=False)]
    cells = np.empty((count, CELLS), np.int32)
    for start in range(0, count, BLOCK):
        scores = vectors[start : start + BLOCK] @ pivots.T
        cells[start : start + BLOCK] = np.argpartition(-scores, CELLS - 1, axis=1)[:, :CELLS]
    flat = cells.ravel()
    order = np.argsort(flat, kind="stable")
    members = order // CELLS
    edges = np.searchsorted(flat[order], np.arange(len(pivots) + 1))
    found: dict[tuple[int, int], float] = {}
    for cell in range(len(pivots)):
        rows = members[edges[cell] : edges[cell + 1]]
        found.update({(i, j): score for i, j, score in _within(vectors, rows, least)})
    return [(i, j, score) for (i, j), score in sorted(found.items())]


def _within(vectors: np.ndarray, rows: np.ndarray, least: float) -> list[tuple[int, int, float]]:
    """All close pairs among some rows, a block at a time; a crowded cell is compared with BLOCK others each."""
    pairs: list[tuple[int, int, float]] = []
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        scores = np.triu(vectors[part] @ vectors[part].T, 1)
        for a, b in zip(*np.nonzero(scores >= least), strict=True):
            i, j = sorted((int(part[a]), int(part[b])))
            pairs.append((i, j, float(scores[a, b])))
    return pairs
