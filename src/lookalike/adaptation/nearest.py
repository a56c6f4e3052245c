"""Who is retrieved for whom. A pool image that is taken away changes only the lists it was in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lookalike.adaptation.ivf import Cells
from lookalike.core.seeds import derive
from lookalike.evaluation.neighbors import top_k

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Retrieved:
    """For every target image: pool images (−1: none), best first, and their scores."""

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


def nobody(count: int, k: int) -> Retrieved:
    """Nothing is retrieved for anybody."""
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
    """The k most alike pool images of each target image; ties to the lower id; copies of it left out.

    Pools of more than `exact` images are searched by cells.
    """
    out = nobody(len(target), k)
    if not k or not len(pool) or not len(target):
        return out
    index, scores = out.index, out.scores
    search: Search = Cells(pool, target) if len(pool) > exact else partial(_exactly, pool)
    names = np.asarray(pool_ids)
    asked, wide, copies = np.arange(len(target)), min(len(pool), k + 4), 0
    while len(asked):
        found, places = search(target[asked], wide)
        again = []
        for row, values, at in zip(asked, found, places, strict=True):
            copy = (at >= 0) & ((values >= near_copy) | (names[at] == target_ids[int(row)]))
            keep = np.flatnonzero(~copy & (at >= 0))[:k]
            if len(keep) < k and wide < len(pool):
                again.append(row)
                continue
            index[row, : len(keep)], scores[row, : len(keep)] = at[keep], values[keep]
            copies += int(copy.sum())
        asked, wide = np.asarray(again, np.int64), min(len(pool), 4 * wide)
    return Retrieved(index, scores, copies)


def _exactly(pool: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    return top_k(rows, pool, k)


def at_random(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
    seed: int = 0,
) -> Retrieved:
    """k pool images of each target image drawn by the ids of both: fixed, and the same without any other one.
    Copies of it are left out here too."""
    out = nobody(len(target), k)
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
