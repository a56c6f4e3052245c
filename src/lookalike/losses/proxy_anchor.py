"""Proxy-Anchor: one learned vector a class, against which the batch is compared."""

from __future__ import annotations

import math

import torch

from lookalike.losses.base import PairLoss, start_proxies


class ProxyAnchor(PairLoss):
    """Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020 (arXiv 2003.13911), eq. 4.

    mean over the proxies in the batch of log(1 + Σ_pos exp(−α(s − δ))) + mean over all proxies of
    log(1 + Σ_neg exp(α(s + δ))). The proxies are parameters; the paper trains them at a higher rate. They start normal
    with deviation `std`, by default the paper's √(2/classes).

        >>> ProxyAnchor(classes=100, dim=512)(embeddings, labels)   # (n, 512), (n,) in 0..99 → scalar
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        std: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        from pytorch_metric_learning.losses import ProxyAnchorLoss

        super().__init__(ProxyAnchorLoss(classes, dim, margin=margin, alpha=alpha))
        start_proxies(self.inner.proxies, std or math.sqrt(2 / classes), generator)
