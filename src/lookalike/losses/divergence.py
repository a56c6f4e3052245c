"""How far the views of a query disagree about a database: Jensen–Shannon between all pairs, as one norm.

With d = log P_i − log P_j and M = (P_i + P_j)/2 the divergence is ½ Σ M·h(d), where every summand is ≥ 0 and equal
rows give exactly 0. The usual sums of P log(P/M) lose all digits where views nearly agree, which they do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

NEAR = 4.0  # beyond it the form for small |d| would meet log 0


def excess(d: Tensor) -> Tensor:
    """h(d) = d·tanh(d/2) − 2 log cosh(d/2), without cancellation."""
    t, size = torch.tanh(d / 2), d.abs()
    far = 2 * math.log(2) - size - 2 * torch.log1p(torch.exp(-size))
    return torch.addcmul(torch.where(size < NEAR, torch.log1p(-t * t), far), d, t)


def log_to_middle(d: Tensor) -> Tensor:
    """ℓ = log(P_i/M), of d = log(P_i/P_j)."""
    size = d.abs()
    far = math.log(2) + d.clamp(max=0) - torch.log1p(torch.exp(-size))
    return torch.where(size < NEAR, torch.log1p(torch.tanh(d / 2)), far)


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


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
        logits = similarity / temperature
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -math.inf)
        log_p = torch.log_softmax(logits, dim=2)
        p = log_p.exp()
        if mask is not None:  # −∞ − (−∞) is no number
            log_p = log_p.masked_fill(~mask[:, None], 0.0)
        i, j = pairs(similarity.shape[1], similarity.device)
        d = log_p[:, i] - log_p[:, j]
        js = 0.25 * ((p[:, i] + p[:, j]) * excess(d)).sum(2)
        frob = norm_of(js)
        ctx.save_for_backward(p, d, js, frob)
        ctx.temperature = temperature
        return frob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        p, d, js, frob = ctx.saved_tensors
        weight = pair_weights(js, frob, gradients[0])[:, :, None]
        out = torch.zeros_like(p)
        for places, sign in zip(pairs(p.shape[1], p.device), (1.0, -1.0), strict=True):
            out.index_add_(1, places, weight * slope(p[:, places], log_to_middle(sign * d)))
        return out / ctx.temperature, None, None


def slope(p: Tensor, ell: Tensor, kl: Tensor | None = None) -> Tensor:
    """P ∘ (ℓ − KL): twice ∂JS/∂logits; `kl` where the columns at hand are not all."""
    part = p * ell
    return part - p * (part.sum(2, keepdim=True) if kl is None else kl)


def divergence(similarity: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Norm of the pairwise Jensen–Shannon divergences of softmax(similarity/τ), in nats.

    `similarity` (B, A, T), `mask` (B, T) true where a column is real; (B,). Bounded by √(A(A−1)/2)·ln 2.
    """
    return _Divergence.apply(_exact(similarity), mask, temperature)


def _exact(x: Tensor) -> Tensor:
    """Half precision has too few digits for views that nearly agree."""
    return x if x.dtype == torch.float64 else x.float()
