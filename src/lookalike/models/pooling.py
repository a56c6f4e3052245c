"""From a feature map or tokens to one vector an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError, choose

# `own` leaves pooling to the backbone, as its authors trained it.
NAMES = ("avg", "max", "avgmax", "gem", "cls", "own")


def gem(x: Tensor, dims: tuple[int, ...], power: float = 3.0, floor: float = 1e-6) -> Tensor:
    """Generalized mean: p = 1 is the average, p towards infinity the maximum."""
    return x.clamp(min=floor).pow(power).mean(dims).pow(1.0 / power)


class Pooling(nn.Module):
    """Pools N×C×H×W maps, N×H×W×C maps (`channels_last`) and N×L×C tokens; vectors pass untouched."""

    def __init__(self, name: str, *, prefix: int = 0, channels_last: bool = False) -> None:
        super().__init__()
        self.name = choose(name, NAMES, "a pooling")
        self.prefix, self.channels_last = prefix, channels_last
        if name == "cls" and not prefix:
            raise LookalikeError("This backbone has no class token, so pooling `cls` cannot work; take `gem` or `avg`.")

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
        if self.name == "avg":
            return x.mean(dims)
        if self.name == "max":
            return x.amax(dims)
        if self.name == "avgmax":
            return 0.5 * (x.mean(dims) + x.amax(dims))
        return gem(x, dims)

    def extra_repr(self) -> str:
        return self.name


def unit(x: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays zero instead of becoming NaN."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-12)
