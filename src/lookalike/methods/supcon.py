"""SupCon: supervised contrastive learning on the batch."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lookalike.core.settings import Settings
from lookalike.losses.pml import SupConLoss
from lookalike.methods.base import LossMethod


class SupConSettings(Settings):
    temperature: float = 0.1
    """τ: lower values look at the hardest pairs only."""


class SupCon(LossMethod):
    """Good when the backbone moves; on fixed features it overfits the training classes early."""

    name = "supcon"
    Settings = SupConSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: SupConSettings

    def make_loss(self) -> nn.Module:
        return SupConLoss(self.settings.temperature)
