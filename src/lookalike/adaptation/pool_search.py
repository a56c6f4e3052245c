"""Retrieve pool images for target images: exact, by an IVF index for very large pools, or at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lookalike.adaptation.target_classes import spherical
from lookalike.core.seeds import derive, numpy_rng
from lookalike.evaluation.neighbors import top_k

IVF_RECALL, IVF_SAMPLE, IVF_DEPTH = 0.97, 200, 10
ROWS_PER_CELL = 32  # rows a centroid is fitted on
IVF_BLOCK = 65_536
Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


class IVFIndex:
    """An inverted-file index of a very large pool: `index(queries, k)` approximates the exact top-k.

    Rows are assigned to about sqrt(n) centroids; a query searches as many cells as a sample of the queries needs for a
    recall of 0.97. Centroids are fitted on the pool as it is, so a pool without an image has no trace of it.

    Args:
        pool: Unit vectors of the pool.
        queries: Unit vectors that the number of cells is chosen with.

    Shape:
        - pool: ``(n, d)``; queries: ``(m, d)``; output: scores and rows, ``(m, k)``.
    """

    def __init__(self, pool: np.ndarray, queries: np.ndarray) -> None:
        self.pool = pool
        count = max(1, round(len(pool) ** 0.5))
        rows = numpy_rng(0, "cells").permutation(len(pool))[: ROWS_PER_CELL * count]
        self.centers = spherical(pool[np.sort(rows)], count, restarts=1, steps=8)
        blocks = range(0, len(pool), IVF_BLOCK)
        place = np.concatenate([(pool[start : start + IVF_BLOCK] @ self.centers.T).argmax(1) for start in blocks])
        self.order = np.argsort(place, kind="stable")
        self.ends = np.searchsorted(place[self.order], np.arange(count + 1))
        self.probes = self._enough(queries)

    def _enough(self, queries: np.ndarray) -> int:
        some = queries[np.sort(numpy_rng(0, "probes").permutation(len(queries))[:IVF_SAMPLE])]
        depth = min(IVF_DEPTH, len(self.pool))
        truth = top_k(some, self.pool, depth)[1]
        probes = 1
        while probes < len(self.centers):
            found = self._search(some, depth, probes)[1]
            if np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]) >= IVF_RECALL * depth:
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


@dataclass(frozen=True)
class Retrieved:
    """Retrieved pool images of every target image, best first.

    Args:
        index: Pool rows, −1 for none.
        scores: Their similarities.
        copies: Pairs left out because the pool image is (nearly) the target image.

    Shape:
        - index, scores: ``(targets, k)``.
    """

    index: np.ndarray
    scores: np.ndarray
    copies: int = 0
    """Pairs left out because the pool image is the target image, or nearly."""

    @property
    def used(self) -> np.ndarray:
        return np.unique(self.index[self.index >= 0])

    def among_used(self) -> np.ndarray:
        """`index` as places among the used ones."""
        return np.where(self.index >= 0, np.searchsorted(self.used, self.index), -1)


def no_retrievals(count: int, k: int) -> Retrieved:
    """Nothing retrieved for any target image."""
    shape = (count, max(k, 1))
    return Retrieved(np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32))


def nearest(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
    exact: int = 500_000,
) -> Retrieved:
    """The k most similar pool images of each target image; ties go to the lower id, copies are left out.

    Args:
        target: Unit vectors of the target images.
        pool: Unit vectors of the pool images.
        target_ids: Content ids of the target images.
        pool_ids: Content ids of the pool images.
        k: Number of images to retrieve.
        near_copy: Similarity from which a pool image counts as a copy.
        exact: Pools of more images are searched by an IVF index.

    Example:
        >>> from lookalike.adaptation.pool_search import nearest
        >>> target, pool = np.eye(2, 3, dtype=np.float32), np.eye(3, dtype=np.float32)
        >>> nearest(target, pool, ["a", "b"], ["x", "y", "z"], 1, near_copy=2.0).index.ravel()
        array([0, 1])
    """
    out = no_retrievals(len(target), k)
    if not k or not len(pool) or not len(target):
        return out
    index, scores = out.index, out.scores
    search: Search = IVFIndex(pool, target) if len(pool) > exact else partial(_exact, pool)
    names = np.asarray(pool_ids)
    open_rows, wide, copies = np.arange(len(target)), min(len(pool), k + 4), 0
    while len(open_rows):
        found, places = search(target[open_rows], wide)
        again = []
        for row, values, at in zip(open_rows, found, places, strict=True):
            copy = (at >= 0) & ((values >= near_copy) | (names[at] == target_ids[int(row)]))
            keep = np.flatnonzero(~copy & (at >= 0))[:k]
            if len(keep) < k and wide < len(pool):
                again.append(row)
                continue
            index[row, : len(keep)], scores[row, : len(keep)] = at[keep], values[keep]
            copies += int(copy.sum())
        open_rows, wide = np.asarray(again, np.int64), min(len(pool), 4 * wide)
    return Retrieved(index, scores, copies)


def _exact(pool: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    return top_k(rows, pool, k)


def random_retrievals(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
    seed: int = 0,
) -> Retrieved:
    """Draw k random pool images for each target image, keyed by the ids of both.

    The draw of a pair does not depend on the other images of the pool. Copies are left out as in `nearest`.
    """
    out = no_retrievals(len(target), k)
    index, scores, copies = out.index, out.scores, 0
    numbers = np.array([derive(seed, "pool", id_) for id_ in pool_ids], np.uint64)
    names = np.asarray(pool_ids)
    for row, id_ in enumerate(target_ids):
        if not k or not len(pool):
            break
        mixed = _scrambled(numbers ^ np.uint64(derive(seed, "target", id_)))
        order, wide = np.argsort(mixed, kind="stable"), k
        while True:
            drawn = order[:wide]
            values = pool[drawn] @ target[row]
            copy = (values >= near_copy) | (names[drawn] == id_)
            if wide >= len(order) or len(drawn) - copy.sum() >= k:
                break
            wide *= 2
        keep = np.flatnonzero(~copy)[:k]
        index[row, : len(keep)], scores[row, : len(keep)] = drawn[keep], values[keep]
        copies += int(copy.sum())
    return Retrieved(index, scores, copies)


def _scrambled(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers without pattern (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
