"""Contrastive pairs, with a miner or not."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lookalike.core.settings import Settings
from lookalike.losses.pml import ContrastiveLoss
from lookalike.methods.base import LossMethod


class ContrastiveSettings(Settings):
    positive: float = 1.0
    """Positives are pulled up to this cosine."""
    negative: float = 0.5
    """Negatives are pushed below this cosine."""
    mine: bool = False
    """Count only pairs that a pair-margin miner finds hard."""
    mine_pos: float = 0.9
    """The miner keeps positives below this cosine."""
    mine_neg: float = 0.5
    """The miner keeps negatives above this cosine."""


class Contrastive(LossMethod):
    name = "contrastive"
    Settings = ContrastiveSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: ContrastiveSettings

    def make_loss(self) -> nn.Module:
        s = self.settings
        return ContrastiveLoss(
            s.positive, s.negative, mine=s.mine, miner_pos_margin=s.mine_pos, miner_neg_margin=s.mine_neg
        )
