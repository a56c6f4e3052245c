"""Multi-Similarity: pairs weighted by their own and by relative similarity."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lookalike.losses.base import PairLoss
from lookalike.losses.margin import same_class


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


class ActiveMultiSimilarity(PairLoss):
    """The same with the miner, each term averaged over the anchors that have a pair of its kind left: what the authors
    of the shift curve train with. The library averages over all anchors.

        >>> ActiveMultiSimilarity(alpha=2, beta=40, base=0.5, epsilon=0.1)(embeddings, labels)   # (n, d), (n,) → scalar
    """

    def __init__(self, alpha: float = 2.0, beta: float = 40.0, base: float = 0.5, epsilon: float = 0.1) -> None:
        super().__init__(None)
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        s = embeddings @ embeddings.T
        same, other = same_class(labels), labels[:, None] != labels[None, :]
        nearest = s.detach().masked_fill(~other, -2).amax(1, keepdim=True)
        farthest = s.detach().masked_fill(~same, 2).amin(1, keepdim=True)

        def term(kept: Tensor, scale: float) -> Tensor:
            rows = kept.any(1)
            sums = (scale * (s - self.base)).exp().masked_fill(~kept, 0).sum(1)
            return sums.log1p().sum() / (abs(scale) * rows.sum().clamp(min=1))

        near, far = same & (s - self.epsilon < nearest), other & (s + self.epsilon > farthest)
        return term(near, -self.alpha) + term(far, self.beta)
