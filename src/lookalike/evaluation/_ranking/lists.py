"""The first items of each query in order, exact to double precision, in bounded memory.

Short lists from a large gallery: float32 products pick the candidates with room for their error, and only these are
computed in double precision. Long lists: everything in double precision at once. Equal rows always tie
(docs/decisions/0040).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.parallel import in_threads, parts
from lookalike.evaluation._ranking.screening import Screen
from lookalike.evaluation.arrays import Doubles, Floats, Ints
from lookalike.evaluation.pairs import pair_scores

BLOCK_BYTES = 32 << 20  # of scores that a thread holds at a time
HELD = 1 << 24  # numbers of a gallery that are kept in double precision (128 MB); more are converted as they are met
CROWD = 8  # times the wanted items: where so many are candidates, everything is computed in double precision
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
    screened = _Screened(left, right) if short else None
    doubles = functools.cache(lambda: _Doubles(left, right))
    step = int(np.clip(BLOCK_BYTES // ((4 if short else 8) * len(right)), 1, 256))

    def serve(part: slice, maker: _Doubles | _Screened) -> int:
        """Serve queries one by one; gives the first one that has too many candidates, or the end."""
        scores, guess = maker.block(part), -np.inf
        if left_out:
            scores[left_out(part)] = -np.inf
        for query in range(part.start, part.stop):
            own, slack, wanted = scores[query - part.start], maker.slack(query), min(int(depth[query]), len(right))
            columns, guess = _candidates(own, wanted, slack, guess)
            if slack and len(columns) > CROWD * wanted + 1024:
                return query
            exact = maker.exact(own, query, columns)
            order = _best_first(exact)[:wanted]
            take(query, columns[order], exact[order])
        return part.stop

    def some(part: slice) -> None:
        done = serve(part, screened) if screened else part.start
        if done < part.stop:
            serve(slice(done, part.stop), doubles())

    in_threads(some, parts(len(left), step))


def _candidates(scores: Any, wanted: int, slack: float, guess: float) -> tuple[Ints, float]:
    """The columns that may be among the first, from a guess of the last one's score; and a guess for the next query."""
    columns = np.flatnonzero(scores > guess)
    if not wanted <= len(columns) <= 2 * wanted + 64:
        place = len(scores) - min(len(scores), wanted + wanted // 4 + 16)
        guess = float(np.partition(scores, place)[place])
        columns = np.flatnonzero(scores >= guess)
    if slack:
        last = float(np.partition(scores[columns], len(columns) - wanted)[len(columns) - wanted])
        if last - 2 * slack <= guess:  # items below the guess may belong to the list, for all the screen knows
            columns = np.flatnonzero(scores >= last - 2 * slack)
    return columns[scores[columns] > -np.inf], guess


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
