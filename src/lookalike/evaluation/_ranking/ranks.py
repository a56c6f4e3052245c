"""At which ranks do a query's relevant items stand? Everything retrieval measures follows from that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints

FEW = 32  # relevant items a query may have for counting to be the faster way
MANY = 1 << 24  # pairs of a query and an item from which counting is worth its preparation
FAR = np.iinfo(np.int64).max // 2  # behind everything of interest


@dataclass(frozen=True)
class Task:
    """Who is asked for, where, and what counts as found; codes are −1 where there is none."""

    rows: Floats
    labels: Ints | Bools  # codes, or rows × labels when an image has several
    query: Ints
    gallery: Ints
    ids: Ints | None = None  # pairs of equal content are left out
    coarse: Ints | None = None
    top: int = 1000  # how far average precision looks
    depth: int = 1000  # ranks beyond max(depth, number of relevant items) are of no interest

    @property
    def several(self) -> bool:
        return self.labels.ndim == 2

    @property
    def places(self) -> Ints:
        """Where each query stands in the gallery, −1 if it does not."""
        place = np.full(len(self.rows), -1, np.int64)
        place[self.gallery] = np.arange(len(self.gallery))
        return place[self.query]

    def rows_of(self, index: Ints) -> Floats:
        whole = len(index) == len(self.rows) and bool((index == np.arange(len(index))).all())
        return self.rows if whole else self.rows[index]


class Found:
    """What the ranks of each query's relevant items come to; the ranks themselves are not kept.

    Sums are of the precision at each hit: over the first `top` ranks, over the first R, and over the list as ooDML's
    authors make it (specs/oodml.md, section 4; docs/decisions/0041).
    """

    def __init__(self, relevant: Ints, top: int) -> None:
        count = len(relevant)
        self.relevant, self.top = relevant, top
        self.first = np.full(count, FAR)  # rank of the first hit
        self.precision, self.precision_r, self.authors = np.zeros(count), np.zeros(count), np.zeros(count)
        self.hits_r = np.zeros(count)
        self.coarse = np.full(count, FAR)  # rank of the first item of the same coarse class

    def put(self, query: int, ranks: Ints, ahead: int) -> None:
        """Ranks of one query in rising order; `ahead` items stand before the query itself, were it not left out."""
        if len(ranks):
            self.first[query] = ranks[0]
        precision = np.arange(1, len(ranks) + 1) / ranks
        within, within_r = np.searchsorted(ranks, [self.top, self.relevant[query]], side="right")
        self.precision[query] = self.authors[query] = precision[:within].sum()
        self.precision_r[query], self.hits_r[query] = precision[:within_r].sum(), within_r
        if ahead:
            self.authors[query] = _blind_precision(ranks, ahead, self.top)

    def put_many(self, owner: Ints, ranks: Ints, ahead: Ints) -> None:
        """The same for all queries at once, their ranks laid end to end."""
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
            found = ranks[starts[query] : starts[query + 1]]
            self.authors[query] = _blind_precision(found, int(ahead[query]), self.top)

    def replace(self, index: Ints, other: Found) -> None:
        """Take over what another search found for the queries `index`."""
        for name in ("relevant", "first", "precision", "precision_r", "authors", "hits_r", "coarse"):
            getattr(self, name)[index] = getattr(other, name)


def _blind_precision(ranks: Ints, ahead: int, top: int) -> float:
    """Sum of precisions when the first item is dropped blindly, and the query, being behind it, is a hit.

    Without its first item the list moves up by one, and the query stands at the place `ahead`; what was behind the
    query keeps its rank, for the query now fills the gap.
    """
    moved = np.append(np.where(ranks <= ahead, ranks - 1, ranks), ahead)
    moved = np.sort(moved[(moved > 0) & (moved <= top)])
    return float((np.arange(1, len(moved) + 1) / moved).sum())


def find_ranks(task: Task) -> Found:
    """Queries with few relevant items among many rows are counted, the others listed; both ways give the same."""
    chosen = np.zeros(len(task.query), bool)
    if not task.several and task.coarse is None and _sparse(task):
        chosen = relevant_items(replace(task, ids=None)) <= FEW
        if int(chosen.sum()) * len(task.gallery) < MANY:
            chosen[:] = False
    if not chosen.any():
        return listed(task)
    found, unproved = counted(replace(task, query=task.query[chosen]))
    rest = ~chosen
    rest[np.flatnonzero(chosen)[unproved]] = True
    if not rest.any():
        return found
    out = Found(np.zeros(len(chosen), np.int64), task.top)
    out.replace(np.flatnonzero(chosen), found)
    out.replace(np.flatnonzero(rest), listed(replace(task, query=task.query[rest])))
    return out


def _sparse(task: Task) -> bool:
    """Whether equal content is the exception: counting keeps such pairs one by one."""
    if task.ids is None:
        return True
    sizes = np.unique(task.ids[task.ids >= 0], return_counts=True)[1]
    return int(np.square(sizes).sum()) <= 64 * len(task.ids)


def counted(task: Task) -> tuple[Found, Bools]:
    """By `counting.py`; and the queries it could not answer."""
    from lookalike.evaluation._ranking.counting import count_ranks

    right = task.rows_of(task.gallery)
    left = right if np.array_equal(task.query, task.gallery) else task.rows_of(task.query)
    labels = (task.labels[task.query].astype(np.int64), task.labels[task.gallery].astype(np.int64))
    ids = None if task.ids is None else (task.ids[task.query], task.ids[task.gallery])
    result = count_ranks(left, right, labels, task.places, ids, task.depth)
    found = Found(result.relevant, task.top)
    if not result.unproved.all():
        found.put_many(result.owner, result.ranks, result.ahead)
    return found, result.unproved


def listed(task: Task) -> Found:
    """By `lists.py`: the first items of each query, in order."""
    from lookalike.evaluation._ranking.lists import first_items

    places, relevant = task.places, relevant_items(task)
    wanted = np.maximum(task.depth, relevant)
    found = Found(relevant, task.top)
    labels = task.labels[task.gallery]
    wide = None if task.coarse is None else task.coarse[task.gallery]

    def take(query: int, columns: Ints, scores: Doubles) -> None:
        own = np.flatnonzero(columns == places[query])  # the query is listed too, which tells what stands before it
        ahead = int(own[0]) if len(own) else FAR
        hits = _places_of(_same(labels[columns], task.labels[task.query[query]]), ahead)
        found.put(query, hits[hits <= wanted[query]], ahead if places[query] >= 0 else 0)
        if wide is not None and task.coarse is not None:
            like = _places_of(_same(wide[columns], task.coarse[task.query[query]]), ahead)
            found.coarse[query] = like[0] if len(like) and like[0] <= task.depth else FAR

    def copies(part: slice) -> tuple[Ints, Ints]:
        assert task.ids is not None
        out = _same(task.ids[task.gallery][None, :], task.ids[task.query[part], None])
        row, column = np.nonzero(out & (places[part, None] != np.arange(len(task.gallery))))
        return row, column

    left, right = task.rows_of(task.query), task.rows_of(task.gallery)
    first_items(left, right, wanted + 1, take, left_out=None if task.ids is None else copies)
    return found


def _places_of(hit: Bools, own: int) -> Ints:
    """1-based places of hits in a list from which the item at `own` is taken out."""
    place = np.flatnonzero(hit)
    return place[place != own] + 1 - (place[place != own] > own)


def _same(codes: Ints | Bools, own: Ints | Bools) -> Bools:
    if codes.dtype == bool:
        return np.asarray((codes & own).any(axis=-1))
    return np.asarray((codes == own) & (own >= 0))


def relevant_items(task: Task) -> Ints:
    """How many items each query has to find."""
    if task.several or task.ids is not None:
        return np.array([_one_relevant(task, int(row)) for row in task.query], dtype=np.int64)
    known = task.labels[task.gallery]
    sizes = np.append(np.bincount(known[known >= 0], minlength=int(task.labels.max(initial=-1)) + 1), 0)
    return np.asarray(sizes[task.labels[task.query]] - ((task.places >= 0) & (task.labels[task.query] >= 0)))


def _one_relevant(task: Task, row: int) -> int:
    found = _same(task.labels[task.gallery], task.labels[row]) & (task.gallery != row)
    if task.ids is not None:
        found &= ~_same(task.ids[task.gallery], task.ids[row])
    return int(found.sum())
