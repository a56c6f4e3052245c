"""Proxy-Anchor: learned class vectors, dropped after training."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses.proxy_anchor import ProxyAnchor as Loss
from lookalike.methods.base import LossMethod


class ProxyAnchorSettings(Settings):
    margin: float = 0.1
    """δ."""
    alpha: float = 32.0
    """Scale of the exponents."""


class ProxyAnchor(LossMethod):
    name = "proxy_anchor"
    Settings = ProxyAnchorSettings
    suits: ClassVar = {"optimiser": {"rate": 1e-3}}
    settings: ProxyAnchorSettings

    def make_loss(self) -> nn.Module:
        c = self.context
        return Loss(c.classes, c.dim, self.settings.margin, self.settings.alpha, torch_rng(c.seed, "proxies"))
