"""Margin with distance-weighted negatives, and R-Margin."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from lookalike.core.settings import Settings
from lookalike.losses.margin import MarginLoss
from lookalike.methods.base import Batch, Context, Method
from lookalike.methods.stream import Stream


class MarginSettings(Settings):
    gap: float = 0.2
    """m: how far from the boundary both kinds of pairs should be, in Euclidean distance of unit vectors."""
    beta: float = 1.2
    """Where the boundary between near and far starts; it is learned for every class."""


class Margin(Method):
    name = "margin"
    Settings = MarginSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}}
    settings: MarginSettings

    def __init__(self, settings: MarginSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.stream = Stream(context.seed)
        self.criterion = self.make_loss()

    def make_loss(self) -> MarginLoss:
        return MarginLoss(self.context.classes, self.settings.beta, self.settings.gap)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        return self.margin(embeddings["z"], batch)

    def margin(self, z: Tensor, batch: Batch) -> Tensor:
        noise = self.stream.pairs(3, batch.ids, self.context.step)
        value: Tensor = self.criterion(z, batch.labels, noise)
        return value


class RMarginSettings(MarginSettings):
    beta: float = 0.6
    """Where the boundary between near and far starts; it is learned for every class."""
    apart: float = Field(default=0.4, ge=0.0, le=1.0)
    """Probability that an anchor is pushed away from its own class instead."""


class RMargin(Margin):
    """Margin that keeps classes from collapsing: what varies within a class may matter for classes to come."""

    name = "r_margin"
    Settings = RMarginSettings
    settings: RMarginSettings

    def make_loss(self) -> MarginLoss:
        s = self.settings
        return MarginLoss(self.context.classes, s.beta, s.gap, s.apart)
