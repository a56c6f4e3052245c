"""How far the views of a query disagree about a database: Jensen–Shannon between all pairs, as one norm.

With d = log P_i − log P_j and M = (P_i + P_j)/2 the divergence is ½ Σ M·h(d), where every summand is ≥ 0 and equal
rows give exactly 0. The usual sums of P log(P/M) lose all digits where views nearly agree, which they do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEAR = 4.0  # beyond it the form for small |d| would meet log 0


def excess(d: Tensor) -> Tensor:
    """h(d) = d·tanh(d/2) − 2 log cosh(d/2), without cancellation."""
    return _excess(*_shared(d))


def _excess(size: Tensor, t: Tensor, both: Tensor) -> Tensor:
    far = torch.add(2 * math.log(2) - size, both.log(), alpha=-2)
    return torch.addcmul(torch.where(size < NEAR, torch.log1p(-t * t), far), size, t)


def _shared(d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|d|, tanh(|d|/2) and 1 + exp(−|d|), all of one exponential, which is quicker than torch's tanh."""
    size = d.abs()
    less = size.neg().expm1_()
    both = less + 2
    return size, less.neg_().div_(both), both


def logs_to_middle(d: Tensor) -> tuple[Tensor, Tensor]:
    """ℓ_i = log(P_i/M) and ℓ_j = log(P_j/M), of d = log(P_i/P_j)."""
    return _logs_of(torch.copysign(_shared(d)[1], d))


def _logs_of(t: Tensor) -> tuple[Tensor, Tensor]:
    """The same of t = tanh(d/2). Where it rounds to ±1 the smaller of the two is too small to count, but not log 0."""
    edge = 1 - torch.finfo(t.dtype).eps
    t = t.clamp(-edge, edge)
    return t.log1p(), t.neg().log1p_()


def pairs(views: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places (i, j) of the lower triangle, i > j."""
    i, j = torch.tril_indices(views, views, -1, device=device)
    return i, j


def norm_of(js: Tensor) -> Tensor:
    """The Frobenius norm of the lower triangle, (B,) of (B, pairs)."""
    return torch.linalg.vector_norm(js, dim=1)


def pair_weights(js: Tensor, frob: Tensor, gradient: Tensor) -> Tensor:
    """½ ∂norm/∂JS, (B, pairs): 0 where all views agree, which is the true slope there."""
    return 0.5 * gradient[:, None] * torch.where(frob[:, None] > 0, js / frob[:, None], 0.0)


class Apart(NamedTuple):
    """How far the views of B queries are apart."""

    t: Tensor
    """(B, pairs, T) tanh of half of log P_i − log P_j; 0 where masked."""
    js: Tensor
    """(B, pairs)."""
    frob: Tensor
    """(B,) their norm."""


def shares(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """log softmax and softmax of (B, A, T), which is written to; both 0 where masked."""
    if mask is None:
        log_p = torch.log_softmax(logits, dim=2)
        return log_p, log_p.exp()
    out = ~mask[:, None]
    log_p = torch.log_softmax(logits.masked_fill_(out, -math.inf), dim=2)
    return log_p.masked_fill(out, 0.0), log_p.exp_()  # −∞ − (−∞) is no number


def apart(log_p: Tensor, p: Tensor) -> Apart:
    i, j = pairs(p.shape[1], p.device)
    # `index_select` is much quicker than brackets.
    d = log_p.index_select(1, i) - log_p.index_select(1, j)
    size, t, both = _shared(d)
    js = 0.25 * ((p.index_select(1, i) + p.index_select(1, j)) * _excess(size, t, both)).sum(2)
    return Apart(t.copysign_(d), js, norm_of(js))


def pulled(found: Apart, gradient: Tensor, views: int) -> Tensor:
    """Σ over the pairs of their weight times ℓ, (B, A, T): `slope` makes the gradient of the norms of it."""
    t, js, frob = found
    weight = pair_weights(js, frob, gradient)[:, :, None]
    out = t.new_zeros(len(t), views, t.shape[2])
    for places, ell in zip(pairs(views, t.device), _logs_of(t), strict=True):
        out.index_add_(1, places, ell.mul_(weight))
    return out


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
        log_p, p = shares(similarity / temperature, mask)
        found = apart(log_p, p)
        ctx.save_for_backward(p, *found)
        ctx.temperature = temperature
        return found.frob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        p, *found = ctx.saved_tensors
        return slope(p, pulled(Apart(*found), gradients[0], p.shape[1])).div_(ctx.temperature), None, None


def slope(p: Tensor, ell: Tensor, kl: Tensor | None = None) -> Tensor:
    """P ∘ (ℓ − KL): twice ∂JS/∂logits, or of a weighted sum of ℓ; `kl` where the columns at hand are not all."""
    part = p * ell
    return part - p * (part.sum(2, keepdim=True) if kl is None else kl)


def divergence(similarity: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Norm of the pairwise Jensen–Shannon divergences of softmax(similarity/τ), in nats.

    `similarity` (B, A, T), `mask` (B, T) true where a column is real; (B,). Bounded by √(A(A−1)/2)·ln 2.
    """
    return _Divergence.apply(exact(similarity), mask, temperature)


def exact(x: Tensor) -> Tensor:
    """Half precision has too few digits for views that nearly agree."""
    return x if x.dtype == torch.float64 else x.float()
