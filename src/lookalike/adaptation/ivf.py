"""Searching a very large pool: its rows lie in cells around centroids, and a query looks into the cells nearest to it.

As many cells are looked into as a sample of the queries needs to find 97 % of its true neighbors. Centroids are
fitted on the pool as it is, so a pool without an image has cells that never knew it.
"""

from __future__ import annotations

import numpy as np

from lookalike.adaptation.clusters import spherical
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k

RECALL, SAMPLE, DEPTH = 0.97, 200, 10
FITTED = 32  # rows a centroid is fitted on
BLOCK = 65_536


class Cells:
    """`cells(queries, k)` is what `top_k` would give, nearly: scores and rows of the pool, ties to the lower row."""

    def __init__(self, pool: np.ndarray, queries: np.ndarray) -> None:
        self.pool = pool
        count = max(1, round(len(pool) ** 0.5))
        rows = numpy_rng(0, "cells").permutation(len(pool))[: FITTED * count]
        self.centers = spherical(pool[np.sort(rows)], count, restarts=1, steps=8)
        blocks = range(0, len(pool), BLOCK)
        place = np.concatenate([(pool[start : start + BLOCK] @ self.centers.T).argmax(1) for start in blocks])
        self.order = np.argsort(place, kind="stable")
        self.ends = np.searchsorted(place[self.order], np.arange(count + 1))
        self.probes = self._enough(queries)

    def _enough(self, queries: np.ndarray) -> int:
        some = queries[np.sort(numpy_rng(0, "probes").permutation(len(queries))[:SAMPLE])]
        depth = min(DEPTH, len(self.pool))
        truth = top_k(some, self.pool, depth)[1]
        probes = 1
        while probes < len(self.centers):
            found = self._search(some, depth, probes)[1]
            if np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]) >= RECALL * depth:
                return probes
            probes *= 2
        return len(self.centers)

    def __call__(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._search(queries, k, self.probes)

    def _search(self, queries: np.ndarray, k: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
        scores, index = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        chosen = np.argsort(-(queries @ self.centers.T), axis=1, kind="stable")[:, :probes]
        asks, cells = np.repeat(np.arange(len(queries)), probes), chosen.ravel()
        turn = np.argsort(cells, kind="stable")
        for part in np.split(turn, np.flatnonzero(np.diff(cells[turn])) + 1):
            cell, who = int(cells[part[0]]), asks[part]
            rows = self.order[self.ends[cell] : self.ends[cell + 1]]
            both = np.concatenate([scores[who], queries[who] @ self.pool[rows].T], 1)
            names = np.concatenate([index[who], np.broadcast_to(rows, (len(who), len(rows)))], 1)
            best = np.lexsort((names, -both), axis=-1)[:, :k]
            scores[who], index[who] = np.take_along_axis(both, best, 1), np.take_along_axis(names, best, 1)
        return scores, index
