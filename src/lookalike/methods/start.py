"""Layers that start from a stream of their own, not from the global one."""

from __future__ import annotations

import torch
from torch import nn


def linear(wide: int, narrow: int, generator: torch.Generator) -> nn.Linear:
    """As `nn.Linear` starts by default."""
    layer = nn.Linear(wide, narrow)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * wide**-0.5)
    return layer
