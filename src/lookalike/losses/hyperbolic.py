"""Pairwise cross-entropy in hyperbolic space (Hyp) and on the sphere (Sph).

Ermolov et al., "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning", CVPR 2022
(arXiv 2203.10833).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-12


def to_poincare_ball(u: Tensor, curvature: float, clip: float) -> Tensor:
    """Clip vectors to length `clip` and map them into the ball of radius 1/√c by the exponential map."""
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp(min=EPS)
    u = u * (clip / length).clamp(max=1.0)
    scaled = (math.sqrt(curvature) * length.clamp(max=clip)).clamp(min=EPS)
    return torch.tanh(scaled) / scaled * u


def hyperbolic_distances(x: Tensor, y: Tensor, curvature: float) -> Tensor:
    """Return 2/√c · artanh(√c‖(−x) ⊕ y‖) of all pairs.

    Uses ‖(−x) ⊕ y‖² = ‖x − y‖²/(1 − 2c⟨x,y⟩ + c²‖x‖²‖y‖²).
    """
    xy, xx, yy = x @ y.t(), x.square().sum(1)[:, None], y.square().sum(1)[None]
    squared = (x[:, None] - y[None]).square().sum(2)
    ratio = curvature * squared / (1 - 2 * curvature * xy + curvature**2 * xx * yy)
    root = ratio.clamp(min=EPS).sqrt().clamp(max=1 - 1e-6)
    return 2 / math.sqrt(curvature) * torch.atanh(root)


def pairwise_cross_entropy(scores: Tensor, images_per_class: int, temperature: float) -> Tensor:
    """Sum the cross-entropies of recognizing an image's class over ordered pairs of slots i ≠ j.

    `scores` (K·N, K·N) are similarities; row s·N + n is image s of class n, of K images per class.
    """
    classes = len(scores) // images_per_class
    own = torch.eye(classes, dtype=torch.bool, device=scores.device)
    target = torch.arange(classes, device=scores.device)
    blocks = (scores / temperature).view(images_per_class, classes, images_per_class, classes).transpose(1, 2)
    total = scores.sum() * 0
    for i in range(images_per_class):
        within = blocks[i, i].masked_fill(own, -math.inf)
        for j in range(images_per_class):
            if i != j:
                total = total + functional.cross_entropy(torch.cat([blocks[i, j], within], 1), target)
    return total


def hyperbolic_loss(
    u: Tensor, images_per_class: int, temperature: float = 0.2, curvature: float = 0.1, clip: float = 2.3
) -> Tensor:
    """Return the pairwise cross-entropy with hyperbolic distances (Hyp).

    Args:
        u: Embeddings, not normalized; row s·N + n is image s of class n.
        images_per_class: K.
        temperature: Temperature of the softmax.
        curvature: Curvature of the space (c).
        clip: Largest length of a vector before it is mapped into the ball.

    Shape:
        - u: ``(K·N, d)``.

    References:
        Ermolov et al., CVPR 2022, section 3.

    Example:
        >>> hyperbolic_loss(torch.randn(6, 8), images_per_class=2).ndim
        0
    """
    x = to_poincare_ball(u, curvature, clip)
    return pairwise_cross_entropy(-hyperbolic_distances(x, x, curvature), images_per_class, temperature)


def spherical_loss(z: Tensor, images_per_class: int, temperature: float = 0.1) -> Tensor:
    """Return the pairwise cross-entropy with cosines (Sph).

    Args:
        z: Unit embeddings; row s·N + n is image s of class n.
        images_per_class: K.
        temperature: Temperature of the softmax.

    Shape:
        - z: ``(K·N, d)``.

    References:
        Ermolov et al., CVPR 2022, section 3, its spherical baseline.

    Example:
        >>> spherical_loss(torch.nn.functional.normalize(torch.randn(6, 8), dim=1), images_per_class=2).ndim
        0
    """
    return pairwise_cross_entropy(z @ z.t(), images_per_class, temperature)
