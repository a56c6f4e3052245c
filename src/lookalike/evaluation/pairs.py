"""The score of a pair of rows, and pairs of the same and of different classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints

CHUNK = 512


def pair_scores(rows: Floats, i: Ints, j: Ints, others: Floats | None = None) -> Doubles:
    """Dot products of rows i with rows (or `others`) j in double precision.

    Each is summed in the same order whatever its company, so equal rows give equal bits.
    """
    others = rows if others is None else others
    out = np.empty(len(i), np.float64)
    for start in range(0, len(i), CHUNK):
        part = slice(start, start + CHUNK)
        out[part] = np.einsum("ij,ij->i", rows[i[part]].astype(np.float64), others[j[part]].astype(np.float64))
    return out


def equal_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Every (i, j) with left[i] == right[j] ≥ 0, in the order of i and then j."""
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    first, last = np.searchsorted(ranked, left, "left"), np.searchsorted(ranked, left, "right")
    count = np.where(left >= 0, last - first, 0)
    i = np.repeat(np.arange(len(left)), count)
    place = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    return i, order[np.repeat(first, count) + place]


@dataclass(frozen=True)
class Pairs:
    left: Ints
    right: Ints
    same: Bools
    complete: bool  # every pair there is, not a sample

    def __len__(self) -> int:
        return len(self.left)


def draw_pairs(labels: Ints, *, limit: int = 2_000_000, ids: Ints | None = None, seed: int = 0) -> Pairs:
    """Pairs of labeled rows: all of them when they fit the limit, else a sample with half the limit of each kind.

    An image is never paired with itself nor, when `ids` are given, with one of the same content.
    """
    known = np.flatnonzero(labels >= 0)
    if len(known) * (len(known) - 1) // 2 <= limit:
        one, two = np.triu_indices(len(known), k=1)
        left, right, complete = known[one], known[two], True
    else:
        rng = numpy_rng(seed, "pairs")
        positive = _same_class(labels, known, limit // 2, rng)
        negative = _different_class(labels, known, limit - limit // 2, rng)
        left, right = np.concatenate([positive[0], negative[0]]), np.concatenate([positive[1], negative[1]])
        complete = False
    if ids is not None:
        kept = (ids[left] != ids[right]) | (ids[left] < 0)
        left, right = left[kept], right[kept]
    same = labels[left] == labels[right]
    if not same.any() or same.all():
        raise LookalikeError("Pairs of the same and of different classes are needed, and one kind is missing.")
    return Pairs(left, right, same, complete)


def _same_class(labels: Ints, known: Ints, limit: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Every pair of the same class, or `limit` of them drawn evenly."""
    order = known[np.argsort(labels[known], kind="stable")]
    _, start, size = np.unique(labels[order], return_index=True, return_counts=True)
    number = size * (size - 1) // 2
    total = int(number.sum())
    chosen = np.arange(total) if total <= limit else rng.choice(total, size=limit, replace=total > 50_000_000)
    group = np.searchsorted(np.cumsum(number), chosen, side="right")
    inside = chosen - (np.cumsum(number) - number)[group]
    # The pairs (b, a) with a < b of a class in rising order: number b(b−1)/2 + a, read backwards.
    second = ((1 + np.sqrt(1 + 8 * inside.astype(np.float64))) / 2).astype(np.int64)
    second -= second * (second - 1) // 2 > inside
    first = inside - second * (second - 1) // 2
    return order[start[group] + first], order[start[group] + second]


def _different_class(labels: Ints, known: Ints, limit: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    if len(np.unique(labels[known])) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lefts: list[Ints] = []
    rights: list[Ints] = []
    count = 0
    while count < limit:
        left, right = rng.choice(known, size=limit), rng.choice(known, size=limit)
        kept = labels[left] != labels[right]
        lefts.append(left[kept][: limit - count])
        rights.append(right[kept][: limit - count])
        count += len(lefts[-1])
    return np.concatenate(lefts), np.concatenate(rights)
