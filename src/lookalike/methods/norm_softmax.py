"""Normalized softmax: classify by cosine; the class vectors are dropped after training."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses.pml import NormSoftmaxLoss
from lookalike.methods.base import LossMethod


class NormSoftmaxSettings(Settings):
    temperature: float = 0.05
    """σ."""


class NormSoftmax(LossMethod):
    name = "norm_softmax"
    Settings = NormSoftmaxSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-3}}
    settings: NormSoftmaxSettings

    def make_loss(self) -> nn.Module:
        c = self.context
        return NormSoftmaxLoss(c.classes, c.dim, self.settings.temperature, torch_rng(c.seed, "proxies"))
