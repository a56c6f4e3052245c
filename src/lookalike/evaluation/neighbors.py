"""Exact top-k: the nearest neighbors of vectors, and the largest entries of a score matrix.

:func:`top_k` ranks in double precision, for figures that must not depend on rounding. :func:`torch_top_k` ranks in
the precision and on the device of its tensors, for training. :func:`top_k_scores` selects from scores that are known.
All work in blocks and break ties by index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Doubles, Floats, Ints, as_rows

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16_384


def top_k(queries: Any, gallery: Any, k: int, *, exclude: Any = None) -> tuple[Floats, Ints]:
    """Find the k gallery rows with the largest dot product for each query.

    Args:
        queries: Query vectors.
        gallery: Vectors to search.
        k: Number of neighbors.
        exclude: For each query the gallery row to leave out, usually the query itself; −1 for none.

    Returns:
        Scores and row indices, best first, ties by index; −inf and −1 where the gallery has fewer than k rows.

    Shape:
        - queries: ``(n, d)``; gallery: ``(m, d)``; exclude: ``(n,)``.
        - scores and indices: ``(n, k)``.

    Example:
        >>> from lookalike.evaluation import top_k
        >>> gallery = np.float32([[1, 0], [0, 1], [0.6, 0.8]])
        >>> scores, indices = top_k(gallery, gallery, 2, exclude=np.arange(3))
        >>> indices
        array([[2, 1],
               [2, 0],
               [1, 0]])
    """
    from lookalike.evaluation._ranking.ranks import first_items

    left, right = as_rows(queries, "queries"), as_rows(gallery, "gallery vectors")
    if left.shape[1] != right.shape[1] and len(left) and len(right):
        raise LookalikeError(f"Queries have {left.shape[1]} dimensions and the gallery {right.shape[1]}.")
    if k < 1:
        raise LookalikeError(f"`k` is {k}; it must be at least 1.")
    own = np.full(len(left), -1, np.int64) if exclude is None else np.asarray(exclude, dtype=np.int64)
    scores = np.full((len(left), k), -np.inf, np.float32)
    index = np.full((len(left), k), -1, np.int64)

    def store(query: int, columns: Ints, values: Doubles) -> None:
        scores[query, : len(columns)] = values
        index[query, : len(columns)] = columns

    def excluded(part: slice) -> tuple[Ints, Ints]:
        at = np.flatnonzero(own[part] >= 0)
        return at, own[part][at]

    first_items(left, right, np.full(len(left), k), store, left_out=excluded)
    return scores, index


def top_k_scores(scores: Any, k: int) -> tuple[Any, Ints]:
    """Select the k largest entries of each row of a score matrix.

    Example:
        >>> from lookalike.evaluation.neighbors import top_k_scores
        >>> top_k_scores(np.array([[0.1, 0.7, 0.7, 0.2]]), 2)
        (array([[0.7, 0.7]]), array([[1, 2]]))
    """
    count, rows = scores.shape[1], np.arange(len(scores))[:, None]  # `take_along_axis` takes longer for one query
    k = min(k, count)
    if 0 < k < count:
        columns = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        last = scores[rows, columns].min(axis=1, keepdims=True)
        tied = np.flatnonzero(np.count_nonzero(scores >= last, axis=1) > k)  # argpartition takes any of equal entries
        columns[tied] = np.argsort(-scores[tied], axis=1, kind="stable")[:, :k]
    else:
        columns = np.broadcast_to(np.arange(k), (len(scores), k))
    values = scores[rows, columns]
    order = np.lexsort((columns, -values), axis=1)
    return values[rows, order], columns[rows, order]


def torch_top_k(queries: Tensor, references: Tensor, k: int, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Find the k references (m, d) with the largest dot product for each query (n, d), on the tensors' own device.

    Queries are cast to the type of the references, of which ``block`` are compared at a time. Scores and indices (n, k)
    are in order, best first, ties by index.

    Example:
        >>> from lookalike.evaluation.neighbors import torch_top_k
        >>> torch_top_k(torch.eye(2), torch.eye(2), 1)[1].flatten()
        tensor([0, 1])
    """
    import torch

    with torch.no_grad():
        queries = queries.to(references.dtype)
        scores = torch.empty(len(queries), 0, dtype=queries.dtype, device=queries.device)
        index = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        for start in range(0, len(references), block):
            values, columns = _torch_select(queries @ references[start : start + block].t(), k)
            # Earlier references stand first and have the lower indices, so a stable sort keeps ties in order.
            scores, order = torch.cat([scores, values], 1).sort(dim=1, descending=True, stable=True)
            index = torch.cat([index, columns + start], 1).gather(1, order)[:, :k]
            scores = scores[:, :k]
        return scores, index


def _torch_select(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`top_k_scores` for tensors; `Tensor.topk` alone takes any of equal entries."""
    import torch

    width = min(k + 1, scores.shape[1])
    values, columns = scores.topk(width, dim=1)
    if width > k:
        tied = torch.nonzero(values[:, k - 1] == values[:, k])[:, 0]
        values, columns = values[:, :k], columns[:, :k]
        if len(tied):
            ranked = scores[tied].sort(dim=1, descending=True, stable=True)
            values[tied], columns[tied] = ranked.values[:, :k], ranked.indices[:, :k]
    columns = columns.sort(dim=1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)
