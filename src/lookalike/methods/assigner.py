"""The head of CARP and of DINO: three layers to a few numbers, and rows to compare them with."""

from __future__ import annotations

import math

import torch
from torch import nn


class Assigner(nn.Module):
    """Three layers, no norm and no activation behind the last: the length of z is the temperature."""

    def __init__(self, wide: int, hidden: int, dim: int, count: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [(wide, hidden), (hidden, hidden), (hidden, dim)]
        layers: list[nn.Module] = []
        for number, (n, m) in enumerate(sizes):
            linear = nn.Linear(n, m)
            nn.init.trunc_normal_(linear.weight, std=0.02, generator=generator)
            nn.init.zeros_(linear.bias)
            layers += [linear] if number == 2 else [linear, nn.BatchNorm1d(m), nn.GELU()]
        self.projection = nn.Sequential(*layers)
        self.prototypes = nn.Parameter((2 * torch.rand(count, dim, generator=generator) - 1) / math.sqrt(dim))
