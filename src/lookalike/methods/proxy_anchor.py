"""Proxy-Anchor: learned class vectors, dropped after training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat
from torch import nn

from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses.pml import ProxyAnchorLoss
from lookalike.methods.base import LossMethod


class ProxyAnchorSettings(Settings):
    margin: float = 0.1
    """δ."""
    alpha: float = 32.0
    """Scale of the exponents."""
    std: PositiveFloat | None = None
    """Deviation of the proxies at the start; null: √(2/classes). The longer they are, the slower they turn."""


class ProxyAnchor(LossMethod):
    name = "proxy_anchor"
    Settings = ProxyAnchorSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-3}}
    settings: ProxyAnchorSettings

    def make_loss(self) -> nn.Module:
        c, s = self.context, self.settings
        return ProxyAnchorLoss(c.classes, c.dim, s.margin, s.alpha, s.std, torch_rng(c.seed, "proxies"))
