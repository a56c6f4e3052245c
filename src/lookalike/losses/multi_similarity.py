"""Multi-Similarity: pairs weighted by their own and by relative similarity."""

from __future__ import annotations

from typing import Any

from lookalike.losses.base import PairLoss


class MultiSimilarity(PairLoss):
    """Wang et al., "Multi-Similarity Loss with General Pair Weighting", CVPR 2019 (arXiv 1904.06627), eq. 15.

    (1/α) log(1 + Σ_pos exp(−α(s − λ))) + (1/β) log(1 + Σ_neg exp(β(s − λ))), averaged over the anchors.
    `epsilon` switches the paper's miner on (pairs within ε of the hardest of the other kind).

        >>> MultiSimilarity(alpha=2, beta=50, base=0.5)(embeddings, labels)   # (n, d), (n,) → scalar
    """

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = None) -> None:
        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        miner: Any = MultiSimilarityMiner(epsilon=epsilon) if epsilon is not None else None
        super().__init__(MultiSimilarityLoss(alpha=alpha, beta=beta, base=base), miner)
