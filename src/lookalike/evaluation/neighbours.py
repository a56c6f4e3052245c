"""Exact nearest neighbours by blocks: bounded memory, ties by index, nothing approximate."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Floats, Ints, as_rows

BLOCK_BYTES = 64 << 20


def top_k(queries: Any, gallery: Any, k: int, *, exclude: Any = None) -> tuple[Floats, Ints]:
    """The k highest dot products of each query with the gallery: scores and row numbers, best first.

    Equal scores come in the order of the gallery. `exclude` names for each query the gallery row that is the query
    itself (−1: none). Where the gallery holds fewer than k rows the rest is filled with −inf and −1.
    """
    asked, rows = as_rows(queries, "queries"), as_rows(gallery, "gallery vectors")
    if asked.shape[1] != rows.shape[1] and len(asked) and len(rows):
        raise LookalikeError(f"Queries have {asked.shape[1]} dimensions and the gallery {rows.shape[1]}.")
    if k < 1:
        raise LookalikeError(f"`k` is {k}; it must be at least 1.")
    own = None if exclude is None else np.asarray(exclude, dtype=np.int64)
    scores = np.full((len(asked), k), -np.inf, np.float32)
    index = np.full((len(asked), k), -1, np.int64)
    wanted = min(k, len(rows))
    vectors = rows.astype(np.float64).T
    step = max(1, BLOCK_BYTES // max(1, 8 * len(rows)))
    for start in range(0, len(asked) if wanted else 0, step):
        part = slice(start, min(start + step, len(asked)))
        block = asked[part].astype(np.float64) @ vectors
        if own is not None:
            at = np.flatnonzero(own[part] >= 0)
            block[at, own[part][at]] = -np.inf
        order = np.argsort(-block, axis=1, kind="stable")[:, :wanted]
        best = np.take_along_axis(block, order, axis=1)
        scores[part, :wanted] = best
        index[part, :wanted] = np.where(np.isneginf(best), -1, order)
    return scores, index
