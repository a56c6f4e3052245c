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
    labels: Ints | Bools  # codes, or rows × labels when a picture has several
    query: Ints
    gallery: Ints
    ids: Ints | None = None  # pairs of equal content are left out
    coarse: Ints | None = None
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


@dataclass(frozen=True)
class Ranks:
    """Per query, 1-based ranks of relevant items in rising order, laid end to end (those within the depth)."""

    ranks: Ints
    owner: Ints  # which query each rank belongs to
    relevant: Ints  # how many relevant items a query has, found or not
    ahead: Ints  # how many items stand before the query itself, were it not left out (FAR: beyond the depth)
    coarse: Ints | None  # rank of the first item of the same coarse class, 0 if none is within the depth


def find_ranks(task: Task) -> Ranks:
    """Queries with few relevant items among many rows are counted, the others listed; both ways give the same."""
    chosen = np.zeros(len(task.query), bool)
    if not task.several and task.coarse is None and _sparse(task):
        chosen = _relevant(replace(task, ids=None)) <= FEW
        if int(chosen.sum()) * len(task.gallery) < MANY:
            chosen[:] = False
    if not chosen.any():
        return _listed(task)
    counted, unproved = _counted(replace(task, query=task.query[chosen]))
    rest = ~chosen
    rest[np.flatnonzero(chosen)[unproved]] = True
    if not rest.any():
        return counted
    return _joined(
        counted, np.flatnonzero(chosen), _listed(replace(task, query=task.query[rest])), np.flatnonzero(rest)
    )


def _sparse(task: Task) -> bool:
    """Whether equal content is the exception: counting keeps such pairs one by one."""
    if task.ids is None:
        return True
    sizes = np.unique(task.ids[task.ids >= 0], return_counts=True)[1]
    return int(np.square(sizes).sum()) <= 64 * len(task.ids)


def _counted(task: Task) -> tuple[Ranks, Bools]:
    from lookalike.evaluation.counting import count_ranks

    right = task.rows_of(task.gallery)
    left = right if np.array_equal(task.query, task.gallery) else task.rows_of(task.query)
    labels = (task.labels[task.query].astype(np.int64), task.labels[task.gallery].astype(np.int64))
    ids = None if task.ids is None else (task.ids[task.query], task.ids[task.gallery])
    found = count_ranks(left, right, labels, task.places, ids, task.depth)
    return Ranks(found.ranks, found.owner, found.relevant, found.ahead, None), found.unproved


def _listed(task: Task) -> Ranks:
    from lookalike.evaluation.lists import first_items

    count, places, relevant = len(task.query), task.places, _relevant(task)
    ranks: list[Ints] = [np.empty(0, np.int64)] * count
    ahead = np.full(count, FAR)
    coarse = None if task.coarse is None else np.zeros(count, np.int64)
    labels = task.labels[task.gallery]
    wide = None if task.coarse is None else task.coarse[task.gallery]

    def take(query: int, columns: Ints, scores: Doubles) -> None:
        own = np.flatnonzero(columns == places[query])  # the query is listed too, which tells what stands before it
        if len(own):
            ahead[query] = own[0]
            columns = np.delete(columns, own[0])
        hit = _same(labels[columns], task.labels[task.query[query]])
        ranks[query] = np.flatnonzero(hit) + 1
        if coarse is not None and wide is not None and task.coarse is not None:
            like = np.flatnonzero(_same(wide[columns], task.coarse[task.query[query]]))
            coarse[query] = like[0] + 1 if len(like) and like[0] < task.depth else 0

    def copies(part: slice) -> tuple[Ints, Ints]:
        assert task.ids is not None
        out = _same(task.ids[task.gallery][None, :], task.ids[task.query[part], None])
        row, column = np.nonzero(out & (places[part, None] != np.arange(len(task.gallery))))
        return row, column

    wanted = np.maximum(task.depth, relevant)
    left, right = task.rows_of(task.query), task.rows_of(task.gallery)
    first_items(left, right, wanted + 1, take, left_out=None if task.ids is None else copies)
    owner = np.repeat(np.arange(count), [len(r) for r in ranks])
    flat = np.concatenate([np.empty(0, np.int64), *ranks])
    near = flat <= wanted[owner]
    return Ranks(flat[near], owner[near], relevant, ahead, coarse)


def _same(codes: Ints | Bools, own: Ints | Bools) -> Bools:
    if codes.dtype == bool:
        return np.asarray((codes & own).any(axis=-1))
    return np.asarray((codes == own) & (own >= 0))


def _relevant(task: Task) -> Ints:
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


def _joined(first: Ranks, one: Ints, second: Ranks, two: Ints) -> Ranks:
    """Both parts in the order of the queries; where a query is in both, the second knows better."""
    kept = ~np.isin(one[first.owner], two)
    owner = np.concatenate([one[first.owner[kept]], two[second.owner]])
    ranks = np.concatenate([first.ranks[kept], second.ranks])
    order = np.lexsort((ranks, owner))
    count = max(one.max(initial=-1), two.max(initial=-1)) + 1
    relevant, ahead = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for part, index in ((first, one), (second, two)):
        relevant[index], ahead[index] = part.relevant, part.ahead
    return Ranks(ranks[order], owner[order], relevant, ahead, None)
