"""Pairwise cross-entropy in hyperbolic space, and its twin on the sphere.

Ermolov et al., "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning", CVPR 2022 (Hyp, Sph).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

TINY = 1e-12


def to_ball(u: Tensor, curvature: float, clip: float) -> Tensor:
    """Rows cut to length `clip`, then mapped into the ball of radius 1/√c."""
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp(min=TINY)
    u = u * (clip / length).clamp(max=1.0)
    scaled = (math.sqrt(curvature) * length.clamp(max=clip)).clamp(min=TINY)
    return torch.tanh(scaled) / scaled * u


def distances(x: Tensor, y: Tensor, curvature: float) -> Tensor:
    """2/√c · artanh(√c‖(−x) ⊕ y‖) of all pairs, by ‖(−x) ⊕ y‖² = ‖x − y‖²/(1 − 2c⟨x,y⟩ + c²‖x‖²‖y‖²)."""
    xy, xx, yy = x @ y.t(), x.square().sum(1)[:, None], y.square().sum(1)[None]
    apart = (x[:, None] - y[None]).square().sum(2)
    share = curvature * apart / (1 - 2 * curvature * xy + curvature**2 * xx * yy)
    root = share.clamp(min=TINY).sqrt().clamp(max=1 - 1e-6)
    return 2 / math.sqrt(curvature) * torch.atanh(root)


def pairwise(scores: Tensor, slots: int, temperature: float) -> Tensor:
    """Sum over ordered pairs of slots i ≠ j of the mean cross-entropy of finding one's own class in slot j, among
    slots j and i. `scores` (K·N, K·N) with row s·N + n for image s of class n."""
    classes = len(scores) // slots
    own = torch.eye(classes, dtype=torch.bool, device=scores.device)
    target = torch.arange(classes, device=scores.device)
    blocks = (scores / temperature).view(slots, classes, slots, classes).transpose(1, 2)
    total = scores.sum() * 0
    for i in range(slots):
        within = blocks[i, i].masked_fill(own, -math.inf)
        for j in range(slots):
            if i != j:
                total = total + functional.cross_entropy(torch.cat([blocks[i, j], within], 1), target)
    return total


def hyperbolic(u: Tensor, slots: int, temperature: float = 0.2, curvature: float = 0.1, clip: float = 2.3) -> Tensor:
    """`u` (K·N, d), not normalized, slot by slot."""
    x = to_ball(u, curvature, clip)
    return pairwise(-distances(x, x, curvature), slots, temperature)


def spherical(z: Tensor, slots: int, temperature: float = 0.1) -> Tensor:
    """The same on unit rows with cosines."""
    return pairwise(z @ z.t(), slots, temperature)
