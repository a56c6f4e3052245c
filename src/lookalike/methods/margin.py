"""Margin loss with distance-weighted negatives, and R-Margin.

The formulas are in :mod:`lookalike.losses.margin`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from lookalike.core.settings import Settings
from lookalike.losses.margin import MarginLoss
from lookalike.methods._utils import RandomStream
from lookalike.methods.base import Batch, Context, Method


class MarginSettings(Settings):
    """Settings of the margin loss."""

    margin: float = 0.2
    """Distance m that both kinds of pairs should keep from the boundary, Euclidean of unit vectors."""
    beta: float = 1.2
    """Initial boundary between positive and negative distances, learned for every class."""


class Margin(Method):
    """Margin loss with a learned boundary per class and distance-weighted negative sampling.

    References:
        Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Example:
        >>> la.train(data="photos", method="margin", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "margin"
    Settings = MarginSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}}
    settings: MarginSettings

    def __init__(self, settings: MarginSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.stream = RandomStream(context.seed)
        self.criterion = self.make_loss()

    def make_loss(self) -> MarginLoss:
        """Create the loss."""
        return MarginLoss(self.context.classes, self.settings.beta, self.settings.margin)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        return self.margin_loss(embeddings["z"], batch)

    def margin_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Return the margin loss of embeddings (n, d)."""
        return self.criterion(z, batch.labels, self.stream.pairs(3, batch.ids, self.context.step))


class RMarginSettings(MarginSettings):
    """Settings of R-Margin."""

    beta: float = 0.6
    """Initial boundary between positive and negative distances, learned for every class."""
    switch_probability: float = Field(default=0.4, ge=0.0, le=1.0)
    """Probability that an anchor is pushed away from its own class."""


class RMargin(Margin):
    """Margin regularized against collapsing classes: variation within a class may matter for unseen classes.

    References:
        Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning", ICML 2020.

    Example:
        >>> la.train(data="photos", method="r_margin", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "r_margin"
    Settings = RMarginSettings
    settings: RMarginSettings

    def make_loss(self) -> MarginLoss:
        s = self.settings
        return MarginLoss(self.context.classes, s.beta, s.margin, s.switch_probability)
