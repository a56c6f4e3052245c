"""Projection heads and the normalization layers behind them.

    pooled features → unit length → linear head → unit length → norm layer → unit length

In training a norm layer sees the joint batch of all processes and micro-batches: the training loop applies it to the
gathered embeddings (docs/design/training.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError, choose
from lookalike.models.pooling import unit

NORM_NAMES = ("none", "bn", "mbn", "ln")


def pca_head(features: Tensor, dim: int) -> nn.Linear:
    """Make a linear head from the principal directions of features.

    The rows of the weight are the ``dim`` leading eigenvectors of XᵀX, where X holds the features at unit length:
    not centered, not whitened, bias 0.

    Args:
        features: Pooled features.
        dim: Output dimension.

    Returns:
        The head; the same features always give the same head.

    Shape:
        - features: ``(N, C)``, float64.

    Example:
        >>> pca_head(torch.eye(4, dtype=torch.float64), 2).weight.shape
        torch.Size([2, 4])
    """
    features = unit(features)
    _, vectors = torch.linalg.eigh(features.T @ features)
    basis = vectors.flip(1)[:, :dim]
    # The sign of an eigenvector is arbitrary; fix it by the largest entry.
    peak = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    weight = (basis * peak.sign()).T
    return _linear(weight, torch.zeros(dim, dtype=weight.dtype))


def random_head(in_features: int, dim: int, seed: int = 0) -> nn.Linear:
    """Make a head with the default initialization of ``nn.Linear``, from a seed of its own."""
    bound = in_features**-0.5
    generator = seeds.torch_rng(seed, "head")
    weight = (torch.rand(dim, in_features, generator=generator) * 2 - 1) * bound
    return _linear(weight, (torch.rand(dim, generator=generator) * 2 - 1) * bound)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    head = nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": weight, "bias": bias})
    return head


class BlockLinear(nn.Linear):
    """Several linear heads side by side: equal blocks of the output, each of unit length.

    Shape:
        - x: ``(N, in_features)``.
        - output: ``(N, out_features)``.

    Example:
        >>> head = BlockLinear.from_linear(torch.nn.Linear(8, 6), blocks=3)
        >>> head(torch.randn(2, 8)).square().sum(1).round().tolist()  # three blocks of length one
        [3.0, 3.0]
    """

    blocks: int = 1

    @classmethod
    def from_linear(cls, head: nn.Module, blocks: int) -> BlockLinear:
        """Deal the outputs of a linear head out to blocks in turn.

        Of a head made of leading principal directions, each block thus receives some of the first.
        """
        if isinstance(head, cls) and head.blocks == blocks:
            return head
        assert isinstance(head, nn.Linear)
        if head.out_features % blocks:
            raise LookalikeError(f"A head of {head.out_features} dimensions cannot be cut into {blocks} equal blocks.")
        out = cls(head.in_features, head.out_features, device=head.weight.device, dtype=head.weight.dtype)
        out.blocks = blocks
        order = torch.arange(head.out_features, device=head.weight.device).view(-1, blocks).T.flatten()
        out.load_state_dict({name: value[order] for name, value in head.state_dict().items()})
        return out

    def forward(self, x: Tensor) -> Tensor:
        return unit(super().forward(x).unflatten(1, (self.blocks, -1))).flatten(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, blocks={self.blocks}"


def make_norm(name: str, dim: int, *, reference_batch: int | None = None) -> nn.Module:
    """Create a normalization layer for embeddings.

    Args:
        name: ``"none"``, ``"bn"`` (batch norm), ``"mbn"`` (momentum batch norm) or ``"ln"`` (layer norm).
        dim: Embedding dimension.
        reference_batch: m₀ of momentum batch norm; twice the batch size by default.

    Returns:
        The layer.

    References:
        Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning", appendix A.

    Example:
        >>> norm_name(make_norm("ln", 8))
        'ln'
    """
    if choose(name, NORM_NAMES, "a norm layer") == "mbn":
        return MomentumBatchNorm(dim, reference_batch=reference_batch)
    return {"bn": nn.BatchNorm1d, "ln": nn.LayerNorm, "none": nn.Identity}[name](dim)


def norm_name(norm: nn.Module) -> str:
    """The name under which ``make_norm`` creates such a layer."""
    if isinstance(norm, MomentumBatchNorm):
        return "mbn"
    return "bn" if isinstance(norm, nn.BatchNorm1d) else "ln" if isinstance(norm, nn.LayerNorm) else "none"


def momentum_decay(epoch: int, epochs: int, batch: int, reference_batch: int) -> float:
    """The decay λ(t) = ρ^(T/(T−1)·max(T−t, 0)) − ρ^T with ρ = min(B/m₀, 1)^(1/T).

    It grows from 0 in epoch t = 1 to 1 − B/m₀ in epoch T, for batches of B rows and the reference batch m₀.
    """
    if epochs < 2:
        return 0.0
    rho = min(batch / reference_batch, 1.0) ** (1 / epochs)
    return float(rho ** (epochs / (epochs - 1) * max(epochs - epoch, 0)) - rho**epochs)


class MomentumBatchNorm(nn.BatchNorm1d):
    """Momentum batch normalization: in training, too, it uses moments averaged over batches.

    The decay λ of the average grows over the epochs, so that a small batch has about the noise of one of m₀ rows. The
    gradient goes through the moments of the present batch.

    Args:
        dim: Embedding dimension.
        reference_batch: m₀; twice the batch size by default.
        momentum_start: τ₀ of the running moments used at inference.

    Shape:
        - embeddings: ``(N, dim)``.
        - output: ``(N, dim)``.

    References:
        Yong et al., "Momentum Batch Normalization for Deep Learning with Small Batch Size", ECCV 2020.

    Example:
        >>> MomentumBatchNorm(4)(torch.randn(16, 4)).shape
        torch.Size([16, 4])
    """

    mean: Tensor
    var: Tensor

    def __init__(self, dim: int, *, reference_batch: int | None = None, momentum_start: float = 0.9) -> None:
        super().__init__(dim)
        self.reference_batch, self.momentum_start = reference_batch, momentum_start
        self.epoch, self.epochs = 1, 1
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Set t and T; the training loop calls it before every step."""
        self.epoch, self.epochs = epoch, epochs

    def forward(self, embeddings: Tensor) -> Tensor:
        if not self.training:
            return super().forward(embeddings)
        reference_batch = self.reference_batch or 2 * len(embeddings)
        decay = momentum_decay(self.epoch, self.epochs, len(embeddings), reference_batch)
        mean = decay * self.mean + (1 - decay) * embeddings.mean(0)
        var = decay * self.var + (1 - decay) * embeddings.var(0, correction=0)
        with torch.no_grad():
            self.mean.copy_(mean)
            self.var.copy_(var)
            momentum = self.momentum_start ** (len(embeddings) / reference_batch)  # τ = τ₀^(B/m₀)
            assert self.running_mean is not None and self.running_var is not None
            self.running_mean.lerp_(mean, 1 - momentum)
            self.running_var.lerp_(var, 1 - momentum)
        return (embeddings - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
