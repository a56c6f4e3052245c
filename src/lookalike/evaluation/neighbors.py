"""Exact nearest neighbors by blocks: bounded memory, ties by index, nothing approximate."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Doubles, Floats, Ints, as_rows


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
    own = np.full(len(asked), -1, np.int64) if exclude is None else np.asarray(exclude, dtype=np.int64)
    scores = np.full((len(asked), k), -np.inf, np.float32)
    index = np.full((len(asked), k), -1, np.int64)

    def take(query: int, columns: Ints, values: Doubles) -> None:
        scores[query, : len(columns)] = values
        index[query, : len(columns)] = columns

    def left_out(part: slice) -> tuple[Ints, Ints]:
        at = np.flatnonzero(own[part] >= 0)
        return at, own[part][at]

    from lookalike.evaluation._ranking.lists import first_items

    first_items(asked, rows, np.full(len(asked), k), take, left_out=left_out)
    return scores, index
