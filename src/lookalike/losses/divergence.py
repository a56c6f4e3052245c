"""How far the views of a query disagree about a database: Jensen–Shannon between all pairs, as one norm.

With t = (P_i − P_j)/(P_i + P_j), which is tanh of half of log P_i − log P_j, the two halves of a divergence are the
means of log1p(±t): no logarithm is near 0/0 or of a rounded quotient, and equal rows give exactly 0. The usual sums of
P log(P/M) lose all digits where views nearly agree, which they do (docs/decisions/0191).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


def logs_to_middle(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """ℓ_p = log(P/M) and ℓ_q = log(Q/M), M the mean of P and Q; 0 where both are."""
    numbers = torch.finfo(p.dtype)
    t = (p - q).div_((p + q).add_(numbers.tiny))
    # Where it rounds to ±1 the smaller of the two is too small to count, but not log 0.
    t.clamp_(numbers.eps - 1, 1 - numbers.eps)
    return t.log1p(), t.neg_().log1p_()


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

    ell_i: Tensor
    """(B, pairs, T) log(P_i/M_ij); 0 where masked."""
    ell_j: Tensor
    js: Tensor
    """(B, pairs)."""
    frob: Tensor
    """(B,) their norm."""


def shares(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of (B, A, T), which is written to; 0 where masked."""
    if mask is not None:
        logits.masked_fill_(~mask[:, None], -math.inf)
    return torch.softmax(logits, dim=2)


def apart(p: Tensor) -> Apart:
    i, j = pairs(p.shape[1], p.device)
    # `index_select` is much quicker than brackets.
    p_i, p_j = p.index_select(1, i), p.index_select(1, j)
    ell_i, ell_j = logs_to_middle(p_i, p_j)
    js = 0.5 * p_i.mul_(ell_i).addcmul_(p_j, ell_j).sum(2)
    return Apart(ell_i, ell_j, js, norm_of(js))


def pulled(found: Apart, gradient: Tensor, views: int) -> Tensor:
    """Σ over the pairs of their weight times ℓ, (B, A, T): `slope` makes the gradient of the norms of it."""
    *ells, js, frob = found
    weight = pair_weights(js, frob, gradient)[:, :, None]
    out = js.new_zeros(len(js), views, ells[0].shape[2])
    for places, ell in zip(pairs(views, js.device), ells, strict=True):
        out.index_add_(1, places, ell * weight)
    return out


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
        p = shares(similarity / temperature, mask)
        found = apart(p)
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
    return part.addcmul_(p, part.sum(2, keepdim=True) if kl is None else kl, value=-1)


def divergence(similarity: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Norm of the pairwise Jensen–Shannon divergences of softmax(similarity/τ), in nats.

    `similarity` (B, A, T), `mask` (B, T) true where a column is real; (B,). Bounded by √(A(A−1)/2)·ln 2.
    """
    return _Divergence.apply(at_least_float32(similarity), mask, temperature)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision has too few digits for views that nearly agree."""
    return x if x.dtype == torch.float64 else x.float()
