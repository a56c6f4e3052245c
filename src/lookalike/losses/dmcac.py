"""The terms of DMCAC: how the views of a query agree about a database, and which class attention finds in it.

Trivedy and Latecki, "Image Retrieval with Self-Supervised Divergence Minimization and Cross-Attention
Classification", IJCAI 2024. B queries in A views of F numbers, a union of at most T database rows a query.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lookalike.losses.divergence import Apart, apart, at_least_float32, norm_of, pairs, pulled, shares, slope
from lookalike.losses.whole import whole


class Union(NamedTuple):
    members: Tensor
    """int64 (B, T): rows of the database, ascending; row 0 where there is no more."""
    mask: Tensor
    """bool (B, T): true for what is a member."""

    @property
    def sizes(self) -> Tensor:
        return self.mask.sum(1)


def union(found: Tensor) -> Union:
    """What any view of a query found: distinct rows of `found` (B, A, k)."""
    rows = found.flatten(1).sort(dim=1).values
    first = torch.ones_like(rows, dtype=torch.bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    place = first.cumsum(1) - 1
    counts = place[:, -1:] + 1
    width = int(counts.max())
    members = torch.zeros(len(rows), width, dtype=rows.dtype, device=rows.device).scatter_(1, place, rows)
    return Union(members, torch.arange(width, device=rows.device) < counts)


class Heads(nn.Module):
    """W_ce, W_q, W_k, W_v and W_c, (out, in), without biases; dropped when the model is exported."""

    def __init__(self, classes: int, dim: int, generator: torch.Generator | None = None, start: str = "linear") -> None:
        super().__init__()

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(rows, dim, generator=generator) - 1) * dim**-0.5)

        self.classes, self.mixture = matrix(classes), matrix(classes)
        self.query, self.key, self.value = matrix(dim), matrix(dim), matrix(dim)
        if start == "identity":
            with torch.no_grad():
                for square in (self.query, self.key, self.value):
                    square.copy_(torch.eye(dim))

    def asking(self, z: Tensor) -> Tensor:
        """W_kᵀ W_q z/√F: its product with a bare database row is the attention logit, so none is projected."""
        return self.asking_long(z) / math.sqrt(z.shape[-1])

    def asking_long(self, z: Tensor) -> Tensor:
        """W_kᵀ W_q z."""
        return z @ self.query.t() @ self.key

    def told(self, mixture: Tensor) -> Tensor:
        """Class logits of an attention-weighted sum of bare rows: W_c W_v Σ a d, the smaller product first."""
        if len(self.mixture) < mixture.shape[-1]:
            return mixture @ (self.mixture @ self.value).t()
        return mixture @ self.value.t() @ self.mixture.t()


class Terms(NamedTuple):
    """One value a query each, (B,)."""

    divergence: Tensor
    attention: Tensor
    mass: Tensor
    """Attention on rows of the query's own class, mean over the views; without gradient."""


class Database(NamedTuple):
    rows: Tensor
    """(D, F), unit."""
    labels: Tensor
    """(D,)."""
    lengths: Tensor | None = None
    """(D,): what the rows are multiplied by before they meet the heads; None: 1."""


def over_union(
    z: Tensor, asking: Tensor, labels: Tensor, database: Database, found: Union, heads: Heads, temperature: float
) -> Terms:
    """Divergence and attention over each query's union; `z` (B, A, F) unit, `asking` what the heads are given of it."""
    members, shape = found.members.flatten(), found.members.shape
    near = database.rows.index_select(0, members).view(*shape, -1)
    lengths = None if database.lengths is None else database.lengths.index_select(0, members).view(shape)
    asked = at_least_float32(z), at_least_float32(heads.asking_long(asking))
    frob, mixture, weights = _OverUnion.apply(*asked, at_least_float32(near), found.mask, lengths, temperature)
    same = database.labels.index_select(0, members).view(shape) == labels[:, None]
    mass = (weights.mean(1) * same).sum(1)
    return Terms(frob, class_loss(heads.told(mixture), labels), mass)


class _OverUnion(torch.autograd.Function):
    """Divergence, attended mixture and the attention itself, over rows (B, T, F) that are constants: the products of
    views and of attention queries are one, forward and backward, since small ones are slow. Their logits are divided by
    √F here, not what asks: they are fewer."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, asking: Tensor, near: Tensor, mask: Tensor, lengths: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        views = z.shape[1]
        logits = torch.cat([z, asking], 1) @ near.mT
        ctx.temperature, ctx.scale = temperature, z.shape[2] ** -0.5
        _to_logits(logits, views, lengths, ctx)
        both = shares(logits, mask)
        weights, found = both[:, views:], apart(both[:, :views])
        ctx.save_for_backward(near, lengths, both, *found)
        ctx.mark_non_differentiable(weights)
        return found.frob, _times(weights, lengths) @ near, weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        near, lengths, both, *found = ctx.saved_tensors
        views = both.shape[1] // 2
        told = pulled(Apart(*found), gradients[0], views), _times(gradients[1] @ near.mT, lengths)
        d_logits = slope(both, torch.cat(told, 1))
        _to_logits(d_logits, views, lengths, ctx)
        moved = d_logits @ near
        return moved[:, :views], moved[:, views:], None, None, None, None


def _to_logits(x: Tensor, views: int, lengths: Tensor | None, ctx: Any) -> None:
    """Products of views and of what asks with the rows to logits, in place; gradients go back the same way."""
    x[:, :views].div_(ctx.temperature)
    x[:, views:].mul_(ctx.scale if lengths is None else ctx.scale * lengths[:, None])


def over_all(
    z: Tensor, asking: Tensor, labels: Tensor, database: Database, heads: Heads, temperature: float, block: int = 4096
) -> Terms:
    """The same over the whole database, by blocks; rows that want a gradient get theirs."""
    rows, row_labels, lengths = database
    z, asking, rows = (at_least_float32(x) for x in (z, heads.asking(asking), rows))
    found = whole(z, asking, rows, labels, row_labels, lengths, temperature, block)
    return Terms(found.divergence, class_loss(heads.told(found.mixture), labels), found.mass)


def pointwise(z: Tensor) -> Tensor:
    """Instead of the divergence: the norm of 1 − cosine over all pairs of views, (B,) of unit `z` (B, A, F)."""
    i, j = pairs(z.shape[1], z.device)
    return norm_of(1 - (z[:, i] * z[:, j]).sum(2))


def attention(heads: Heads, z: Tensor, near: Tensor, mask: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Weights (B, A, T) of the rows `near` (B, T, F); 0 where masked."""
    logits = _times(heads.asking(z) @ near.mT, lengths)
    return torch.softmax(logits.masked_fill(~mask[:, None], -math.inf), dim=2)


def _times(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, A, T) times the lengths of the T rows."""
    return x if lengths is None else x * lengths[:, None]


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the views, (B,) of logits (B, A, c)."""
    views = logits.shape[1]
    wanted = labels[:, None].expand(-1, views).reshape(-1)
    each = functional.cross_entropy(logits.flatten(0, 1), wanted, reduction="none")
    return each.view(-1, views).sum(1)
