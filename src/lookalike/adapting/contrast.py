"""The contrastive term of T3AR: one positive key, negatives from the bank and from the pictures retrieved just now.

Computed by blocks of columns in one pass: similarities are at most 1, so exp((s − 1)/τ) needs no search for a
maximum, and the same block is the left factor of the gradient. Excluded columns are set to −1e4 before exp: a
subtraction from a whole sum would cancel, since the excluded ones are the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

PoolSet = Literal["own", "all", "others", "positive", "none"]
BLOCK = 2048
NEVER = -1e4


@dataclass(frozen=True)
class Columns:
    """Candidates for negatives: unit rows, the ids of their pictures, their class (−1: none), and whose they are."""

    rows: Tensor
    ids: Tensor
    labels: Tensor
    pool: bool

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Asking:
    """What a batch knows of itself: ids, classes, retrieved ids (−1: none) and which of those may not be negatives.

    `friends` are ids of target pictures that are no negatives either, for a model without classes.
    """

    ids: Tensor
    labels: Tensor
    lists: Tensor
    barred: Tensor
    friends: Tensor | None = None


def member(ids: Tensor, lists: Tensor) -> Tensor:
    """Whether column j's picture is in list i, as a matrix of flags; −1 in a list matches nothing."""
    found = torch.zeros(len(lists), len(ids), dtype=torch.bool)
    if not len(ids) or not lists.numel():
        return found
    order = torch.argsort(ids)
    ordered = ids[order].contiguous()
    wanted = lists.reshape(-1).contiguous()
    first = torch.searchsorted(ordered, wanted)
    count = (torch.searchsorted(ordered, wanted, right=True) - first) * (wanted >= 0)
    asks = torch.arange(len(lists)).repeat_interleave(lists.shape[1]).repeat_interleave(count)
    starts = (first - (count.cumsum(0) - count)).repeat_interleave(count)
    found[asks, order[starts + torch.arange(len(starts))]] = True
    return found


def excluded(asking: Asking, columns: Columns, *, pool_set: PoolSet, by_class: bool, pseudo: bool) -> Tensor:
    """Which columns are no negatives of which picture."""
    same = asking.ids[:, None] == columns.ids[None]
    if not columns.pool:
        if asking.friends is not None:
            same |= member(columns.ids, asking.friends)
        return same | (asking.labels[:, None] == columns.labels[None]) if by_class else same
    if pool_set == "none":
        return torch.ones_like(same)
    own = member(columns.ids, torch.where(asking.barred, -1, asking.lists))
    out = same | (~own if pool_set == "own" else member(columns.ids, torch.where(asking.barred, asking.lists, -1)))
    if pool_set == "others":
        out |= own
    if pseudo:
        # A picture retrieved for its likeness that the model takes for the same class is a false negative.
        wrong = asking.labels[:, None] == columns.labels[None]
        out |= wrong & ~own if pool_set == "positive" else wrong
    return out


class _Fused(torch.autograd.Function):
    """Loss of each row of `q` and, at once, its gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, key: Tensor, parts: list[tuple[Tensor, Tensor]], tau: float) -> Tensor:
        near = ((q * key).sum(1) - 1) / tau
        total, pull = torch.zeros_like(near), torch.zeros_like(q)
        shift = q.new_full((1, 1), -1 / tau)
        for rows, never in parts:
            for start in range(0, len(rows), BLOCK):
                part = rows[start : start + BLOCK]
                block = torch.addmm(shift, q, part.T, alpha=1 / tau)  # (s − 1)/τ, scaled inside the product
                block.masked_fill_(never[:, start : start + BLOCK], NEVER).exp_()
                total += block.sum(1)
                pull.addmm_(block, part)
        scale = (-near).exp()
        ratio = total * scale
        ctx.save_for_backward((pull * scale[:, None] - key * ratio[:, None]) / (tau * (1 + ratio))[:, None])
        return torch.log1p(ratio)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0][:, None] * slope, None, None, None


def contrastive(
    q: Tensor,
    key: Tensor,
    asking: Asking,
    parts: list[Columns],
    *,
    tau: float = 0.07,
    pool_set: PoolSet = "own",
    by_class: bool = True,
    pseudo: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each picture, and how often each column of each part was a negative.

    No gradient flows to keys and columns. A picture without negatives has loss 0 and gradient 0.
    """
    masks = [excluded(asking, part, pool_set=pool_set, by_class=by_class, pseudo=pseudo) for part in parts]
    loss = _Fused.apply(q, key, [(part.rows, mask) for part, mask in zip(parts, masks, strict=True)], tau)
    counts = [len(q) - mask.sum(0) for mask in masks]
    if pool_set == "positive":
        near, number = (q * key).sum(1), torch.ones(len(q), dtype=q.dtype)
        liked = near
        for place, part in enumerate(parts):
            if part.pool:
                own = (member(part.ids, torch.where(asking.barred, -1, asking.lists)) & ~masks[place]).to(q.dtype)
                liked = liked + (q * (own @ part.rows)).sum(1)
                number = number + own.sum(1)
                counts[place] = counts[place] - own.sum(0).long()
        loss = loss + (near - liked / number) / tau
    return loss, counts
