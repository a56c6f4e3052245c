"""Triplets, mined in the batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from lookalike.core.settings import Settings
from lookalike.losses.pml import TripletLoss
from lookalike.methods.base import LossMethod


class TripletSettings(Settings):
    margin: float = 0.2
    """How much nearer the own class must be, in Euclidean distance of unit vectors."""
    miner: Literal["all", "semihard", "hard", "batch_hard"] = "semihard"
    """Which triplets of the batch count."""


class Triplet(LossMethod):
    name = "triplet"
    Settings = TripletSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}}
    settings: TripletSettings

    def make_loss(self) -> nn.Module:
        return TripletLoss(self.settings.margin, self.settings.miner)
