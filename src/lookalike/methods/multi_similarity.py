"""Multi-Similarity."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings
from lookalike.losses.pml import ActiveMultiSimilarityLoss, MultiSimilarityLoss
from lookalike.methods.base import LossMethod


class MultiSimilaritySettings(Settings):
    alpha: float = 2.0
    """Weight of the positive pairs' exponent."""
    beta: float = 50.0
    """Weight of the negative pairs' exponent."""
    base: float = 0.5
    """λ: similarities are compared with this."""
    epsilon: float | None = None
    """Margin of the paper's miner; null: all pairs count."""
    average: Literal["all", "active"] = "all"
    """Over which anchors: all of them, or those that the miner left a pair of the kind."""


class MultiSimilarity(LossMethod):
    """The steadiest of the losses here for a head on fixed features."""

    name = "ms"
    Settings = MultiSimilaritySettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: MultiSimilaritySettings

    def make_loss(self) -> nn.Module:
        s = self.settings
        if s.average == "active":
            if s.epsilon is None:
                raise LookalikeError("`method.average` is active, which needs the miner: set `method.epsilon`, as 0.1.")
            return ActiveMultiSimilarityLoss(s.alpha, s.beta, s.base, s.epsilon)
        return MultiSimilarityLoss(s.alpha, s.beta, s.base, s.epsilon)
