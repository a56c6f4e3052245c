"""Ranks by counting, for many small classes: nothing is sorted, no list of neighbors is made.

The rank of a relevant item is one more than the number of items before it. So the scores of relevant items are
computed first; then a screen (`screening.py`) runs over the tiles of the product while they are in cache, and a tally
counts, with a histogram of screened scores for each query. Bins in which the score of a relevant item might lie are
`near`: their items are compared again, one by one, until there is no doubt. The result is that of a full sort in
double precision (docs/design/evaluation.md). Leave-one-out is symmetric: each tile serves its rows and its columns,
and half the product is enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import FORBIDDEN, Screen, choose_screen, in_threads, parts, single_products
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints, equal_pairs, pair_scores

ROWS, COLUMNS = 512, 1024  # of a tile: its product fits the second-level cache
SAMPLE = 512  # columns by which hopeless items are given up at the start
CROWD = 0.05  # fraction of pairs compared again beyond which counting does not pay
CROWD_FROM = 1 << 22  # pairs that must have been seen to decide that
STAGES = (1 / 32, 1 / 8, 1 / 3, 2 / 3, 1)  # fractions of the work after which more is given up
BINS = 128  # of a query's histogram
PART = 2048  # queries a thread works on at a time
ONE = np.int32(1)  # of the histogram's own type, which makes `add.at` fast


@dataclass(frozen=True)
class CountedRanks:
    """Ranks of the relevant items of all queries, ascending and concatenated."""

    owner: Ints  # query of each rank
    ranks: Ints  # 1-based, within the depth
    relevant: Ints  # number of relevant items of each query
    ahead: Ints  # number of items that would stand before the query itself
    unproved: Bools  # queries that must be ranked in another way


def count_ranks(
    left: Floats, right: Floats, labels: tuple[Ints, Ints], positions: Ints, ids: tuple[Ints, Ints] | None, depth: int
) -> CountedRanks:
    """Count the ranks of the relevant right rows for each left row; the same array twice means leave-one-out.

    ``positions`` are those of the left rows on the right (−1: not there), where they are left out; so are pairs with
    equal ``ids``.
    """
    symmetric = left is right
    # In random order any set of columns is a fair sample of all.
    order = numpy_rng(0, "counting").permutation(len(right))
    moved = np.argsort(order)
    right = right[order]
    keys = [labels] if ids is None else [labels, ids]
    if symmetric:
        left, column, positions = right, np.arange(len(right)), order
        pairs = [equal_pairs(b[order], b[order]) for _, b in keys]
    else:
        column = np.where(positions >= 0, moved[positions], -1)
        pairs = [equal_pairs(a, b[order]) for a, b in keys]
    inside = np.flatnonzero(column >= 0)
    pairs.append((inside, column[inside]))
    flat = [i * len(right) + j for i, j in pairs]
    query, item = (side[~np.isin(flat[0], np.concatenate(flat[1:]))] for side in pairs[0])
    slots = Slots.of(len(left), query, order[item], _scores(left, right, query, item))
    own = np.full(len(left), np.inf)
    own[inside] = _scores(left, right, inside, column[inside])
    screen = choose_screen(left, right)
    depths = np.maximum(depth, slots.relevant)
    tally = Tally(screen, slots, own, positions, depths, _initial_limits(screen, depths))
    walk = _TileWalk(screen, tally, _Forbidden(pairs, len(right)), left, right, order)
    walk.run()
    if walk.crowded:  # scores are so close together that the screen decides nothing
        nothing = np.empty(0, np.int64)
        return CountedRanks(nothing, nothing, slots.relevant, nothing, np.ones(len(left), bool))
    owner, ranks = tally.finish()
    near = ranks <= depths[owner]
    owner, ranks = owner[near], ranks[near]
    if not symmetric:
        return CountedRanks(owner, ranks, slots.relevant, tally.before_own, tally.searching)
    owner = order[owner]
    back = np.lexsort((ranks, owner))
    each_query = slots.relevant[moved], tally.before_own[moved], tally.searching[moved]
    return CountedRanks(owner[back], ranks[back], *each_query)


def _scores(left: Floats, right: Floats, i: Ints, j: Ints) -> Doubles:
    out = np.empty(len(i))

    def some(part: slice) -> None:
        out[part] = pair_scores(left, i[part], j[part], right)

    in_threads(some, parts(len(i), 16_384))
    return out


def _initial_limits(screen: Screen, depth: Ints) -> Doubles:
    """For each query a score that `depth` items probably exceed, estimated from some columns; −inf: no estimate."""
    out = np.full(len(screen.left), -np.inf)
    columns = len(screen.right)
    expected = SAMPLE * int(depth.max(initial=0)) / max(1, columns)
    rank = int(np.ceil(expected + 4 * np.sqrt(expected) + 2))

    def some(part: slice) -> None:
        scores = (screen.left[part] @ screen.right[:SAMPLE].T).float().numpy()
        out[part] = np.partition(scores, SAMPLE - rank, axis=1)[:, SAMPLE - rank]

    if columns >= 4 * SAMPLE and rank <= SAMPLE // 2:
        in_threads(some, parts(len(out), ROWS))
    return out


class _Forbidden:
    """Pairs that are left out, by tile."""

    def __init__(self, pairs: list[tuple[Ints, Ints]], columns: int) -> None:
        i, j = (np.concatenate([p[side] for p in pairs]) for side in (0, 1))
        key = i // ROWS * columns + j
        order = np.argsort(key, kind="stable")
        self.i, self.j, self.key, self.columns = i[order], j[order], key[order], columns

    def inside(self, i: slice, j: slice) -> tuple[Ints, Ints]:
        row = i.start // ROWS * self.columns
        first, last = np.searchsorted(self.key, [row + j.start, row + j.stop])
        return self.i[first:last] - i.start, self.j[first:last] - j.start


@dataclass(frozen=True)
class Slots:
    """Relevant items of each query, best first: scores and gallery positions, padded with −inf and −1."""

    scores: Doubles
    positions: Ints
    relevant: Ints

    @classmethod
    def of(cls, queries: int, query: Ints, position: Ints, scores: Doubles) -> Slots:
        best = np.lexsort((position, -scores, query))
        query, position, scores = query[best], position[best], scores[best]
        relevant = np.bincount(query, minlength=queries)
        slot = np.arange(len(query)) - np.repeat(np.cumsum(relevant) - relevant, relevant)
        width = int(relevant.max(initial=0))
        table, positions = np.full((queries, width), -np.inf), np.full((queries, width), -1, np.int64)
        table[query, slot], positions[query, slot] = scores, position
        return cls(table, positions, relevant)


class Tally:
    """Counts, for each query, how many items stand before each of its relevant ones.

    Relevant items that are unlikely to rank within the depth are given up, the worst first; the first `active` slots
    of a query remain. Whether that was right is proved by counting: `sure` items are better than the best one given
    up. A query with no slot left and nothing to prove costs nothing.
    """

    def __init__(
        self, screen: Screen, slots: Slots, own: Doubles, own_position: Ints, depth: Ints, limit: Doubles
    ) -> None:
        count, width = slots.scores.shape
        self.screen, self.slots, self.own, self.own_position, self.depth = screen, slots, own, own_position, depth
        # Single products are first compared in their own precision, which adds to their error.
        self.by_slot, self.own_single = slots.scores.T.astype(np.float32), own.astype(np.float32)
        self.doubt = np.nextafter((1.01 * screen.single).astype(np.float32), np.float32(np.inf))
        self.low, self.high = screen.band(slots.scores, screen.slack[:, None])
        self.own_low = screen.band(own, screen.slack)[0]
        self.active = ((slots.positions >= 0) & (slots.scores >= limit[:, None])).sum(axis=1)
        self.sure, self.searching = np.zeros(count, np.int64), self.active < slots.relevant
        self.histogram = np.zeros((count, BINS), np.int32)
        self.near = np.zeros((count, BINS), bool)
        self.ahead = np.zeros((count, width + 1), np.int64)  # items compared again, by the first slot they precede
        # Items before the query itself: those of its class at once, others as they are seen.
        equal = (slots.scores == own[:, None]) & (slots.positions < own_position[:, None])
        self.before_own = ((slots.scores > own[:, None]) | equal).sum(axis=1)
        # A histogram reaches from the first floor to the best relevant item; its last bin holds all above that.
        self.base = self._floor()
        self.base[np.isinf(self.base)] = 0
        top = self.high[:, 0] if width else self.base
        self.scale = ((BINS - 2) / np.maximum(top - self.base, 1e-6)).astype(np.float32)
        self.lock = threading.Lock()
        in_threads(self._mark, parts(count, PART))
        self._set_keys()

    def _floor(self) -> Floats:
        """Only items above it count: the lower end of the band of the lowest active slot."""
        row = np.arange(len(self.active))
        lowest = self.low[row, np.maximum(self.active - 1, 0)] if self.low.shape[1] else np.zeros(len(row), np.float32)
        lowest = np.where(self.active > 0, lowest, np.inf)
        return np.where(self.slots.relevant > 0, np.minimum(lowest, self.own_low), np.inf).astype(np.float32)

    def _guard(self) -> Floats:
        """Items above it are certainly better than the best slot given up."""
        if not self.high.shape[1]:
            return np.full(len(self.active), np.inf, np.float32)
        first = np.minimum(self.active, self.high.shape[1] - 1)
        return np.where(self.searching, self.high[np.arange(len(first)), first], np.inf).astype(np.float32)

    def _set_keys(self) -> None:
        self.floors, self.guards = self.screen.floors(self._floor()), self.screen.floors(self._guard(), up=True)
        self.screen.expect(self.floors, self.guards)

    def _active_slots(self, part: slice) -> tuple[Ints, Ints]:
        """(query within the part, slot) of all active slots."""
        i, k = np.nonzero(np.arange(self.slots.scores.shape[1]) < self.active[part, None])
        return i, k

    def _mark(self, part: slice) -> None:
        """Mark the bins in which items are compared again."""
        i, k = self._active_slots(part)
        edges = np.zeros(len(self.active[part]) * BINS + 1, np.int32)
        np.add.at(edges, i * BINS + self.bin(self.low[part][i, k], i + part.start), ONE)
        np.add.at(edges, i * BINS + self.bin(self.high[part][i, k], i + part.start) + 1, -ONE)
        self.near[part] = (np.cumsum(edges[:-1], dtype=np.int32) > 0).reshape(-1, BINS)

    def bin(self, values: Floats, query: Ints) -> Ints:
        """Bin in the query's histogram, monotone in the value."""
        return np.clip((values - self.base[query]) * self.scale[query], 0, BINS - 1).astype(np.int64)

    def _counts_above(self, part: slice) -> npt.NDArray[np.int32]:
        """Number of items counted in each bin or above, and a last column of zeros."""
        sums = np.zeros((len(self.active[part]), BINS + 1), np.int32)
        np.cumsum(self.histogram[part, ::-1], axis=1, out=sums[:, -2::-1])
        return sums

    def add(self, values: Floats, query: Ints) -> tuple[Ints, Bools]:
        """Count screened scores; returns which to compare again, and whether with slots or only with the query."""
        bins = query * BINS + self.bin(values, query)
        with self.lock:
            np.add.at(self.histogram.reshape(-1), bins, ONE)
        near = self.near.reshape(-1)[bins]
        again = np.flatnonzero(near | (values >= self.own_low[query]))
        return again, near[again]

    def compare(
        self, scores: Floats, query: Ints, position: Ints, near: Bools, exact: Callable[[Ints], Doubles]
    ) -> None:
        """Compare items with the relevant ones of their query, and with the query itself, until there is no doubt.

        ``scores`` are within the screen's `single` error, ``exact`` computes some of them in double precision.
        Items that are not ``near`` are compared with the query only.
        """
        doubt, own, slots = self.doubt[query], self.own_single[query], self.by_slot[:, query]
        low, high = scores - doubt, scores + doubt
        sure = (slots > high).sum(axis=0, dtype=np.int8)
        before = (slots >= low).sum(axis=0, dtype=np.int8)  # slots that may stand before the item
        before_own = low > own
        at = np.flatnonzero((sure != before) | (~before_own & (high >= own)))
        before = before.astype(np.int64)
        if len(at):
            q, p, value = query[at], position[at], exact(at)
            table, positions = self.slots.scores[q], self.slots.positions[q]
            first = (table > value[:, None]) | ((table == value[:, None]) & (positions < p[:, None]))
            before[at] = first.sum(axis=1)
            before_own[at] = (value > self.own[q]) | ((value == self.own[q]) & (p < self.own_position[q]))
        with self.lock:
            np.add.at(self.ahead.reshape(-1), (query * self.ahead.shape[1] + before)[near], 1)
            np.add.at(self.before_own, query[before_own], 1)

    def give_up(self, seen: Doubles) -> None:
        """Give up slots that are unlikely to matter, now that each query has seen this fraction of all items."""

        def one(part: slice) -> None:
            expected = self.depth[part] * seen[part]
            many = np.where(seen[part] < 1, expected + 4 * np.sqrt(expected) + 2, np.inf)
            above = self._counts_above(part)
            i, k = self._active_slots(part)
            before = above[i, self.bin(self.high[part][i, k], i + part.start) + 1]
            number = np.bincount(i[before < many[i]], minlength=len(many))
            fewer = np.flatnonzero(number < self.active[part])
            # So far everything above the slots given up was counted.
            first = self.bin(self.high[part][fewer, number[fewer]], fewer + part.start)
            self.sure[part][fewer] = above[fewer, first + 1]
            self.active[part] = number
            lacking = self.sure[part] + number < self.depth[part]
            self.searching[part] = (number < self.slots.relevant[part]) & lacking
            self._mark(part)

        in_threads(one, parts(len(self.active), PART))
        self._set_keys()

    def finish(self) -> tuple[Ints, Ints]:
        """(query, rank) of every active slot. Where still `searching`, giving up was not proved right."""
        query, rank = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for part in parts(len(self.active), PART):
            self.histogram[part][self.near[part]] = 0  # these were compared one by one
            i, k = self._active_slots(part)
            last = self.bin(self.high[part][i, k], i + part.start)
            query.append(i + part.start)
            rank.append(self._counts_above(part)[i, last + 1] + np.cumsum(self.ahead[part], axis=1)[i, k] + k + 1)
        return np.concatenate(query), np.concatenate(rank)


Tile = tuple[slice, slice, bool]


def tiles(rows: int, columns: int, symmetric: bool) -> list[Tile]:
    """(rows, columns, whether the columns are queries too) of every product that is needed."""
    out = []
    for i in parts(rows, ROWS):
        if symmetric:
            out.append((i, i, False))
        start = i.stop if symmetric else 0
        out += [(i, slice(start + j.start, start + j.stop), symmetric) for j in parts(columns - start, COLUMNS)]
    return out


class _TileWalk:
    """Computes all tiles, each in one thread: its product stays in the cache of that core."""

    def __init__(
        self, screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats, order: Ints
    ) -> None:
        self.screen, self.tally, self.forbidden, self.left, self.right = screen, tally, forbidden, left, right
        self.order = order  # gallery position of each column
        self.buffers = threading.local()
        self.pairs_seen = self.pairs_again = 0  # pairs, and those of them compared again

    @property
    def crowded(self) -> bool:
        return self.pairs_seen > CROWD_FROM and self.pairs_again > CROWD * self.pairs_seen

    def run(self) -> None:
        schedule = tiles(len(self.left), len(self.right), self.left is self.right)
        schedule = [schedule[n] for n in numpy_rng(0, "tiles").permutation(len(schedule))]
        seen = np.zeros(len(self.left), np.int64)
        for first, last in pairwise([0, *(int(len(schedule) * fraction) for fraction in STAGES)]):
            in_threads(self.count_tile, schedule[first:last])
            for i, j, both in schedule[first:last]:
                seen[i] += j.stop - j.start
                if both:
                    seen[j] += i.stop - i.start
            self.tally.give_up(seen / max(1, len(self.right)))

    def count_tile(self, tile: Tile) -> None:
        """Multiply one tile, and count for its rows and, if it serves both, for its columns."""
        i, j, both = tile
        if self.crowded:
            return
        if not hasattr(self.buffers, "block"):
            self.buffers.block, self.buffers.above = self.screen.block(ROWS, COLUMNS), np.empty(ROWS * COLUMNS, bool)
        block = self.screen.product(i, j, self.buffers.block)
        block[self.forbidden.inside(i, j)] = FORBIDDEN
        keys = self.screen.keys(block)
        above = self.buffers.above[: keys.size].reshape(keys.shape)
        for transposed in (False, True)[: 1 + both]:
            queries, shape = (j, (1, -1)) if transposed else (i, (-1, 1))
            np.greater(keys, self.tally.floors[queries].reshape(shape), out=above)
            self.collect(keys, above, i, j, transposed=transposed)
            if self.tally.searching[queries].any():
                np.greater(keys, self.tally.guards[queries].reshape(shape), out=above)
                better = np.add.reduce(above.view(np.uint8), axis=int(not transposed), dtype=np.uint16)
                with self.tally.lock:  # items that are certainly better than what a query gave up
                    self.tally.sure[queries] += better

    def collect(self, keys: Any, above: Bools, i: slice, j: slice, *, transposed: bool) -> None:
        """Count the items above the floors; the queries are the rows of the tile or, transposed, its columns."""
        at = np.flatnonzero(above)
        row = at // keys.shape[1]
        column = at - row * keys.shape[1]
        query = column + j.start if transposed else row + i.start
        again, near = self.tally.add(self.screen.values(keys.reshape(-1)[at]), query)
        self.pairs_seen, self.pairs_again = self.pairs_seen + keys.size, self.pairs_again + len(again)
        if len(again):
            row, column, query = row[again], column[again], query[again]
            scores = single_products(self.left[i], self.right[j], row, column)
            left, right = row + i.start, column + j.start
            position = self.order[left if transposed else right]
            self.tally.compare(
                scores, query, position, near, lambda few: pair_scores(self.left, left[few], right[few], self.right)
            )
