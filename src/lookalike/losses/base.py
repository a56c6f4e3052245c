"""What the losses share: how proxies start, and the call with or without a miner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PairLoss(nn.Module):
    """A loss of pytorch-metric-learning, with a miner in front of it or not."""

    def __init__(self, loss: Any, miner: Any = None) -> None:
        super().__init__()
        self.inner = loss
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """`embeddings` (n, d), `labels` (n,) integers; a scalar."""
        if self.miner is None:
            return self.inner(embeddings, labels)
        return self.inner(embeddings, labels, self.miner(embeddings, labels))


def start_proxies(parameter: nn.Parameter, std: float, generator: torch.Generator | None) -> None:
    """Draw proxies anew, so that they come from a stream of their own and not from the global one."""
    with torch.no_grad():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.copy_(std * drawn)
