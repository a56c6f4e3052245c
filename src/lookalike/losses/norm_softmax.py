"""Normalized softmax: classification by cosine to one learned vector a class."""

from __future__ import annotations

import torch

from lookalike.losses.base import PairLoss, start_proxies


class NormSoftmax(PairLoss):
    """Zhai & Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019 (arXiv 1811.12649), eq. 3.

    Cross-entropy of the cosines to the class vectors, divided by the temperature σ.

        >>> NormSoftmax(classes=100, dim=512)(embeddings, labels)   # (n, 512), (n,) in 0..99 → scalar
    """

    def __init__(
        self, classes: int, dim: int, temperature: float = 0.05, generator: torch.Generator | None = None
    ) -> None:
        from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

        super().__init__(NormalizedSoftmaxLoss(classes, dim, temperature=temperature))
        start_proxies(self.inner.W, 1.0, generator)
