"""Retrieve pool images for target images: the nearest, exactly, or random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookalike.core.seeds import derive
from lookalike.evaluation.neighbors import top_k


@dataclass(frozen=True)
class Retrieved:
    """Retrieved pool images of every target image, best first.

    Args:
        index: Pool rows, −1 for none.
        scores: Their similarities.
        copies: Number of pairs left out because the pool image is the target image, or nearly.
        own: Similarity of a target image and the nearest other one, the median; NaN if not known.

    Shape:
        - index, scores: ``(targets, k)``.
    """

    index: np.ndarray
    scores: np.ndarray
    copies: int = 0
    own: float = math.nan

    @property
    def used(self) -> np.ndarray:
        return np.unique(self.index[self.index >= 0])

    def describe(self, pool: int) -> str:
        """How many pool images are used, and how alike they are beside the target's own."""
        best = self.scores[self.index[:, 0] >= 0, 0]
        text = f"{len(self.used):,} of {pool:,} images retrieved for {len(self.index):,}"
        if not len(best):
            return text
        return f"{text}, similarity {np.median(best):.2f} (target images among themselves {self.own:.2f})"

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
) -> Retrieved:
    """The k most similar pool images of each target image; ties go to the lower id, copies are left out.

    Args:
        target: Unit vectors of the target images.
        pool: Unit vectors of the pool images.
        target_ids: Content ids of the target images.
        pool_ids: Content ids of the pool images.
        k: Number of images to retrieve.
        near_copy: Similarity from which a pool image counts as a copy.

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
    names = np.asarray(pool_ids)
    open_rows, wide, copies = np.arange(len(target)), min(len(pool), k + 4), 0
    while len(open_rows):
        result, places = top_k(target[open_rows], pool, wide)
        again = []
        for row, values, at in zip(open_rows, result, places, strict=True):
            copy = (at >= 0) & ((values >= near_copy) | (names[at] == target_ids[int(row)]))
            keep = np.flatnonzero(~copy & (at >= 0))[:k]
            if len(keep) < k and wide < len(pool):
                again.append(row)
                continue
            index[row, : len(keep)], scores[row, : len(keep)] = at[keep], values[keep]
            copies += int(copy.sum())
        open_rows, wide = np.asarray(again, np.int64), min(len(pool), 4 * wide)
    return Retrieved(index, scores, copies)


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
    out, copies = no_retrievals(len(target), k), 0
    numbers = np.array([derive(seed, "pool", id_) for id_ in pool_ids], np.uint64)
    names = np.asarray(pool_ids)
    for row, id_ in enumerate(target_ids if k and len(pool) else ()):
        order = np.argsort(_scrambled(numbers ^ np.uint64(derive(seed, "target", id_))), kind="stable")
        values = pool[order] @ target[row]
        copy = (values >= near_copy) | (names[order] == id_)
        keep = np.flatnonzero(~copy)[:k]
        out.index[row, : len(keep)], out.scores[row, : len(keep)] = order[keep], values[keep]
        copies += int(copy[: keep[-1] + 1].sum() if len(keep) == k else copy.sum())
    return Retrieved(out.index, out.scores, copies)


def _scrambled(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers without pattern (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
