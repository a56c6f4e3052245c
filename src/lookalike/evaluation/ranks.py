"""At which ranks do a query's relevant items stand? Everything retrieval measures follows from that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookalike.evaluation.arrays import Bools, Floats, Ints

BLOCK_BYTES = 64 << 20  # of scores held at a time


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

    def relevant(self, part: slice) -> Bools:
        """Queries of a part × gallery: the same class."""
        return _same(self.labels, self.query[part], self.gallery)

    def left_out(self, part: slice) -> Bools:
        """Queries of a part × gallery: the query itself, by index, and pictures of the same content."""
        out = self.query[part, None] == self.gallery[None, :]
        if self.ids is not None:
            out |= _same(self.ids, self.query[part], self.gallery)
        return np.asarray(out)


def _same(codes: Ints | Bools, left: Ints, right: Ints) -> Bools:
    if codes.ndim == 2:
        return np.asarray((codes[left].astype(np.float32) @ codes[right].T.astype(np.float32)) > 0)
    return np.asarray((codes[left, None] == codes[None, right]) & (codes[left, None] >= 0))


@dataclass(frozen=True)
class Ranks:
    """Per query, 1-based ranks of relevant items in rising order, laid end to end (those within the depth)."""

    ranks: Ints
    owner: Ints  # which query each rank belongs to
    relevant: Ints  # how many relevant items a query has, found or not
    ahead: Ints  # how many items stand before the query itself, were it not left out
    coarse: Ints | None  # rank of the first item of the same coarse class, 0 if none is within the depth


def find_ranks(task: Task) -> Ranks:
    """Blocks of queries against the whole gallery, in double precision."""
    vectors = task.rows[task.gallery].astype(np.float64).T
    step = max(1, BLOCK_BYTES // max(1, 8 * len(task.gallery)))
    ranks, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    relevant = np.zeros(len(task.query), np.int64)
    ahead = np.zeros(len(task.query), np.int64)
    coarse = None if task.coarse is None else np.zeros(len(task.query), np.int64)
    for start in range(0, len(task.query), step):
        part = slice(start, start + step)
        chosen = task.rows[task.query[part]].astype(np.float64)
        scores = chosen @ vectors
        out = task.left_out(part)
        own = np.einsum("ij,ij->i", chosen, chosen)[:, None]
        earlier = (scores == own) & (task.gallery[None, :] < task.query[part, None])
        ahead[part] = (((scores > own) | earlier) & ~out).sum(axis=1)
        scores[out] = -np.inf
        hit = task.relevant(part) & ~out
        relevant[part] = hit.sum(axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")
        hit = np.take_along_axis(hit, order, axis=1)
        row, column = np.nonzero(hit)
        near = column < np.maximum(task.depth, relevant[part])[row]
        ranks.append(column[near] + 1)
        owner.append(row[near] + start)
        if coarse is not None and task.coarse is not None:
            like = np.take_along_axis(_same(task.coarse, task.query[part], task.gallery) & ~out, order, axis=1)
            first = like[:, : task.depth].argmax(axis=1)
            coarse[part] = np.where(like[np.arange(len(first)), first], first + 1, 0)
    return Ranks(np.concatenate(ranks), np.concatenate(owner), relevant, ahead, coarse)
