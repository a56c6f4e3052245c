"""Contrastive: positives pulled together, negatives pushed beyond a margin."""

from __future__ import annotations

from typing import Any

from lookalike.losses.base import PairLoss


class Contrastive(PairLoss):
    """Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, on cosine similarity.

    mean over positive pairs of [pos − s]₊ + mean over negative pairs of [s − neg]₊, means over the
    pairs above zero. `mine` keeps only pairs that a pair-margin miner finds hard: positives below
    `mine_pos` and negatives above `mine_neg` in cosine.

        >>> Contrastive(positive=1.0, negative=0.5)(embeddings, labels)   # (n, d), (n,) → scalar
    """

    def __init__(
        self,
        positive: float = 1.0,
        negative: float = 0.5,
        *,
        mine: bool = False,
        mine_pos: float = 0.9,
        mine_neg: float = 0.5,
    ) -> None:
        from pytorch_metric_learning.distances import CosineSimilarity
        from pytorch_metric_learning.losses import ContrastiveLoss
        from pytorch_metric_learning.miners import PairMarginMiner

        miner: Any = None
        if mine:
            miner = PairMarginMiner(pos_margin=mine_pos, neg_margin=mine_neg, distance=CosineSimilarity())
        super().__init__(ContrastiveLoss(positive, negative, distance=CosineSimilarity()), miner)
