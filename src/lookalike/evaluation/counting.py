"""Ranks by counting, for many small classes: nothing is sorted, no list of neighbours is made.

A relevant item's rank is one more than the number of items before it. So the relevant items' scores are computed
first, then a screen (`screening.py`) runs over the tiles of the product while they are in cache, and keeps per query
a histogram of the scores above its lowest relevant item that matters. Items whose screened score lies too close to a
relevant item's are compared again, at last in double precision. The answer is that of a full sort in double
precision (docs/decisions/0040). Leave-one-out is symmetric: each tile serves its rows and its columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lookalike.core.device import threads
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints
from lookalike.evaluation.pairs import pair_scores
from lookalike.evaluation.screening import FORBIDDEN, Screen, choose_screen

ROWS, COLUMNS = 512, 1024  # of a tile: the products of one fit the second-level cache
CELLS = 256  # of a query's histogram
SAMPLE = 1024  # columns that tell where the score of the last rank of interest lies
BATCH = 1024  # pairs compared again at a time
ONE = np.int32(1)  # of the histogram's own type, which is what makes `add.at` fast


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
class Slots:
    """Each query's relevant items, best first: scores and columns, padded with −inf."""

    scores: Doubles
    columns: Ints
    relevant: Ints

    @classmethod
    def of(cls, queries: int, i: Ints, j: Ints, scores: Doubles) -> Slots:
        order = np.lexsort((j, -scores, i))
        i, j, scores = i[order], j[order], scores[order]
        relevant = np.bincount(i, minlength=queries)
        place = np.arange(len(i)) - np.repeat(np.cumsum(relevant) - relevant, relevant)
        width = int(relevant.max(initial=0))
        table, columns = np.full((queries, width), -np.inf), np.full((queries, width), -1, np.int64)
        table[i, place], columns[i, place] = scores, j
        return cls(table, columns, relevant)


class Tally:
    """What is counted for one set of queries. `limit`: relevant items below it are given up, if that can be proved."""

    def __init__(self, screen: Screen, slots: Slots, own: Doubles, places: Ints, limit: Doubles) -> None:
        self.slots, self.own, self.places, slack = slots, own, places, screen.slack
        self.error, self.by_slot = screen.single, np.ascontiguousarray(slots.scores.T)
        self.kept = (slots.columns >= 0) & (slots.scores >= limit[:, None])
        number = self.kept.sum(axis=1)
        given_up = number < slots.relevant
        low, high = screen.band(slots.scores, slack[:, None])
        self.own_low = screen.band(own, slack)[0]
        guard_low, self.guard = screen.band(np.where(given_up, limit, 0.0), slack)
        row = np.arange(len(own))
        lowest = low[row, np.maximum(number - 1, 0)] if low.shape[1] else guard_low
        self.floor = np.minimum(np.where(given_up, guard_low, lowest), self.own_low)
        self.floor[slots.relevant == 0] = np.inf
        top = np.where(number > 0, high[:, 0] if high.shape[1] else 0.0, self.guard)
        with np.errstate(invalid="ignore"):
            self.scale = ((CELLS - 2) / np.maximum(top - self.floor, 1e-6)).astype(np.float32)
        self.given_up = given_up
        self.keys = screen.floors(self.floor)
        i, k = np.nonzero(self.kept)
        self.last = np.zeros(self.kept.shape, np.int64)  # cell of the upper end of each slot's band
        self.last[i, k] = self.cell(high[i, k], i)
        self.near = self._bands(i, self.cell(low[i, k], i), self.last[i, k])
        self.histogram = np.zeros(len(own) * CELLS, np.int32)
        self.ahead = np.zeros((len(own), self.kept.shape[1] + 1), np.int64)  # compared again: by the first slot beaten
        # Items before the query itself: of its class now, of others as they are found.
        equal = (slots.scores == own[:, None]) & (slots.columns < places[:, None])
        self.before_own = ((slots.scores > own[:, None]) | equal).sum(axis=1)
        self.lock = threading.Lock()

    def _bands(self, i: Ints, first: Ints, last: Ints) -> Bools:
        """The cells in which an item has to be compared again."""
        edges = np.zeros(len(self.own) * CELLS + 1, np.int32)
        np.add.at(edges, i * CELLS + first, ONE)
        np.add.at(edges, i * CELLS + last + 1, -ONE)
        return np.asarray(np.cumsum(edges[:-1], dtype=np.int32) > 0)

    def cell(self, values: Floats, query: Ints) -> Ints:
        """Place in the query's histogram; never falls when the value rises."""
        place = (values - self.floor[query]) * self.scale[query]
        return np.clip(place, 0, CELLS - 1).astype(np.int64)

    def add(self, values: Floats, query: Ints) -> Ints:
        """Count screened scores, but for those that must be compared again: their places are given back."""
        cell = query * CELLS + self.cell(values, query)
        again = self.near[cell] | (values >= self.own_low[query])
        with self.lock:
            np.add.at(self.histogram, cell[~again], ONE)
        return np.flatnonzero(again)

    def settle(self, scores: Doubles, query: Ints, column: Ints, exact: Callable[[Ints], Doubles]) -> None:
        """Compare pairs with their query's relevant items (and with the query itself) until there is no doubt.

        `scores` are good to `error`; `exact(places)` computes some of them in double precision.
        """
        doubt, own, slots = self.error[query], self.own[query], self.by_slot[:, query]
        sure = (slots > scores + doubt).sum(axis=0, dtype=np.int8)
        before = (slots >= scores - doubt).sum(axis=0, dtype=np.int8).astype(np.int64)  # relevant items that stay so
        before_own = scores > own + doubt
        at = np.flatnonzero((sure != before) | (~before_own & (scores >= own - doubt)))
        if len(at):
            q, c, value = query[at], column[at], exact(at)
            table, place = self.slots.scores[q], self.slots.columns[q]
            first = (table > value[:, None]) | ((table == value[:, None]) & (place < c[:, None]))
            before[at] = first.sum(axis=1)
            before_own[at] = (value > self.own[q]) | ((value == self.own[q]) & (c < self.places[q]))
        with self.lock:
            np.add.at(self.ahead.reshape(-1), query * self.ahead.shape[1] + before, 1)
            np.add.at(self.before_own, query[before_own], 1)

    def finish(self, depth: Ints) -> tuple[Ints, Ints, Bools]:
        """(query, rank) of every relevant item kept, and the queries for which giving up was not proved right."""
        beyond = np.cumsum(self.histogram.reshape(-1, CELLS)[:, ::-1], axis=1, dtype=np.int32)[:, ::-1]
        beyond = np.concatenate([beyond, np.zeros((len(beyond), 1), np.int32)], axis=1)  # items above each cell
        compared = np.cumsum(self.ahead, axis=1)
        row, number = np.arange(len(beyond)), self.kept.sum(axis=1)
        # Items surely better than what was given up: above the limit's band, or better than a slot that was kept.
        better = beyond[row, self.cell(self.guard, row) + 1] + number
        better += np.where(number > 0, compared[row, np.maximum(number - 1, 0)], 0)
        i, k = np.nonzero(self.kept)
        before = beyond[i, self.last[i, k] + 1] + compared[i, k]
        return i, before + k + 1, self.given_up & (better < depth)


@dataclass(frozen=True)
class Counted:
    """As `ranks.Ranks`, less the queries whose counting proved nothing."""

    owner: Ints
    ranks: Ints
    relevant: Ints
    ahead: Ints
    unproved: Bools


def count_ranks(
    left: Floats, right: Floats, labels: tuple[Ints, Ints], places: Ints, ids: tuple[Ints, Ints] | None, depth: int
) -> Counted:
    """Ranks of the relevant right rows for each left row; `left` and `right` being one array means leave-one-out.

    `places` gives the column of each left row on the right (−1: it is not there); it and rows with the same of `ids`
    are left out.
    """
    screen = choose_screen(left, right)
    inside = np.flatnonzero(places >= 0)
    left_out = [(inside, places[inside])] + ([] if ids is None else [equal_pairs(*ids)])
    same_class = equal_pairs(*labels)
    i, j = _without(same_class, left_out, len(right))
    slots = Slots.of(len(left), i, j, pair_scores(left, i, j, right))
    own = np.full(len(left), np.inf)
    own[inside] = pair_scores(left, inside, places[inside], right)
    wanted = np.maximum(depth, slots.relevant)
    tally = Tally(screen, slots, own, places, _limits(screen, wanted))
    _walk(screen, tally, _Forbidden([same_class, *left_out], len(right)), left, right)
    owner, ranks, unproved = tally.finish(wanted)
    near = ranks <= wanted[owner]
    return Counted(owner[near], ranks[near], slots.relevant, tally.before_own, unproved)


def _without(pairs: tuple[Ints, Ints], left_out: list[tuple[Ints, Ints]], columns: int) -> tuple[Ints, Ints]:
    i, j = pairs
    gone = np.concatenate([a * columns + b for a, b in left_out])
    kept = ~np.isin(i * columns + j, gone)
    return i[kept], j[kept]


def _limits(screen: Screen, depth: Ints) -> Doubles:
    """For each query a score that surely `depth` items exceed, guessed from a sample of columns; −inf: no guess."""
    count, columns = len(screen.left), len(screen.right)
    out = np.full(count, -np.inf)
    expected = SAMPLE * int(depth.max(initial=0)) / max(1, columns)
    rank = int(np.ceil(expected + 4 * np.sqrt(expected) + 2))
    if columns < 4 * SAMPLE or rank > SAMPLE // 2:
        return out
    chosen = numpy_rng(0, "limits").choice(columns, size=SAMPLE, replace=False)
    sample = screen.right[np.sort(chosen)].T
    for start in range(0, count, ROWS):
        part = slice(start, min(start + ROWS, count))
        scores = (screen.left[part] @ sample).float().numpy()
        out[part] = np.partition(scores, SAMPLE - rank, axis=1)[:, SAMPLE - rank]
    return out


class _Forbidden:
    """Pairs that never count, found by tile."""

    def __init__(self, pairs: list[tuple[Ints, Ints]], columns: int) -> None:
        i, j = (np.concatenate([p[side] for p in pairs]) for side in (0, 1))
        key = i // ROWS * columns + j
        order = np.argsort(key, kind="stable")
        self.i, self.j, self.key, self.columns = i[order], j[order], key[order], columns

    def inside(self, i: slice, j: slice) -> tuple[Ints, Ints]:
        row = i.start // ROWS * self.columns
        first, last = np.searchsorted(self.key, [row + j.start, row + j.stop])
        return self.i[first:last] - i.start, self.j[first:last] - j.start


def _tiles(rows: int, columns: int, symmetric: bool) -> list[tuple[slice, slice, bool]]:
    """(rows, columns, whether the columns are served as queries too) of every product that is needed."""
    out = []
    for a in range(0, rows, ROWS):
        i = slice(a, min(a + ROWS, rows))
        if symmetric:
            out.append((i, i, False))
        start = i.stop if symmetric else 0
        out += [(i, slice(b, min(b + COLUMNS, columns)), symmetric) for b in range(start, columns, COLUMNS)]
    return out


def _walk(screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats) -> None:
    """Serve all tiles, each by one thread alone: its product stays in that core's cache."""
    import torch

    tiles = iter(_tiles(len(left), len(right), left is right))

    def work() -> None:
        worker = _Worker(screen, tally, forbidden, left, right)
        for tile in tiles:
            worker.serve(*tile)
        worker.settle()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            for done in [pool.submit(work) for _ in range(threads())]:
                done.result()
    finally:
        torch.set_num_threads(before)


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


class _Worker:
    """One thread's buffers, and the pairs it has still to compare."""

    def __init__(self, screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats) -> None:
        self.screen, self.tally, self.forbidden, self.left, self.right = screen, tally, forbidden, left, right
        self.products, self.above = screen.block(ROWS, COLUMNS), np.empty(ROWS * COLUMNS, bool)
        self.one, self.two = (np.empty((BATCH, left.shape[1]), np.float32) for _ in range(2))
        self.pairs = [_NOTHING]
        self.waiting = 0

    def serve(self, i: slice, j: slice, both: bool) -> None:
        block = self.screen.product(i, j, self.products)
        row, column = self.forbidden.inside(i, j)
        block[row, column] = FORBIDDEN
        keys = self.screen.keys(block)
        above = self.above[: keys.size].reshape(keys.shape)
        self.collect(keys, np.greater(keys, self.tally.keys[i, None], out=above), i.start, j.start, False)
        if both:
            self.collect(keys, np.greater(keys, self.tally.keys[None, j], out=above), i.start, j.start, True)

    def collect(self, keys: Any, above: Bools, row: int, column: int, turned: bool) -> None:
        at = np.flatnonzero(above)
        i = at // keys.shape[1]
        j = at - i * keys.shape[1]
        query, other = (j + column, i + row) if turned else (i + row, j + column)
        values = self.screen.values(keys.reshape(-1)[at])
        again = self.tally.add(values, query)
        self.pairs.append((query[again], other[again]))
        self.waiting += len(again)
        if self.waiting >= BATCH:
            self.settle()

    def settle(self) -> None:
        """Compare what is waiting, in batches that stay in cache."""
        query, other = (np.concatenate([p[side] for p in self.pairs]) for side in (0, 1))
        for start in range(0, len(query), BATCH):
            q, c = query[start : start + BATCH], other[start : start + BATCH]
            np.take(self.left, q, axis=0, out=self.one[: len(q)], mode="clip")
            np.take(self.right, c, axis=0, out=self.two[: len(q)], mode="clip")
            scores = np.einsum("ij,ij->i", self.one[: len(q)], self.two[: len(q)]).astype(np.float64)
            self.tally.settle(scores, q, c, partial(self.exact, q, c))
        self.pairs, self.waiting = [_NOTHING], 0

    def exact(self, query: Ints, column: Ints, places: Ints) -> Doubles:
        return pair_scores(self.left, query[places], column[places], self.right)
