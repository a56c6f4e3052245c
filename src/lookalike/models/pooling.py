"""Pooling: from a feature map or tokens to one vector per image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError, choose

NAMES = ("avg", "max", "avgmax", "gem", "cls", "own")


def gem(x: Tensor, dims: tuple[int, ...], power: float = 3.0, floor: float = 1e-6) -> Tensor:
    """Generalized-mean pooling: average pooling for ``power`` 1, max pooling in the limit.

    Args:
        x: Feature map or tokens.
        dims: The dimensions to pool over.
        power: The exponent p.
        floor: Smaller values are raised to it.

    Returns:
        The pooled features.

    References:
        Radenović et al., "Fine-tuning CNN Image Retrieval with No Human Annotation", eq. 3.

    Example:
        >>> gem(torch.tensor([[1.0, 3.0]]), (1,), power=1.0)
        tensor([2.])
    """
    return x.clamp(min=floor).pow(power).mean(dims).pow(1.0 / power)


class Pooling(nn.Module):
    """Pools feature maps or tokens to one vector per image; vectors pass unchanged.

    Args:
        name: ``"avg"``, ``"max"``, ``"avgmax"`` (mean of both), ``"gem"``, ``"cls"`` (the class token), or ``"own"``
            to leave pooling to the backbone.
        prefix: Number of tokens before the patch tokens (class and register tokens).
        channels_last: Whether maps have their channels last.

    Shape:
        - x: ``(N, C, H, W)``, ``(N, H, W, C)`` with ``channels_last``, ``(N, L, C)`` tokens, or ``(N, C)``.
        - output: ``(N, C)``.

    Example:
        >>> Pooling("avg")(torch.ones(2, 8, 3, 3)).shape
        torch.Size([2, 8])
    """

    def __init__(self, name: str, *, prefix: int = 0, channels_last: bool = False) -> None:
        super().__init__()
        self.name = choose(name, NAMES, "a pooling")
        self.prefix, self.channels_last = prefix, channels_last
        if name == "cls" and not prefix:
            raise LookalikeError("This backbone has no class token for pooling `cls`; use `gem` or `avg`.")

    def forward(self, x: Tensor) -> Tensor:
        if self.name == "own" or x.ndim == 2:
            return x
        if self.name == "cls":
            return x[:, 0]
        dims: tuple[int, ...] = (1,)
        if x.ndim == 3:
            x = x[:, self.prefix :]
        else:
            dims = (1, 2) if self.channels_last else (2, 3)
        if self.name == "gem":
            return gem(x, dims)
        if self.name == "avgmax":
            return 0.5 * (x.mean(dims) + x.amax(dims))
        return x.mean(dims) if self.name == "avg" else x.amax(dims)

    def extra_repr(self) -> str:
        return self.name


def unit(x: Tensor) -> Tensor:
    """Scale rows to unit length; a row of zeros stays zero instead of becoming NaN."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-12)
