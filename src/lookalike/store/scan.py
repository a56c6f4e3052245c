"""Exact search: compare queries with every selected vector, block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lookalike.evaluation.neighbors import top_k_scores
from lookalike.store.protocol import Rows, Vectors

SCORES = 4_000_000  # computed at a time, which bounds the memory
GATHERED = 3  # copying selected vectors one by one costs about as much as comparing three in a row


def nearest(queries: Vectors, vectors: Vectors, k: int, selected: Rows | None = None) -> tuple[Rows, Vectors]:
    """Find the k nearest vectors by cosine.

    Args:
        queries: Unit queries.
        vectors: Unit vectors.
        k: Number of neighbors.
        selected: Positions to compare with, in ascending order (default: all).

    Returns:
        Positions and scores, best first, ties by position.

    Shape:
        - queries: ``(Q, D)``; vectors: ``(N, D)``; selected: ``(S,)``; output: ``(Q, min(k, S))`` each.

    Example:
        >>> nearest(np.eye(2, dtype=np.float32)[:1], np.float32([[0, 1], [1, 0], [0.6, 0.8]]), 2)
        (array([[1, 2]]), array([[1. , 0.6]], dtype=float32))
    """
    total = len(vectors) if selected is None else len(selected)
    k = min(k, total)
    if not k or not len(queries):
        return np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
    mask: NDArray[np.bool_] | None = None
    if selected is not None and GATHERED * total > len(vectors):
        mask = np.ones(len(vectors), dtype=bool)
        mask[selected] = False
        total = len(vectors)
    best: tuple[Rows, Vectors] | None = None
    block = max(4096, SCORES // len(queries))
    for start in range(0, total, block):
        end = min(start + block, total)
        rows = np.arange(start, end) if mask is not None or selected is None else selected[start:end]
        scores = queries @ (vectors[start:end] if mask is not None or selected is None else vectors[rows]).T
        if mask is not None:
            scores[:, mask[start:end]] = -np.inf
        best = _merge(best, rows, scores, k)
    assert best is not None
    return best[0], np.clip(best[1], -1, 1)


def _merge(best: tuple[Rows, Vectors] | None, rows: Rows, scores: Vectors, k: int) -> tuple[Rows, Vectors]:
    """The k best of those so far and of a block of later rows; few of a block beat the k-th best of those before."""
    if best is None or best[0].shape[1] < k:
        result, places = top_k_scores(scores, k)
        block = rows[places], result
        return block if best is None else merge_neighbors([best, block], k)
    query, column = np.nonzero(scores > best[1][:, -1:])
    if not len(query):
        return best
    queries = np.concatenate([np.repeat(np.arange(len(scores)), k), query])
    values = np.concatenate([best[1].ravel(), scores[query, column]])
    numbers = np.concatenate([best[0].ravel(), rows[column]])
    order = np.lexsort((numbers, -values, queries))
    starts = np.searchsorted(queries[order], np.arange(len(scores)))
    first = order[starts[:, None] + np.arange(k)]
    return numbers[first], values[first]


def merge_neighbors(parts: list[tuple[Rows, Vectors]], k: int) -> tuple[Rows, Vectors]:
    """Return the k best of several results for the same queries; −1 and −inf stand for no row."""
    rows, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
