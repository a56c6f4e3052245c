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


def multi_similarity_of_active(
    embeddings: Tensor, labels: Tensor, alpha: float = 2.0, beta: float = 40.0, base: float = 0.5, epsilon: float = 0.1
) -> Tensor:
    """The same with the miner, each term averaged over the anchors that have a pair of its kind left, as the shift
    curve's authors have it (the library averages over all anchors)."""
    s = embeddings @ embeddings.T
    same, other = same_class(labels), labels[:, None] != labels[None, :]
    hardest_other = s.masked_fill(~other, -2).amax(1, keepdim=True)
    hardest_own = s.masked_fill(~same, 2).amin(1, keepdim=True)
    near, far = same & (s - epsilon < hardest_other), other & (s + epsilon > hardest_own)

    def term(kept: Tensor, scale: float) -> Tensor:
        rows = kept.any(1)
        sums = (scale * (s - base)).exp().masked_fill(~kept, 0).sum(1)
        return (sums.log1p() * rows).sum() / (abs(scale) * rows.sum().clamp(min=1))

    return term(near, -alpha) + term(far, beta)
