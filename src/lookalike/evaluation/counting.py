"""Ranks by counting, for many small classes: nothing is sorted, no list of neighbours is made.

A relevant item's rank is one more than the number of items before it. So the relevant items' scores are computed
first, then a screen (`screening.py`) runs over the tiles of the product while they are in cache, and keeps per query
a histogram of the scores above its lowest relevant item that matters. Items whose screened score lies too close to a
relevant item's are compared again, at last in double precision. The answer is that of a full sort in double
precision (docs/decisions/0040). Leave-one-out is symmetric: each tile serves its rows and its columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lookalike.core.device import threads
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints
from lookalike.evaluation.pairs import pair_scores
from lookalike.evaluation.screening import FORBIDDEN, Screen, choose_screen, single_products

ROWS, COLUMNS = 512, 1024  # of a tile: the products of one fit the second-level cache
CELLS = 256  # of a query's histogram
SAMPLE = 1024  # columns that tell at first where the score of the last rank of interest lies
STAGES = (1 / 32, 1 / 8, 1 / 3, 2 / 3, 1)  # shares of the work after which the limits are drawn tighter
PART = 2048  # queries whose limits are drawn at a time
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
    """Each query's relevant items, best first: scores and places in the gallery, padded with −inf and −1."""

    scores: Doubles
    places: Ints
    relevant: Ints

    @classmethod
    def of(cls, queries: int, query: Ints, column: Ints, scores: Doubles, order: Ints) -> Slots:
        """`order` gives the place of each column."""
        place = order[column]
        best = np.lexsort((place, -scores, query))
        query, place, scores = query[best], place[best], scores[best]
        relevant = np.bincount(query, minlength=queries)
        number = np.arange(len(query)) - np.repeat(np.cumsum(relevant) - relevant, relevant)
        width = int(relevant.max(initial=0))
        table, places = np.full((queries, width), -np.inf), np.full((queries, width), -1, np.int64)
        table[query, number], places[query, number] = scores, place
        return cls(table, places, relevant)


class Tally:
    """What is counted for each query.

    Relevant items below a query's `limit` are given up. The limit is a guess of where the last rank of interest lies,
    drawn tighter as more columns are seen; `better` items surely above it prove it right, and then nothing below the
    lowest item still kept has to be looked at.
    """

    def __init__(
        self, screen: Screen, slots: Slots, own: Doubles, own_place: Ints, depth: Ints, limit: Doubles
    ) -> None:
        count, width = slots.scores.shape
        self.screen, self.slots, self.depth, self.limit = screen, slots, depth, limit
        self.own, self.own_place = own, own_place
        self.by_slot = np.ascontiguousarray(slots.scores.T)
        self.low, self.high = screen.band(slots.scores, screen.slack[:, None])
        self.own_low = screen.band(own, screen.slack)[0]
        self.histogram = np.zeros(count * CELLS, np.int32)
        self.ahead = np.zeros((count, width + 1), np.int64)  # items compared again, by the first slot they beat
        # Items that stand before the query itself: of its class at once, of others as they are met.
        equal = (slots.scores == own[:, None]) & (slots.places < own_place[:, None])
        self.before_own = ((slots.scores > own[:, None]) | equal).sum(axis=1)
        self.near = np.zeros(count * CELLS, bool)  # cells whose items are compared again
        self.number = np.zeros(count, np.int64)  # slots still kept
        self.proved = np.zeros(count, bool)
        self.floor = np.zeros(count, np.float32)
        self.base, self.scale = np.zeros(count, np.float32), np.ones(count, np.float32)
        self.lock = threading.Lock()
        self._draw(slice(0, count))
        # A histogram reaches from the first floor to the best relevant item; its last cell holds all above that.
        top = np.where(self.number > 0, self.high[:, 0] if width else 0.0, self._guard(slice(0, count))[1])
        self.base = np.where(np.isinf(self.floor), 0, self.floor).astype(np.float32)
        self.scale = ((CELLS - 2) / np.maximum(top - self.base, 1e-6)).astype(np.float32)
        self._draw(slice(0, count))
        self.keys = screen.floors(self.floor)

    def _kept(self, part: slice, limit: Doubles) -> Bools:
        return np.asarray((self.slots.places[part] >= 0) & (self.slots.scores[part] >= limit[:, None]))

    def _guard(self, part: slice) -> tuple[Floats, Floats]:
        limit = self.limit[part]
        return self.screen.band(np.where(np.isfinite(limit), limit, 0.0), self.screen.slack[part])

    def _draw(self, part: slice) -> None:
        """Which slots are kept, from which score on items count, and in which cells they are compared again."""
        slots, low, kept = self.slots, self.low[part], self._kept(part, self.limit[part])
        number = kept.sum(axis=1)
        floor = np.full(len(number), np.inf, np.float32)
        some = np.flatnonzero(number)
        floor[some] = low[some, number[some] - 1]
        searching = (number < slots.relevant[part]) & ~self.proved[part]
        floor = np.where(searching, np.minimum(floor, self._guard(part)[0]), floor)
        self.floor[part] = np.where(slots.relevant[part] > 0, np.minimum(floor, self.own_low[part]), np.inf)
        self.number[part] = number
        i, k = np.nonzero(kept)
        edges = np.zeros(len(number) * CELLS + 1, np.int32)
        np.add.at(edges, i * CELLS + self.cell(low[i, k], i + part.start), ONE)
        np.add.at(edges, i * CELLS + self.cell(self.high[part][i, k], i + part.start) + 1, -ONE)
        self.near[part.start * CELLS : part.stop * CELLS] = np.cumsum(edges[:-1], dtype=np.int32) > 0

    def cell(self, values: Floats, query: Ints) -> Ints:
        """Place in the query's histogram; never falls when the value rises."""
        place = (values - self.base[query]) * self.scale[query]
        return np.clip(place, 0, CELLS - 1).astype(np.int64)

    def _beyond(self, part: slice) -> npt.NDArray[np.int32]:
        """For each cell how many items were counted in it or above, and a last column of zeros."""
        cells = self.histogram[part.start * CELLS : part.stop * CELLS].reshape(-1, CELLS)
        sums = np.zeros((len(cells), CELLS + 1), np.int32)
        np.cumsum(cells[:, ::-1], axis=1, out=sums[:, -2::-1])
        return sums

    def tighten(self, part: slice, seen: Ints, columns: int) -> None:
        """Draw the limits of some queries anew from what they have met so far, `seen` of all columns."""
        beyond, query = self._beyond(part), np.arange(part.start, part.stop)
        expected = self.depth[part] * (seen[part] / columns)
        wanted = expected + 4 * np.sqrt(expected) + 2
        cell = (beyond >= wanted[:, None]).sum(axis=1) - 1  # the highest one with so many in it or above
        limit = np.maximum(self.limit[part], self.base[part] + np.maximum(cell, 0) / self.scale[part])
        fewer = (self._kept(part, limit).sum(axis=1) < self.number[part]) & (seen[part] < columns)
        self.limit[part] = np.where(fewer, limit, self.limit[part])
        number = self._kept(part, self.limit[part]).sum(axis=1)
        sure = beyond[query - part.start, self.cell(self._guard(part)[1], query) + 1]
        self.proved[part] = (self.proved[part] & ~fewer) | (sure + number >= self.depth[part])
        self._draw(part)

    def add(self, values: Floats, query: Ints) -> tuple[Ints, Bools]:
        """Count screened scores; places of those to compare again, and whether with slots or only with the query."""
        cell = query * CELLS + self.cell(values, query)
        with self.lock:
            np.add.at(self.histogram, cell, ONE)
        near = self.near[cell]
        again = np.flatnonzero(near | (values >= self.own_low[query]))
        return again, near[again]

    def settle(self, scores: Doubles, query: Ints, place: Ints, near: Bools, exact: Callable[[Ints], Doubles]) -> None:
        """Compare items with their query's relevant ones, and with the query itself, until there is no doubt.

        `scores` are good to the screen's `single` error; `exact(some)` gives some of them in double precision.
        `place` is where the item stands in the gallery.
        """
        doubt, own, slots = self.screen.single[query], self.own[query], self.by_slot[:, query]
        sure = (slots > scores + doubt).sum(axis=0, dtype=np.int8)
        before = (slots >= scores - doubt).sum(axis=0, dtype=np.int8).astype(np.int64)  # slots before the item
        before_own = scores > own + doubt
        at = np.flatnonzero((sure != before) | (~before_own & (scores >= own - doubt)))
        if len(at):
            q, p, value = query[at], place[at], exact(at)
            table, where = self.slots.scores[q], self.slots.places[q]
            first = (table > value[:, None]) | ((table == value[:, None]) & (where < p[:, None]))
            before[at] = first.sum(axis=1)
            before_own[at] = (value > self.own[q]) | ((value == self.own[q]) & (p < self.own_place[q]))
        with self.lock:
            np.add.at(self.ahead.reshape(-1), (query * self.ahead.shape[1] + before)[near], 1)
            np.add.at(self.before_own, query[before_own], 1)

    def finish(self) -> tuple[Ints, Ints, Bools]:
        """(query, rank) of every relevant item kept, and the queries for which giving up was not proved right."""
        query, rank = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, len(self.own), PART):
            part = slice(start, min(start + PART, len(self.own)))
            self.histogram.reshape(-1, CELLS)[part][self.near.reshape(-1, CELLS)[part]] = 0
            i, k = np.nonzero(self._kept(part, self.limit[part]))
            last = self.cell(self.high[part][i, k], i + start)
            compared = np.cumsum(self.ahead[part], axis=1)
            query.append(i + start)
            rank.append(self._beyond(part)[i, last + 1] + compared[i, k] + k + 1)
        unproved = (self.number < self.slots.relevant) & ~self.proved
        return np.concatenate(query), np.concatenate(rank), unproved


@dataclass(frozen=True)
class Counted:
    """As `ranks.Ranks`, and which queries have to be asked in another way."""

    owner: Ints
    ranks: Ints
    relevant: Ints
    ahead: Ints
    unproved: Bools


def count_ranks(
    left: Floats, right: Floats, labels: tuple[Ints, Ints], places: Ints, ids: tuple[Ints, Ints] | None, depth: int
) -> Counted:
    """Ranks of the relevant right rows for each left row; `left` and `right` being one array means leave-one-out.

    `places` gives the place of each left row on the right (−1: it is not there); it and rows with the same of `ids`
    are left out.
    """
    symmetric = left is right
    # In random order every set of columns is a fair sample, which is what the limits are guessed from.
    order = numpy_rng(0, "counting").permutation(len(right))
    moved = np.argsort(order)
    right = right[order]
    own_column = np.where(places >= 0, moved[places], -1)
    one, two = labels[0], labels[1][order]
    contents = None if ids is None else (ids[0], ids[1][order])
    if symmetric:
        left, one, own_column, places = right, two, np.arange(len(right)), order
        contents = None if contents is None else (contents[1], contents[1])
    inside = np.flatnonzero(own_column >= 0)
    left_out = [(inside, own_column[inside])] + ([] if contents is None else [equal_pairs(*contents)])
    same_class = equal_pairs(one, two)
    i, j = _without(same_class, left_out, len(right))
    slots = Slots.of(len(left), i, j, pair_scores(left, i, j, right), order)
    own = np.full(len(left), np.inf)
    own[inside] = pair_scores(left, inside, own_column[inside], right)
    screen = choose_screen(left, right)
    wanted = np.maximum(depth, slots.relevant)
    tally = Tally(screen, slots, own, places, wanted, _limits(screen, wanted))
    _walk(screen, tally, _Forbidden([same_class, *left_out], len(right)), left, right, order)
    owner, ranks, unproved = tally.finish()
    near = ranks <= wanted[owner]
    owner, ranks = owner[near], ranks[near]
    if not symmetric:
        return Counted(owner, ranks, slots.relevant, tally.before_own, unproved)
    owner = order[owner]
    back = np.lexsort((ranks, owner))
    return Counted(owner[back], ranks[back], slots.relevant[moved], tally.before_own[moved], unproved[moved])


def _without(pairs: tuple[Ints, Ints], left_out: list[tuple[Ints, Ints]], columns: int) -> tuple[Ints, Ints]:
    i, j = pairs
    gone = np.concatenate([a * columns + b for a, b in left_out])
    kept = ~np.isin(i * columns + j, gone)
    return i[kept], j[kept]


def _limits(screen: Screen, depth: Ints) -> Doubles:
    """For each query a score that likely `depth` items exceed, guessed from some columns; −inf: no guess."""
    count, columns = len(screen.left), len(screen.right)
    out = np.full(count, -np.inf)
    expected = SAMPLE * int(depth.max(initial=0)) / max(1, columns)
    rank = int(np.ceil(expected + 4 * np.sqrt(expected) + 2))
    if columns < 4 * SAMPLE or rank > SAMPLE // 2:
        return out
    for start in range(0, count, ROWS):
        part = slice(start, min(start + ROWS, count))
        scores = (screen.left[part] @ screen.right[:SAMPLE].T).float().numpy()
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


def tiles(rows: int, columns: int, symmetric: bool) -> list[tuple[slice, slice, bool]]:
    """(rows, columns, whether the columns are served as queries too) of every product that is needed."""
    out = []
    for a in range(0, rows, ROWS):
        i = slice(a, min(a + ROWS, rows))
        if symmetric:
            out.append((i, i, False))
        start = i.stop if symmetric else 0
        out += [(i, slice(b, min(b + COLUMNS, columns)), symmetric) for b in range(start, columns, COLUMNS)]
    return out


def _walk(screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats, order: Ints) -> None:
    """Serve all tiles, each by one thread alone: its product stays in that core's cache."""
    import torch

    work = tiles(len(left), len(right), left is right)
    work = [work[n] for n in numpy_rng(0, "tiles").permutation(len(work))]
    seen = np.zeros(len(left), np.int64)
    workers = [_Worker(screen, tally, forbidden, left, right, order) for _ in range(threads())]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            for first, last in pairwise([0, *(int(len(work) * share) for share in STAGES)]):
                todo = iter(work[first:last])
                for done in [pool.submit(worker.serve_all, todo) for worker in workers]:
                    done.result()
                for i, j, both in work[first:last]:
                    seen[i] += j.stop - j.start
                    if both:
                        seen[j] += i.stop - i.start
                parts = [slice(a, min(a + PART, len(left))) for a in range(0, len(left), PART)]
                list(pool.map(lambda part: tally.tighten(part, seen, len(right)), parts))
                tally.keys = screen.floors(tally.floor)
    finally:
        torch.set_num_threads(before)


class _Worker:
    """One thread's buffers."""

    def __init__(
        self, screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats, order: Ints
    ) -> None:
        self.screen, self.tally, self.forbidden, self.left, self.right = screen, tally, forbidden, left, right
        self.order = order  # place of each column in the gallery
        self.products, self.above = screen.block(ROWS, COLUMNS), np.empty(ROWS * COLUMNS, bool)

    def serve_all(self, todo: Iterator[tuple[slice, slice, bool]]) -> None:
        for tile in todo:
            self.serve(*tile)

    def serve(self, i: slice, j: slice, both: bool) -> None:
        """Multiply one tile; its rows are queries, and with `both` its columns too."""
        block = self.screen.product(i, j, self.products)
        row, column = self.forbidden.inside(i, j)
        block[row, column] = FORBIDDEN
        keys = self.screen.keys(block)
        above = self.above[: keys.size].reshape(keys.shape)
        self.collect(keys, np.greater(keys, self.tally.keys[i, None], out=above), i, j, turned=False)
        if both:
            self.collect(keys, np.greater(keys, self.tally.keys[None, j], out=above), i, j, turned=True)

    def collect(self, keys: Any, above: Bools, i: slice, j: slice, *, turned: bool) -> None:
        at = np.flatnonzero(above)
        row = at // keys.shape[1]
        column = at - row * keys.shape[1]
        query = column + j.start if turned else row + i.start
        again, near = self.tally.add(self.screen.values(keys.reshape(-1)[at]), query)
        if len(again):
            row, column, query = row[again], column[again], query[again]
            scores = single_products(self.left[i], self.right[j], row, column)
            left, right = row + i.start, column + j.start
            place = self.order[left if turned else right]
            self.tally.settle(
                scores, query, place, near, lambda few: pair_scores(self.left, left[few], right[few], self.right)
            )
