"""Ranks by counting, for many small classes: nothing is sorted, no list of neighbors is made.

A relevant item's rank is one more than the number of items before it. So the relevant items' scores are computed
first; then a screen runs over the tiles of the product while they are in cache, and a tally counts. The answer is that
of a full sort in double precision (docs/decisions/0040). Leave-one-out is symmetric: each tile serves its rows and
its columns, and half the product is enough.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.parallel import in_threads, parts
from lookalike.evaluation._ranking.screening import FORBIDDEN, Screen, choose_screen, single_products
from lookalike.evaluation._ranking.tally import Slots, Tally
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints
from lookalike.evaluation.pairs import equal_pairs, pair_scores

ROWS, COLUMNS = 512, 1024  # of a tile: the products of one fit the second-level cache
SAMPLE = 512  # columns that tell at first what is hopeless
CROWD = 0.05  # share of pairs compared again beyond which counting is no way
CROWD_FROM = 1 << 22  # pairs that must have been met to say so
STAGES = (1 / 32, 1 / 8, 1 / 3, 2 / 3, 1)  # shares of the work after which more is given up


@dataclass(frozen=True)
class Counted:
    """Per query, 1-based ranks of relevant items in rising order, laid end to end (those within the depth)."""

    owner: Ints  # which query each rank belongs to
    ranks: Ints
    relevant: Ints  # how many relevant items a query has, found or not
    ahead: Ints  # how many items stand before the query itself, were it not left out
    unproved: Bools  # queries that have to be asked in another way


def count_ranks(
    left: Floats, right: Floats, labels: tuple[Ints, Ints], places: Ints, ids: tuple[Ints, Ints] | None, depth: int
) -> Counted:
    """Ranks of the relevant right rows for each left row; `left` and `right` being one array means leave-one-out.

    `places` gives the place of each left row on the right (−1: it is not there); it and rows with the same of `ids`
    are left out.
    """
    symmetric = left is right
    # In random order every set of columns is a fair sample of all.
    order = numpy_rng(0, "counting").permutation(len(right))
    moved = np.argsort(order)
    right = right[order]
    keys = [labels] if ids is None else [labels, ids]
    if symmetric:
        left, column, places = right, np.arange(len(right)), order
        pairs = [equal_pairs(b[order], b[order]) for _, b in keys]
    else:
        column = np.where(places >= 0, moved[places], -1)
        pairs = [equal_pairs(a, b[order]) for a, b in keys]
    inside = np.flatnonzero(column >= 0)
    pairs.append((inside, column[inside]))
    query, item = _without(pairs[0], pairs[1:], len(right))
    slots = Slots.of(len(left), query, order[item], _scores(left, right, query, item))
    own = np.full(len(left), np.inf)
    own[inside] = _scores(left, right, inside, column[inside])
    screen = choose_screen(left, right)
    wanted = np.maximum(depth, slots.relevant)
    tally = Tally(screen, slots, own, places, wanted, _limits(screen, wanted))
    walk = _Walk(screen, tally, _Forbidden(pairs, len(right)), left, right, order)
    walk.run()
    if walk.crowded:  # scores lie so close together that the screen decides nothing
        nothing = np.empty(0, np.int64)
        return Counted(nothing, nothing, slots.relevant, nothing, np.ones(len(left), bool))
    owner, ranks = tally.finish()
    near = ranks <= wanted[owner]
    owner, ranks = owner[near], ranks[near]
    if not symmetric:
        return Counted(owner, ranks, slots.relevant, tally.before_own, tally.searching)
    owner = order[owner]
    back = np.lexsort((ranks, owner))
    return Counted(owner[back], ranks[back], slots.relevant[moved], tally.before_own[moved], tally.searching[moved])


def _without(pairs: tuple[Ints, Ints], left_out: list[tuple[Ints, Ints]], columns: int) -> tuple[Ints, Ints]:
    i, j = pairs
    kept = ~np.isin(i * columns + j, np.concatenate([a * columns + b for a, b in left_out]))
    return i[kept], j[kept]


def _scores(left: Floats, right: Floats, i: Ints, j: Ints) -> Doubles:
    out = np.empty(len(i))

    def some(part: slice) -> None:
        out[part] = pair_scores(left, i[part], j[part], right)

    in_threads(some, parts(len(i), 16_384))
    return out


def _limits(screen: Screen, depth: Ints) -> Doubles:
    """For each query a score that likely `depth` items exceed, guessed from some columns; −inf: no guess."""
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


Tile = tuple[slice, slice, bool]


def tiles(rows: int, columns: int, symmetric: bool) -> list[Tile]:
    """(rows, columns, whether the columns are served as queries too) of every product that is needed."""
    out = []
    for i in parts(rows, ROWS):
        if symmetric:
            out.append((i, i, False))
        start = i.stop if symmetric else 0
        out += [(i, slice(start + j.start, start + j.stop), symmetric) for j in parts(columns - start, COLUMNS)]
    return out


class _Walk:
    """Over all tiles, each served by one thread alone: its product stays in that core's cache."""

    def __init__(
        self, screen: Screen, tally: Tally, forbidden: _Forbidden, left: Floats, right: Floats, order: Ints
    ) -> None:
        self.screen, self.tally, self.forbidden, self.left, self.right = screen, tally, forbidden, left, right
        self.order = order  # place of each column in the gallery
        self.buffers = threading.local()
        self.met = self.again = 0  # pairs, and those of them compared again

    @property
    def crowded(self) -> bool:
        return self.met > CROWD_FROM and self.again > CROWD * self.met

    def run(self) -> None:
        work = tiles(len(self.left), len(self.right), self.left is self.right)
        work = [work[n] for n in numpy_rng(0, "tiles").permutation(len(work))]
        seen = np.zeros(len(self.left), np.int64)
        for first, last in pairwise([0, *(int(len(work) * share) for share in STAGES)]):
            in_threads(self.serve, work[first:last])
            for i, j, both in work[first:last]:
                seen[i] += j.stop - j.start
                if both:
                    seen[j] += i.stop - i.start
            self.tally.tighten(seen / max(1, len(self.right)))

    def serve(self, tile: Tile) -> None:
        """Multiply one tile, and count for its rows and, where it serves both, for its columns."""
        i, j, both = tile
        if self.crowded:
            return
        if not hasattr(self.buffers, "block"):
            self.buffers.block, self.buffers.above = self.screen.block(ROWS, COLUMNS), np.empty(ROWS * COLUMNS, bool)
        block = self.screen.product(i, j, self.buffers.block)
        block[self.forbidden.inside(i, j)] = FORBIDDEN
        keys = self.screen.keys(block)
        above = self.buffers.above[: keys.size].reshape(keys.shape)
        for turned in (False, True)[: 1 + both]:
            queries, shape = (j, (1, -1)) if turned else (i, (-1, 1))
            np.greater(keys, self.tally.floors[queries].reshape(shape), out=above)
            self.collect(keys, above, i, j, turned=turned)
            if self.tally.searching[queries].any():
                np.greater(keys, self.tally.guards[queries].reshape(shape), out=above)
                self.tally.witness(queries, _true_in_columns(above) if turned else _true_in_rows(above))

    def collect(self, keys: Any, above: Bools, i: slice, j: slice, *, turned: bool) -> None:
        """Count the items above the floors; the queries are the rows of the tile or, turned, its columns."""
        at = np.flatnonzero(above)
        row = at // keys.shape[1]
        column = at - row * keys.shape[1]
        query = column + j.start if turned else row + i.start
        again, near = self.tally.add(self.screen.values(keys.reshape(-1)[at]), query)
        self.met, self.again = self.met + keys.size, self.again + len(again)
        if len(again):
            row, column, query = row[again], column[again], query[again]
            scores = single_products(self.left[i], self.right[j], row, column)
            left, right = row + i.start, column + j.start
            place = self.order[left if turned else right]
            self.tally.settle(
                scores, query, place, near, lambda few: pair_scores(self.left, left[few], right[few], self.right)
            )


def _true_in_rows(mask: Bools) -> Ints:
    """How many are true in each row: eight at a time where the rows allow it, each byte counting for itself."""
    if mask.shape[1] % 8 or mask.shape[1] >= 8 * 256:
        return np.asarray(np.count_nonzero(mask, axis=1))
    return mask.view(np.uint64).sum(axis=1).view(np.uint8).reshape(len(mask), 8).sum(axis=1, dtype=np.int64)


def _true_in_columns(mask: Bools) -> Ints:
    sums = [np.add.reduce(mask[part].view(np.uint8), axis=0, dtype=np.uint8) for part in parts(len(mask), 255)]
    return np.asarray(np.sum(sums, axis=0, dtype=np.int64))
