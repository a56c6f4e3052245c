"""ArcFace: classification by angle, the own class's angle made wider by a margin."""

from __future__ import annotations

import math

import torch

from lookalike.losses.base import PairLoss


class ArcFace(PairLoss):
    """Deng et al., "ArcFace: Additive Angular Margin Loss", CVPR 2019 (arXiv 1801.07698), eq. 3.

    Cross-entropy on scale·cos θ, with cos(θ + margin) for the own class; `margin` in radians.

        >>> ArcFace(classes=100, dim=512)(embeddings, labels)   # (n, 512), (n,) in 0..99 → scalar
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        scale: float = 16.0,
        margin: float = 0.5,
        generator: torch.Generator | None = None,
    ) -> None:
        from pytorch_metric_learning.losses import ArcFaceLoss

        super().__init__(ArcFaceLoss(classes, dim, margin=math.degrees(margin), scale=scale))
        weight = self.inner.W
        with torch.no_grad():
            drawn = torch.rand(weight.shape, generator=generator, dtype=torch.float32)
            weight.copy_((2 * drawn - 1) / math.sqrt(dim))
