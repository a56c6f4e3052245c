"""The first items of each query in order, exact to double precision, in bounded memory.

Short lists from a large gallery: float32 products pick the candidates with room for their error, and only these are
computed in double precision. Long lists: everything in double precision at once. Equal rows always tie
(docs/decisions/0040).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Doubles, Floats, Ints
from lookalike.evaluation.pairs import pair_scores
from lookalike.evaluation.parallel import in_threads, parts
from lookalike.evaluation.screening import Screen

BLOCK_BYTES = 32 << 20  # of scores that a thread holds at a time
HELD = 1 << 24  # numbers of a gallery that are kept in double precision (128 MB); more are converted as they are met
LARGE = 16_384  # rows from which computing candidates again is cheaper than everything in double precision

Take = Callable[[int, Ints, Doubles], None]


def first_items(
    left: Floats,
    right: Floats,
    depth: Ints,
    take: Take,
    *,
    left_out: Callable[[slice], tuple[Ints, Ints]] | None = None,
) -> None:
    """Give `take(query, columns, scores)` the first `depth[query]` right rows of each left row, ties by column.

    `left_out(part)` gives the (row of the part, column) pairs that are no items at all. `take` is called from threads.
    """
    if not len(left) or not len(right):
        for query in range(len(left)):
            take(query, np.empty(0, np.int64), np.empty(0))
        return
    short = len(right) >= LARGE and int(depth.max(initial=0)) <= len(right) // 8
    maker = _Screened(left, right) if short else _Doubles(left, right)
    size = 4 if short else 8
    step = int(np.clip(BLOCK_BYTES // (size * len(right)), 1, 256))

    def some(part: slice) -> None:
        scores, guess = maker.block(part), -np.inf
        if left_out:
            scores[left_out(part)] = -np.inf
        for row, query in enumerate(range(part.start, part.stop)):
            guess = _one(maker, scores[row], query, int(depth[query]), guess, take)

    in_threads(some, parts(len(left), step))


def _one(maker: _Doubles | _Screened, scores: Any, query: int, depth: int, guess: float, take: Take) -> float:
    """Sort one query's candidates; gives the score that is tried first on the next query."""
    wanted = min(depth, len(scores))
    slack = maker.slack(query)
    candidates = np.flatnonzero(scores > guess)
    if not wanted <= len(candidates) <= 2 * wanted + 64:
        place = len(scores) - min(len(scores), wanted + wanted // 4 + 16)
        guess = float(np.partition(scores, place)[place])
        candidates = np.flatnonzero(scores >= guess)
    if slack > 0:  # what might belong to the list although its screened score does not
        last = float(np.partition(scores[candidates], len(candidates) - wanted)[len(candidates) - wanted])
        candidates = np.flatnonzero(scores >= last - 2 * slack) if last - 2 * slack < guess else candidates
    candidates = candidates[scores[candidates] > -np.inf]
    exact = maker.exact(scores, query, candidates)
    order = _best_first(exact)[:wanted]
    take(query, candidates[order], exact[order])
    return guess


def _best_first(scores: Doubles) -> Ints:
    order = np.argsort(-scores)  # several times as fast as a stable sort, which only ties need
    ranked = scores[order]
    return np.argsort(-scores, kind="stable") if (ranked[1:] == ranked[:-1]).any() else order


class _Doubles:
    """All products in double precision; columns of equal rows are copies of one another."""

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left, self.right = left, torch.from_numpy(right)
        if right.size <= HELD:
            self.right = self.right.double()
        self.copies, self.originals = equal_rows(right)

    def block(self, part: slice) -> Doubles:
        own = torch.from_numpy(self.left[part]).double()
        out = torch.empty(len(own), len(self.right), dtype=torch.float64)
        for start in range(0, len(self.right), 8192):
            columns = slice(start, start + 8192)
            torch.mm(own, self.right[columns].double().T, out=out[:, columns])
        scores = out.numpy()
        if len(self.copies):
            scores[:, self.copies] = scores[:, self.originals]
        return scores

    def slack(self, query: int) -> float:
        return 0.0

    def exact(self, scores: Any, query: int, columns: Ints) -> Doubles:
        return np.asarray(scores[columns])


class _Screened:
    """float32 products; the candidates' scores are computed again."""

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left, self.right, self.screen = left, right, Screen(left, right)

    def block(self, part: slice) -> Floats:
        return torch.mm(self.screen.left[part], self.screen.right.T).numpy()

    def slack(self, query: int) -> float:
        return float(self.screen.slack[query])

    def exact(self, scores: Any, query: int, columns: Ints) -> Doubles:
        return pair_scores(self.left, np.full(len(columns), query), columns, self.right)


def equal_rows(rows: Floats) -> tuple[Ints, Ints]:
    """Rows that repeat an earlier one, and the first row each of them repeats."""
    # Whole numbers wrap around in any order of adding, so equal rows have equal sums.
    weights = numpy_rng(0, "equal rows").integers(1, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    sums = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096] + np.float32(0)  # −0 and 0 are the same number
        sums[start : start + 4096] = (part.view(np.uint32) * weights).sum(axis=1)
    _, first, place = np.unique(sums, return_index=True, return_inverse=True)
    original = first[place.reshape(-1)]
    again = np.flatnonzero(original != np.arange(len(rows)))
    equal = (rows[again] == rows[original[again]]).all(axis=1) if len(again) else np.empty(0, bool)
    return again[equal], original[again][equal]
