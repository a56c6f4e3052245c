"""The contrastive term of T3AR: one positive key, negatives from the bank and from the images retrieved just now.

Computed by blocks of columns in one pass as a log-sum-exp with a running maximum, so that no temperature overflows;
the same block is the left factor of the gradient. Excluded columns are set to −inf before exp: a subtraction from a
whole sum would cancel, since the excluded ones are the largest. Only what is shared by many pairs (a class) is compared
over whole blocks; own entries and retrieved images are few and are named pair by pair, so that `own` touches no other
entry of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

PoolSet = Literal["own", "all", "others", "positive", "none"]
BLOCK = 2048


@dataclass(frozen=True)
class Columns:
    """Candidates for negatives: unit rows, the ids of their images, their class (−1: none), and whose they are."""

    rows: Tensor
    ids: Tensor
    labels: Tensor
    pool: bool

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ContrastQueries:
    """What a batch knows of itself: ids, classes, retrieved ids (−1: none) and which of those may not be negatives.

    `friends` are ids of target images that are no negatives either, for a model without classes.
    """

    ids: Tensor
    labels: Tensor
    lists: Tensor
    barred: Tensor
    friends: Tensor | None = None


@dataclass(frozen=True)
class Pairs:
    """Some (row of the batch, column) pairs, columns ascending."""

    rows: Tensor
    columns: Tensor

    def where(self, keep: Tensor) -> Pairs:
        return Pairs(self.rows[keep], self.columns[keep])


def listed(ids: Tensor, lists: Tensor) -> Pairs:
    """Pairs whose column's image is in the row's list, each once; −1 in a list matches nothing."""
    count = len(lists)
    rows = torch.arange(count).repeat_interleave(lists.shape[1])[lists.flatten() >= 0]
    listed_ids, order = lists[lists >= 0].sort()
    if not len(listed_ids) or not len(ids):
        return Pairs(listed_ids[:0], listed_ids[:0])
    known = torch.zeros(max(int(ids.max()), int(listed_ids[-1])) + 1, dtype=torch.bool)
    known[listed_ids] = True
    columns = (known[ids.clamp(min=0)] & (ids >= 0)).nonzero()[:, 0]
    first = torch.searchsorted(listed_ids, ids[columns])
    times = torch.searchsorted(listed_ids, ids[columns], right=True) - first
    starts = (first - (times.cumsum(0) - times)).repeat_interleave(times)
    row = rows[order][starts + torch.arange(len(starts))]
    flat = torch.unique(columns.repeat_interleave(times) * count + row)
    return Pairs(flat % count, flat // count)


@dataclass(frozen=True)
class Dense:
    """Columns that are negatives of every image, but for some pairs and, with `labels`, for those of its class."""

    rows: Tensor
    but: Pairs
    labels: Tensor | None

    def times(self, labels: Tensor) -> Tensor:
        """How often each column is a negative."""
        but, out = self.but, torch.full((len(self.rows),), len(labels))
        if self.labels is not None:
            known = torch.bincount(labels, minlength=int(self.labels.max()) + 1)
            out -= torch.where(self.labels >= 0, known[self.labels.clamp(min=0)], 0)
            but = but.where(labels[but.rows] != self.labels[but.columns])
        return out - torch.bincount(but.columns, minlength=len(out))


@dataclass(frozen=True)
class Single:
    """Pairs that are negatives, and no others of these columns."""

    rows: Tensor
    pairs: Pairs


def negatives(
    queries: ContrastQueries, columns: Columns, *, pool_set: PoolSet, by_class: bool, pseudo: bool
) -> tuple[Dense | None, Single | None]:
    """Which columns stand in the denominator beside the key; with `positive` the single ones are the positives."""
    if not columns.pool:
        lists = queries.ids[:, None]
        if queries.friends is not None:
            lists = torch.cat([lists, queries.friends], 1)
        return Dense(columns.rows, listed(columns.ids, lists), columns.labels if by_class else None), None
    if pool_set == "none":
        return None, None
    single = None
    if pool_set in ("own", "positive"):
        own = listed(columns.ids, torch.where(queries.barred, -1, queries.lists))
        keep = queries.ids[own.rows] != columns.ids[own.columns]
        if pool_set == "own" and pseudo:
            # An image retrieved for its likeness that the model takes for the same class is a false negative.
            keep &= queries.labels[own.rows] != columns.labels[own.columns]
        single = Single(columns.rows, own.where(keep))
        if pool_set == "own":
            return None, single
    left_out = torch.where(queries.barred, queries.lists, -1) if pool_set == "all" else queries.lists
    but = listed(columns.ids, torch.cat([queries.ids[:, None], left_out], 1))
    return Dense(columns.rows, but, columns.labels if pseudo else None), single


class _Fused(torch.autograd.Function):
    """Loss of each row of `q` and, at once, its gradient: log-sum-exp over the blocks, with a running maximum."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, key: Tensor, labels: Tensor, dense: list[Dense], single: list[Single], tau: float
    ) -> Tensor:
        near = (q * key).sum(1) / tau
        # The key stands in the denominator: it is the first maximum, and its weight is 1.
        top, total, pull = near.clone(), torch.ones_like(near), key.clone()

        def raise_top(new: Tensor) -> None:
            scale = (top - torch.maximum(top, new)).exp_()
            torch.maximum(top, new, out=top)
            total.mul_(scale)
            pull.mul_(scale[:, None])

        mine = labels[:, None].int()
        for part in dense:
            theirs = None if part.labels is None else part.labels.int()
            cuts = torch.searchsorted(part.but.columns, torch.arange(0, len(part.rows) + BLOCK, BLOCK)).tolist()
            for number, start in enumerate(range(0, len(part.rows), BLOCK)):
                rows = part.rows[start : start + BLOCK]
                block = (q / tau) @ rows.T
                if theirs is not None:
                    block.masked_fill_(mine == theirs[start : start + BLOCK], -torch.inf)
                some = slice(cuts[number], cuts[number + 1])
                block[part.but.rows[some], part.but.columns[some] - start] = -torch.inf
                raise_top(block.amax(1))
                block.sub_(top[:, None]).exp_()
                total += block.sum(1)
                pull.addmm_(block, rows)
        for few in single:
            queries, rows = few.pairs.rows, few.rows[few.pairs.columns]
            value = (q[queries] * rows).sum(1) / tau
            raise_top(top.scatter_reduce(0, queries, value, "amax"))
            value = (value - top[queries]).exp_()
            total.index_add_(0, queries, value)
            pull.index_add_(0, queries, value[:, None] * rows)
        ctx.save_for_backward((pull / total[:, None] - key) / tau)
        return (top - near) + total.log()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grads[0][:, None] * slope, None, None, None, None, None


def contrastive(
    q: Tensor,
    key: Tensor,
    queries: ContrastQueries,
    parts: list[Columns],
    *,
    tau: float = 0.07,
    pool_set: PoolSet = "own",
    by_class: bool = True,
    pseudo: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each image, and of each part of the pool how often each column was a negative.

    No gradient flows to keys and columns. An image without negatives has loss 0 and gradient 0.
    """
    chosen = [negatives(queries, part, pool_set=pool_set, by_class=by_class, pseudo=pseudo) for part in parts]
    dense, single = [d for d, _ in chosen if d is not None], [s for _, s in chosen if s is not None]
    loss = _Fused.apply(q, key, queries.labels, dense, single, tau)
    if pool_set == "positive":
        near, number = (q * key).sum(1), torch.ones(len(q), dtype=q.dtype)
        liked = near
        for few in single:
            rows = few.pairs.rows
            liked = liked.index_add(0, rows, (q[rows] * few.rows[few.pairs.columns]).sum(1))
            number = number.index_add(0, rows, torch.ones(len(rows), dtype=q.dtype))
        loss = loss + (near - liked / number) / tau
    none = queries.ids[:0]
    counts = [
        d.times(queries.labels) if d is not None else torch.bincount(s.pairs.columns if s else none, minlength=len(p))
        for (d, s), p in zip(chosen, parts, strict=True)
        if p.pool
    ]
    return loss, counts
