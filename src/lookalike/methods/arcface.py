"""ArcFace: classify by angle; the class vectors are dropped after training."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses.pml import ArcFaceLoss
from lookalike.methods.base import LossMethod


class ArcFaceSettings(Settings):
    scale: float = 16.0
    """What the cosines are multiplied by."""
    margin: float = 0.5
    """Added to the angle to the own class, in radians."""


class ArcFace(LossMethod):
    name = "arcface"
    Settings = ArcFaceSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}}
    settings: ArcFaceSettings

    def make_loss(self) -> nn.Module:
        c = self.context
        return ArcFaceLoss(c.classes, c.dim, self.settings.scale, self.settings.margin, torch_rng(c.seed, "proxies"))
