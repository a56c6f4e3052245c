"""Ranks of each query's relevant items, exact to double precision; every retrieval metric follows from them.

Queries with few relevant items in a large gallery are counted (`counting.py`), the others get a sorted list of their
first items. Lists from a large gallery: float32 products select candidates with a margin for their error, and only
these are computed in double precision. Equal rows always tie (docs/design/evaluation.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import Screen, in_threads, parts
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints, pair_scores

FEW_RELEVANT = 32  # relevant items of a query up to which counting is faster
MANY_PAIRS = 1 << 24  # pairs of a query and an item from which counting is worth its preparation
FAR = np.iinfo(np.int64).max // 2  # a rank behind everything
BLOCK_BYTES = 32 << 20  # of scores that a thread holds at a time
HELD = 1 << 24  # size of a gallery that is converted to double precision as a whole (128 MB)
CROWD = 8  # times the requested items: with more candidates, everything is computed in double precision
LARGE = 16_384  # gallery rows from which computing candidates again is cheaper than everything in double precision


@dataclass(frozen=True)
class RankingTask:
    """Queries, gallery and what counts as relevant."""

    rows: Floats
    labels: Ints | Bools  # class of each row (−1: none), or a matrix (rows, labels) if an image has several
    query: Ints
    gallery: Ints
    ids: Ints | None = None  # content ids (−1: none); pairs of equal content are left out
    coarse: Ints | None = None
    top: int = 1000  # rank up to which average precision is computed
    depth: int = 1000  # ranks beyond max(depth, number of relevant items) are not needed

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def positions(self) -> Ints:
        """Position of each query in the gallery, −1 if it is not there."""
        position = np.full(len(self.rows), -1, np.int64)
        position[self.gallery] = np.arange(len(self.gallery))
        return position[self.query]

    def rows_of(self, index: Ints) -> Floats:
        """Vectors of some rows, without a copy if these are all."""
        whole = len(index) == len(self.rows) and bool((index == np.arange(len(index))).all())
        return self.rows if whole else self.rows[index]


class RankStatistics:
    """Sums over the ranks of each query's relevant items, from which metrics are computed; ranks are not stored.

    ``precision`` sums the precisions at relevant ranks up to ``top``, ``precision_r`` up to rank R, the number of
    relevant items; ``authors`` is as ``precision``, over the list as the code of the ooDML paper makes it.
    """

    def __init__(self, relevant: Ints, top: int) -> None:
        count = len(relevant)
        self.relevant, self.top = relevant, top
        self.first, self.first_coarse = np.full(count, FAR), np.full(count, FAR)
        self.precision, self.precision_r, self.authors = np.zeros(count), np.zeros(count), np.zeros(count)
        self.hits_r = np.zeros(count)

    def add(self, query: int, ranks: Ints, ahead: int) -> None:
        """Add the ascending ranks of one query; ``ahead`` items would stand before the query itself."""
        if len(ranks):
            self.first[query] = ranks[0]
        precision = np.arange(1, len(ranks) + 1) / ranks
        within, within_r = np.searchsorted(ranks, [self.top, self.relevant[query]], side="right")
        self.precision[query] = self.authors[query] = precision[:within].sum()
        self.precision_r[query], self.hits_r[query] = precision[:within_r].sum(), within_r
        if ahead:
            self.authors[query] = _authors_precision(ranks, ahead, self.top)

    def add_many(self, owner: Ints, ranks: Ints, ahead: Ints) -> None:
        """Add the ranks of all queries at once, concatenated; ``owner`` is the query of each."""
        count = len(self.relevant)
        starts = np.searchsorted(owner, np.arange(count + 1))
        precision = (np.arange(len(ranks)) - starts[owner] + 1) / ranks
        some = np.flatnonzero(starts[1:] > starts[:-1])
        self.first[some] = ranks[starts[some]]
        near, near_r = ranks <= self.top, ranks <= self.relevant[owner]
        np.add.at(self.precision, owner[near], precision[near])
        np.add.at(self.precision_r, owner[near_r], precision[near_r])
        np.add.at(self.hits_r, owner[near_r], 1.0)
        self.authors = self.precision.copy()
        for query in np.flatnonzero(ahead):
            own = ranks[starts[query] : starts[query + 1]]
            self.authors[query] = _authors_precision(own, int(ahead[query]), self.top)

    def replace(self, index: Ints, other: RankStatistics) -> None:
        """Take over the statistics of the queries ``index``."""
        for name in ("relevant", "first", "first_coarse", "precision", "precision_r", "authors", "hits_r"):
            getattr(self, name)[index] = getattr(other, name)


def _authors_precision(ranks: Ints, ahead: int, top: int) -> float:
    """Sum of precisions if the first item is dropped whatever it is, and the query, being behind it, is a hit.

    Without its first item the list moves up by one, and the query stands at rank `ahead`; what was behind the query
    keeps its rank, because the query now fills the gap.
    """
    moved = np.append(np.where(ranks <= ahead, ranks - 1, ranks), ahead)
    moved = np.sort(moved[(moved > 0) & (moved <= top)])
    return float((np.arange(1, len(moved) + 1) / moved).sum())


def find_ranks(task: RankingTask) -> RankStatistics:
    """Compute the rank statistics of all queries, by counting or by lists, whichever is faster; both agree."""
    counted = np.zeros(len(task.query), bool)
    if not task.multilabel and task.coarse is None and _few_copies(task):
        counted = relevant_counts(replace(task, ids=None)) <= FEW_RELEVANT
        if int(counted.sum()) * len(task.gallery) < MANY_PAIRS:
            counted[:] = False
    if not counted.any():
        return ranks_by_lists(task)
    statistics, unproved = ranks_by_counting(replace(task, query=task.query[counted]))
    rest = ~counted
    rest[np.flatnonzero(counted)[unproved]] = True
    if not rest.any():
        return statistics
    out = RankStatistics(np.zeros(len(counted), np.int64), task.top)
    out.replace(np.flatnonzero(counted), statistics)
    out.replace(np.flatnonzero(rest), ranks_by_lists(replace(task, query=task.query[rest])))
    return out


def _few_copies(task: RankingTask) -> bool:
    """Whether equal content is the exception: counting stores such pairs one by one."""
    if task.ids is None:
        return True
    sizes = np.unique(task.ids[task.ids >= 0], return_counts=True)[1]
    return int(np.square(sizes).sum()) <= 64 * len(task.ids)


def ranks_by_counting(task: RankingTask) -> tuple[RankStatistics, Bools]:
    """Rank by `counting.py`; also returns which queries it could not answer."""
    from lookalike.evaluation._ranking.counting import count_ranks

    right = task.rows_of(task.gallery)
    left = right if np.array_equal(task.query, task.gallery) else task.rows_of(task.query)
    labels = (task.labels[task.query].astype(np.int64), task.labels[task.gallery].astype(np.int64))
    ids = None if task.ids is None else (task.ids[task.query], task.ids[task.gallery])
    result = count_ranks(left, right, labels, task.positions, ids, task.depth)
    statistics = RankStatistics(result.relevant, task.top)
    if not result.unproved.all():
        statistics.add_many(result.owner, result.ranks, result.ahead)
    return statistics, result.unproved


def ranks_by_lists(task: RankingTask) -> RankStatistics:
    """Rank by sorting the first items of each query."""
    positions, relevant = task.positions, relevant_counts(task)
    depth = np.maximum(task.depth, relevant)
    statistics = RankStatistics(relevant, task.top)
    labels = task.labels[task.gallery]
    coarse = None if task.coarse is None else task.coarse[task.gallery]

    def store(query: int, columns: Ints, scores: Doubles) -> None:
        own = np.flatnonzero(columns == positions[query])  # the query is listed too, which tells what is ahead of it
        ahead = int(own[0]) if len(own) else FAR
        ranks = _hit_ranks(_same(labels[columns], task.labels[task.query[query]]), ahead)
        statistics.add(query, ranks[ranks <= depth[query]], ahead if positions[query] >= 0 else 0)
        if coarse is not None and task.coarse is not None:
            ranks = _hit_ranks(_same(coarse[columns], task.coarse[task.query[query]]), ahead)
            statistics.first_coarse[query] = ranks[0] if len(ranks) and ranks[0] <= task.depth else FAR

    def copies(part: slice) -> tuple[Ints, Ints]:
        assert task.ids is not None
        same = _same(task.ids[task.gallery][None, :], task.ids[task.query[part], None])
        row, column = np.nonzero(same & (positions[part, None] != np.arange(len(task.gallery))))
        return row, column

    left, right = task.rows_of(task.query), task.rows_of(task.gallery)
    first_items(left, right, depth + 1, store, left_out=None if task.ids is None else copies)
    return statistics


def _hit_ranks(hit: Bools, own: int) -> Ints:
    """1-based ranks of hits in a list from which the item at `own` is removed."""
    at = np.flatnonzero(hit)
    return at[at != own] + 1 - (at[at != own] > own)


def _same(codes: Ints | Bools, own: Ints | Bools) -> Bools:
    if codes.dtype == bool:
        return np.asarray((codes & own).any(axis=-1))
    return np.asarray((codes == own) & (own >= 0))


def relevant_counts(task: RankingTask) -> Ints:
    """Count the relevant items of each query."""
    if task.multilabel or task.ids is not None:
        labels, counts = task.labels[task.gallery], np.empty(len(task.query), np.int64)
        for n, row in enumerate(task.query):
            relevant = _same(labels, task.labels[row]) & (task.gallery != row)
            if task.ids is not None:
                relevant &= ~_same(task.ids[task.gallery], task.ids[row])
            counts[n] = relevant.sum()
        return counts
    ordered, own = np.sort(task.labels[task.gallery]), task.labels[task.query]
    sizes = np.searchsorted(ordered, own, "right") - np.searchsorted(ordered, own, "left")
    return np.where(own >= 0, sizes - (task.positions >= 0), 0)


def first_items(
    left: Floats,
    right: Floats,
    depth: Ints,
    store: Callable[[int, Ints, Doubles], None],
    *,
    left_out: Callable[[slice], tuple[Ints, Ints]] | None = None,
) -> None:
    """Call ``store(query, columns, scores)`` in threads with the first right rows of each left row, ties by column.

    ``left_out`` gives for a slice of queries the (row of the slice, column) pairs that are no items at all.
    """
    if not len(left) or not len(right):
        for query in range(len(left)):
            store(query, np.empty(0, np.int64), np.empty(0))
        return
    short = len(right) >= LARGE and int(depth.max(initial=0)) <= len(right) // 8
    screened = _ScreenedProducts(left, right) if short else None
    exact_products = functools.cache(lambda: _DoubleProducts(left, right))
    step = int(np.clip(BLOCK_BYTES // ((4 if short else 8) * len(right)), 1, 256))

    def rank(part: slice, products: _DoubleProducts | _ScreenedProducts) -> int:
        """Rank queries one by one up to the first with too many candidates; returns that one, or the end."""
        scores, guess = products.block(part), -np.inf
        if left_out:
            scores[left_out(part)] = -np.inf
        for query in range(part.start, part.stop):
            own, slack, count = scores[query - part.start], products.slack(query), min(int(depth[query]), len(right))
            columns, guess = _candidates(own, count, slack, guess)
            if slack and len(columns) > CROWD * count + 1024:
                return query
            exact = products.exact(own, query, columns)
            order = _best_first(exact)[:count]
            store(query, columns[order], exact[order])
        return part.stop

    def rank_part(part: slice) -> None:
        done = rank(part, screened) if screened else part.start
        if done < part.stop:
            rank(slice(done, part.stop), exact_products())

    in_threads(rank_part, parts(len(left), step))


def _candidates(scores: Any, count: int, slack: float, guess: float) -> tuple[Ints, float]:
    """Columns that may be among the first, from a guess of the last one's score; and a guess for the next query."""
    columns = np.flatnonzero(scores > guess)
    if not count <= len(columns) <= 2 * count + 64:
        place = len(scores) - min(len(scores), count + count // 4 + 16)
        guess = float(np.partition(scores, place)[place])
        columns = np.flatnonzero(scores >= guess)
    if slack:
        last = float(np.partition(scores[columns], len(columns) - count)[len(columns) - count])
        if last - 2 * slack <= guess:  # items below the guess may belong to the list within the error of the screen
            columns = np.flatnonzero(scores >= last - 2 * slack)
    return columns[scores[columns] > -np.inf], guess


def _best_first(scores: Doubles) -> Ints:
    order = np.argsort(-scores)  # several times as fast as a stable sort, which only ties need
    ranked = scores[order]
    return np.argsort(-scores, kind="stable") if (ranked[1:] == ranked[:-1]).any() else order


class _DoubleProducts:
    """All products in double precision; columns of equal rows are copies of one another."""

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left, self.right = left, torch.from_numpy(right)
        if right.size <= HELD:
            self.right = self.right.double()
        self.copies, self.originals = equal_rows(right)

    def block(self, part: slice) -> Doubles:
        own = torch.from_numpy(self.left[part]).double()
        out = torch.empty(len(own), len(self.right), dtype=torch.float64)
        for columns in parts(len(self.right), 8192):
            torch.mm(own, self.right[columns].double().T, out=out[:, columns])
        scores = out.numpy()
        if len(self.copies):
            scores[:, self.copies] = scores[:, self.originals]
        return scores

    def slack(self, query: int) -> float:
        return 0.0

    def exact(self, scores: Any, query: int, columns: Ints) -> Doubles:
        return np.asarray(scores[columns])


class _ScreenedProducts:
    """float32 products; the scores of candidates are computed again."""

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left, self.right, self.screen = left, right, Screen(left, right)

    def block(self, part: slice) -> Floats:
        return torch.mm(self.screen.left[part], self.screen.right.T).numpy()

    def slack(self, query: int) -> float:
        return float(self.screen.slack[query])

    def exact(self, scores: Any, query: int, columns: Ints) -> Doubles:
        return pair_scores(self.left, np.full(len(columns), query), columns, self.right)


def equal_rows(rows: Floats) -> tuple[Ints, Ints]:
    """Find rows that repeat an earlier one, and the first row each of them repeats."""
    # Integers wrap around in any order of adding, so equal rows have equal sums.
    weights = numpy_rng(0, "equal rows").integers(1, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    sums = np.empty(len(rows), np.uint64)
    for part in parts(len(rows), 4096):
        values = rows[part] + np.float32(0)  # −0 and 0 are the same number
        sums[part] = (values.view(np.uint32) * weights).sum(axis=1)
    _, first, place = np.unique(sums, return_index=True, return_inverse=True)
    original = first[place.reshape(-1)]
    again = np.flatnonzero(original != np.arange(len(rows)))
    equal = (rows[again] == rows[original[again]]).all(axis=1) if len(again) else np.empty(0, bool)
    return again[equal], original[again][equal]
