"""Choose the search width (``ef``) of a graph: the smallest whose measured recall is high enough."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lookalike.store.protocol import Store, Vectors

MIN_RECALL = 0.995  # of probes near stored vectors; other queries, for which 0.97 is promised, reach less
WIDTHS = (16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBES = 200


class Graph(Store, Protocol):
    """A store that searches a graph, keeping ``width`` candidates."""

    width: int | None


def measure_width(store: Graph, rows: Vectors) -> tuple[int, float]:
    """Find the smallest search width whose recall@10 against exact search is high enough.

    Args:
        store: The store; its ``width`` is set.
        rows: Some stored vectors.

    Returns:
        The width and its recall.
    """
    queries = midpoints(store, rows)
    truth = [{hit.id for hit in hits} for hits in store.query_many(queries, 10, exact=True)]
    recall = 0.0
    for width in WIDTHS:
        store.width = width
        answers = store.query_many(queries, 10)
        recall = float(np.mean([len(t & {h.id for h in a}) / len(t) for t, a in zip(truth, answers, strict=True)]))
        if recall >= MIN_RECALL:
            return width, recall
    return WIDTHS[-1], recall


def midpoints(store: Store, rows: Vectors) -> Vectors:
    """Return queries among the stored vectors that are none of them: halfway to a near neighbor."""
    near = store.query_many(rows, 6, exact=True)
    other = store.get([hits[-1].id for hits in near], vectors=True)
    return np.stack([row + o.vector for row, o in zip(rows, other, strict=True) if o and o.vector is not None])
