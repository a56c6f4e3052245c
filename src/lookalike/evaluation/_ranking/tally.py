"""Counting, for each query, how many items stand before each of its relevant ones.

Screened scores (`screening.py`) fall into the cells of a histogram, one a query. Cells that a relevant item's score
might lie in are `near`: their items are compared again, one by one, until there is no doubt. All others are before
the relevant item or behind it, whatever the screen's error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookalike.evaluation._ranking.parallel import in_threads, parts
from lookalike.evaluation._ranking.screening import Screen
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints

CELLS = 128  # of a query's histogram
PART = 2048  # queries looked after at a time
ONE = np.int32(1)  # of the histogram's own type, which is what makes `add.at` fast


@dataclass(frozen=True)
class Slots:
    """Each query's relevant items, best first: scores and places in the gallery, padded with −inf and −1."""

    scores: Doubles
    places: Ints
    relevant: Ints

    @classmethod
    def of(cls, queries: int, query: Ints, place: Ints, scores: Doubles) -> Slots:
        best = np.lexsort((place, -scores, query))
        query, place, scores = query[best], place[best], scores[best]
        relevant = np.bincount(query, minlength=queries)
        number = np.arange(len(query)) - np.repeat(np.cumsum(relevant) - relevant, relevant)
        width = int(relevant.max(initial=0))
        table, places = np.full((queries, width), -np.inf), np.full((queries, width), -1, np.int64)
        table[query, number], places[query, number] = scores, place
        return cls(table, places, relevant)


class Tally:
    """Relevant items that are unlikely to stand within the `depth` are given up, the worst first.

    `number` of a query's slots are kept. Whether giving up was right is proved by counting: `sure` items are better
    than the best one given up. A query that is neither kept nor searched any more costs nothing.
    """

    def __init__(
        self, screen: Screen, slots: Slots, own: Doubles, own_place: Ints, depth: Ints, limit: Doubles
    ) -> None:
        count, width = slots.scores.shape
        self.screen, self.slots, self.own, self.own_place, self.depth = screen, slots, own, own_place, depth
        # What single products are compared with first: in their own precision, which adds to what they may be off by.
        self.by_slot, self.own_single = slots.scores.T.astype(np.float32), own.astype(np.float32)
        self.doubt = np.nextafter((1.01 * screen.single).astype(np.float32), np.float32(np.inf))
        self.low, self.high = screen.band(slots.scores, screen.slack[:, None])
        self.own_low = screen.band(own, screen.slack)[0]
        self.number = ((slots.places >= 0) & (slots.scores >= limit[:, None])).sum(axis=1)
        self.sure, self.searching = np.zeros(count, np.int64), self.number < slots.relevant
        self.histogram = np.zeros((count, CELLS), np.int32)
        self.near = np.zeros((count, CELLS), bool)
        self.ahead = np.zeros((count, width + 1), np.int64)  # items compared again, by the first slot they beat
        # Items that stand before the query itself: of its class at once, of others as they are met.
        equal = (slots.scores == own[:, None]) & (slots.places < own_place[:, None])
        self.before_own = ((slots.scores > own[:, None]) | equal).sum(axis=1)
        # A histogram reaches from the first floor to the best relevant item; its last cell holds all above that.
        self.base = self._floor()
        self.base[np.isinf(self.base)] = 0
        top = self.high[:, 0] if width else self.base
        self.scale = ((CELLS - 2) / np.maximum(top - self.base, 1e-6)).astype(np.float32)
        self.lock = threading.Lock()
        in_threads(self._mark, parts(count, PART))
        self._set_keys()

    def _floor(self) -> Floats:
        """Only items above it count: the lower end of the band of the lowest slot kept."""
        row = np.arange(len(self.number))
        lowest = self.low[row, np.maximum(self.number - 1, 0)] if self.low.shape[1] else np.zeros(len(row), np.float32)
        lowest = np.where(self.number > 0, lowest, np.inf)
        return np.where(self.slots.relevant > 0, np.minimum(lowest, self.own_low), np.inf).astype(np.float32)

    def _guard(self) -> Floats:
        """Items above it are surely better than the best slot given up."""
        if not self.high.shape[1]:
            return np.full(len(self.number), np.inf, np.float32)
        first = np.minimum(self.number, self.high.shape[1] - 1)
        return np.where(self.searching, self.high[np.arange(len(first)), first], np.inf).astype(np.float32)

    def _set_keys(self) -> None:
        self.floors, self.guards = self.screen.floors(self._floor()), self.screen.floors(self._guard(), up=True)
        self.screen.expect(self.floors, self.guards)

    def _kept(self, part: slice) -> tuple[Ints, Ints]:
        """(query within the part, slot) of all slots kept."""
        i, k = np.nonzero(np.arange(self.slots.scores.shape[1]) < self.number[part, None])
        return i, k

    def _mark(self, part: slice) -> None:
        """Mark the cells in which items are compared again."""
        i, k = self._kept(part)
        edges = np.zeros(len(self.number[part]) * CELLS + 1, np.int32)
        np.add.at(edges, i * CELLS + self.cell(self.low[part][i, k], i + part.start), ONE)
        np.add.at(edges, i * CELLS + self.cell(self.high[part][i, k], i + part.start) + 1, -ONE)
        self.near[part] = (np.cumsum(edges[:-1], dtype=np.int32) > 0).reshape(-1, CELLS)

    def cell(self, values: Floats, query: Ints) -> Ints:
        """Place in the query's histogram; never falls when the value rises."""
        place = (values - self.base[query]) * self.scale[query]
        return np.clip(place, 0, CELLS - 1).astype(np.int64)

    def _beyond(self, part: slice) -> npt.NDArray[np.int32]:
        """For each cell how many items were counted in it or above, and a last column of zeros."""
        sums = np.zeros((len(self.number[part]), CELLS + 1), np.int32)
        np.cumsum(self.histogram[part, ::-1], axis=1, out=sums[:, -2::-1])
        return sums

    # --- while the product is walked over ---

    def add(self, values: Floats, query: Ints) -> tuple[Ints, Bools]:
        """Count screened scores; places of those to compare again, and whether with slots or only with the query."""
        cell = query * CELLS + self.cell(values, query)
        with self.lock:
            np.add.at(self.histogram.reshape(-1), cell, ONE)
        near = self.near.reshape(-1)[cell]
        again = np.flatnonzero(near | (values >= self.own_low[query]))
        return again, near[again]

    def settle(self, scores: Floats, query: Ints, place: Ints, near: Bools, exact: Callable[[Ints], Doubles]) -> None:
        """Compare items with their query's relevant ones, and with the query itself, until there is no doubt.

        `scores` are good to the screen's `single` error; `exact(some)` gives some of them in double precision.
        `place` is where the item stands in the gallery.
        """
        doubt, own, slots = self.doubt[query], self.own_single[query], self.by_slot[:, query]
        low, high = scores - doubt, scores + doubt
        sure = (slots > high).sum(axis=0, dtype=np.int8)
        before = (slots >= low).sum(axis=0, dtype=np.int8)  # slots that stand before the item, for all we know
        before_own = low > own
        at = np.flatnonzero((sure != before) | (~before_own & (high >= own)))
        before = before.astype(np.int64)
        if len(at):
            q, p, value = query[at], place[at], exact(at)
            table, where = self.slots.scores[q], self.slots.places[q]
            first = (table > value[:, None]) | ((table == value[:, None]) & (where < p[:, None]))
            before[at] = first.sum(axis=1)
            before_own[at] = (value > self.own[q]) | ((value == self.own[q]) & (p < self.own_place[q]))
        with self.lock:
            np.add.at(self.ahead.reshape(-1), (query * self.ahead.shape[1] + before)[near], 1)
            np.add.at(self.before_own, query[before_own], 1)

    def witness(self, part: slice, better: Ints) -> None:
        """Items better than what some queries gave up."""
        with self.lock:
            self.sure[part] += better

    def tighten(self, share: Doubles) -> None:
        """Give up what is unlikely to matter, now that this share of all items was met by each query."""

        def one(part: slice) -> None:
            met = self.depth[part] * share[part]
            many = np.where(share[part] < 1, met + 4 * np.sqrt(met) + 2, np.inf)
            beyond = self._beyond(part)
            i, k = self._kept(part)
            before = beyond[i, self.cell(self.high[part][i, k], i + part.start) + 1]
            number = np.bincount(i[before < many[i]], minlength=len(many))
            fewer = np.flatnonzero(number < self.number[part])
            # Up to now everything above the slot given up was counted.
            first = self.cell(self.high[part][fewer, number[fewer]], fewer + part.start)
            self.sure[part][fewer] = beyond[fewer, first + 1]
            self.number[part] = number
            lacking = self.sure[part] + number < self.depth[part]
            self.searching[part] = (number < self.slots.relevant[part]) & lacking
            self._mark(part)

        in_threads(one, parts(len(self.number), PART))
        self._set_keys()

    def finish(self) -> tuple[Ints, Ints]:
        """(query, rank) of every relevant item kept. Where still `searching`, giving up was not proved right."""
        query, rank = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for part in parts(len(self.number), PART):
            self.histogram[part][self.near[part]] = 0  # these were compared one by one
            i, k = self._kept(part)
            last = self.cell(self.high[part][i, k], i + part.start)
            query.append(i + part.start)
            rank.append(self._beyond(part)[i, last + 1] + np.cumsum(self.ahead[part], axis=1)[i, k] + k + 1)
        return np.concatenate(query), np.concatenate(rank)
