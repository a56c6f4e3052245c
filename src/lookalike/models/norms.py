"""Normalization layers behind the head (appendix A of Ajanthan et al., "Adaptive Cross Batch Normalization").

    linear layer → length one → norm layer → length one

In training the layer sees the joint batch of all processes and micro-batches: the loop applies it to the
gathered embeddings, not to each process's part (docs/decisions/0102).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core.errors import choose

NAMES = ("none", "bn", "mbn", "ln")


def make_norm(name: str, dim: int, *, reference: int | None = None) -> nn.Module:
    """The layer of that name for rows of `dim` numbers; `reference` is m₀ of momentum batch-norm."""
    choose(name, NAMES, "a norm layer")
    if name == "bn":
        return nn.BatchNorm1d(dim)
    if name == "mbn":
        return MomentumBatchNorm(dim, reference=reference)
    return nn.LayerNorm(dim) if name == "ln" else nn.Identity()


def name_of(norm: nn.Module) -> str:
    """What `make_norm` would have to be called with."""
    if isinstance(norm, MomentumBatchNorm):
        return "mbn"
    return "bn" if isinstance(norm, nn.BatchNorm1d) else "ln" if isinstance(norm, nn.LayerNorm) else "none"


def decay(epoch: int, epochs: int, batch: int, reference: int) -> float:
    """λ(t) = ρ^(T/(T−1)·max(T−t, 0)) − ρ^T with ρ = min(B/m₀, 1)^(1/T): from 0 in epoch 1 to 1 − B/m₀ in epoch T."""
    if epochs < 2:
        return 0.0
    rho = min(batch / reference, 1.0) ** (1 / epochs)
    return float(rho ** (epochs / (epochs - 1) * max(epochs - epoch, 0)) - rho**epochs)


class MomentumBatchNorm(nn.BatchNorm1d):
    """Momentum batch normalization (Yong et al., ECCV 2020): training, too, uses moments averaged over batches.

    The average's decay λ grows over the epochs; a small batch then has about the noise of one of m₀ rows.
    The gradient goes through the present batch's moments. m₀ is twice the batch unless given.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, dim: int, *, reference: int | None = None, start: float = 0.9) -> None:
        super().__init__(dim)
        self.reference, self.start = reference, start
        self.epoch, self.epochs = 1, 1
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def at_epoch(self, epoch: int, epochs: int) -> None:
        """Told by the loop before every step: epoch 1 … T."""
        self.epoch, self.epochs = epoch, epochs

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training:
            return super().forward(rows)
        reference = self.reference or 2 * len(rows)
        share = decay(self.epoch, self.epochs, len(rows), reference)
        mean = share * self.mean + (1 - share) * rows.mean(0)
        var = share * self.var + (1 - share) * rows.var(0, correction=0)
        with torch.no_grad():
            self.mean.copy_(mean)
            self.var.copy_(var)
            kept = self.start ** (len(rows) / reference)  # τ = τ₀^(B/m₀)
            assert self.running_mean is not None and self.running_var is not None
            self.running_mean.lerp_(mean, 1 - kept)
            self.running_var.lerp_(var, 1 - kept)
        return (rows - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
