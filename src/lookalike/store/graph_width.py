"""How wide a graph must search: the smallest width that is good enough against exact search, by measurement."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lookalike.store.protocol import Store, Vectors

RECALL = 0.995  # of probes among the stored vectors; strange queries, promised 0.97, find less
WIDTHS = (16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBES = 200


class Graph(Store, Protocol):
    """A store that searches a graph, keeping `width` candidates."""

    width: int | None


def measured(store: Graph, rows: Vectors) -> tuple[int, float]:
    """The smallest search width whose recall@10 is high enough, and that recall; `rows` are some stored vectors."""
    queries = between(store, rows)
    truth = [{hit.id for hit in hits} for hits in store.query_many(queries, 10, exact=True)]
    recall = 0.0
    for width in WIDTHS:
        store.width = width
        found = store.query_many(queries, 10)
        recall = float(np.mean([len(t & {h.id for h in f}) / len(t) for t, f in zip(truth, found, strict=True)]))
        if recall >= RECALL:
            return width, recall
    return WIDTHS[-1], recall


def between(store: Store, rows: Vectors) -> Vectors:
    """Queries that lie among the stored vectors without being any of them: halfway to a near neighbor."""
    near = store.query_many(rows, 6, exact=True)
    other = store.get([hits[-1].id for hits in near], vectors=True)
    return np.stack([row + o.vector for row, o in zip(rows, other, strict=True) if o and o.vector is not None])
