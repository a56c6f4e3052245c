"""Pair, proxy and classification losses computed by pytorch-metric-learning (PML).

PML is imported when the first loss is created. Similarities are cosines.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from lookalike.core.errors import choose
from lookalike.losses.margin import same_class


def _pml(module: str) -> Any:
    """Import a module of pytorch-metric-learning, when the first loss is created."""
    return import_module(f"pytorch_metric_learning.{module}")


class PMLLoss(nn.Module):
    """A loss of pytorch-metric-learning, optionally with a miner in front of it.

    Args:
        loss: A loss of pytorch-metric-learning.
        miner: A miner of pytorch-metric-learning, or None to use all pairs.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Musgrave et al., "PyTorch Metric Learning", 2020 (arXiv 2008.09164).

    Example:
        >>> from pytorch_metric_learning.losses import CircleLoss
        >>> PMLLoss(CircleLoss())(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(self, loss: Any, miner: Any = None) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.loss(embeddings, labels, *([] if self.miner is None else [self.miner(embeddings, labels)]))


class SupConLoss(PMLLoss):
    """Supervised contrastive loss.

    For an anchor with positives P and all other images A: −mean over p ∈ P of (s_p/τ − log Σ_{a∈A} exp(s_a/τ)),
    averaged over the anchors with a positive.

    Args:
        temperature: Temperature τ; lower values emphasize the hardest pairs.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020 (arXiv 2004.11362), eq. 2 (L_out).

    Example:
        >>> SupConLoss(temperature=0.1)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__(_pml("losses").SupConLoss(temperature=temperature))


class MultiSimilarityLoss(PMLLoss):
    """Multi-Similarity loss, averaged over the anchors.

    (1/α) log(1 + Σ_pos exp(−α(s − λ))) + (1/β) log(1 + Σ_neg exp(β(s − λ))).

    Args:
        alpha: Scale of the positive pairs (α).
        beta: Scale of the negative pairs (β).
        base: Similarity threshold (λ).
        epsilon: Margin of the paper's miner, which keeps pairs within ε of the hardest pair of the other kind; None
            uses all pairs.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Wang et al., "Multi-Similarity Loss with General Pair Weighting", CVPR 2019 (arXiv 1904.06627), eq. 15.

    Example:
        >>> MultiSimilarityLoss(epsilon=0.1)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = None) -> None:
        miner = _pml("miners").MultiSimilarityMiner(epsilon=epsilon) if epsilon is not None else None
        super().__init__(_pml("losses").MultiSimilarityLoss(alpha=alpha, beta=beta, base=base), miner)


class ActiveMultiSimilarityLoss(nn.Module):
    """Multi-Similarity with its miner, each term averaged over the anchors with a mined pair of its kind.

    :class:`MultiSimilarityLoss` averages over all anchors. Embeddings are of unit length.

    Args:
        alpha: Scale of the positive pairs (α).
        beta: Scale of the negative pairs (β).
        base: Similarity threshold (λ).
        epsilon: Margin of the paper's miner.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Milbich et al., "Characterizing Generalization under Out-Of-Distribution Shifts", NeurIPS 2021 (code).

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
        >>> ActiveMultiSimilarityLoss()(z, torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(self, alpha: float = 2.0, beta: float = 40.0, base: float = 0.5, epsilon: float = 0.1) -> None:
        super().__init__()
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        sim = embeddings @ embeddings.T
        same, different = same_class(labels), labels[:, None] != labels[None, :]
        hardest_negative = sim.detach().masked_fill(~different, -2).amax(1, keepdim=True)
        hardest_positive = sim.detach().masked_fill(~same, 2).amin(1, keepdim=True)

        def term(mask: Tensor, scale: float) -> Tensor:
            sums = (scale * (sim - self.base)).exp().masked_fill(~mask, 0).sum(1)
            return sums.log1p().sum() / (abs(scale) * mask.any(1).sum().clamp(min=1))

        pos_mask = same & (sim - self.epsilon < hardest_negative)
        neg_mask = different & (sim + self.epsilon > hardest_positive)
        return term(pos_mask, -self.alpha) + term(neg_mask, self.beta)


class ContrastiveLoss(PMLLoss):
    """Contrastive loss on cosine similarity.

    Mean over positive pairs of [pos_margin − s]₊ + mean over negative pairs of [s − neg_margin]₊, each over the pairs
    above zero.

    Args:
        pos_margin: Positives are pulled up to this cosine.
        neg_margin: Negatives are pushed below this cosine.
        mine: Use only the pairs kept by a pair-margin miner.
        miner_pos_margin: The miner keeps positives below this cosine.
        miner_neg_margin: The miner keeps negatives above this cosine.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, eq. 4 (with cosines).

    Example:
        >>> ContrastiveLoss(neg_margin=0.5)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(
        self,
        pos_margin: float = 1.0,
        neg_margin: float = 0.5,
        *,
        mine: bool = False,
        miner_pos_margin: float = 0.9,
        miner_neg_margin: float = 0.5,
    ) -> None:
        cosine = _pml("distances").CosineSimilarity
        miner = _pml("miners").PairMarginMiner(miner_pos_margin, miner_neg_margin, distance=cosine()) if mine else None
        super().__init__(_pml("losses").ContrastiveLoss(pos_margin, neg_margin, distance=cosine()), miner)


class TripletLoss(PMLLoss):
    """Triplet margin loss on Euclidean distances of unit vectors, averaged over the triplets above zero.

    Args:
        margin: How much nearer the own class must be: m in [d(a, p) − d(a, n) + m]₊.
        miner: ``"all"`` triplets, ``"semihard"`` or ``"hard"`` ones (FaceNet), or ``"batch_hard"``: one per anchor.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Schroff et al., "FaceNet", CVPR 2015, section 3.1; Hermans et al., 2017 (arXiv 1703.07737), eq. 5 (batch hard).

    Example:
        >>> TripletLoss(margin=0.2, miner="batch_hard")(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(
        self, margin: float = 0.2, miner: Literal["all", "semihard", "hard", "batch_hard"] = "semihard"
    ) -> None:
        choose(miner, ("all", "semihard", "hard", "batch_hard"), "a triplet miner")
        hard = _pml("miners").BatchHardMiner() if miner == "batch_hard" else None
        if miner in ("semihard", "hard"):
            hard = _pml("miners").TripletMarginMiner(margin=margin, type_of_triplets=miner)
        super().__init__(_pml("losses").TripletMarginLoss(margin=margin), hard)


class ProxyAnchorLoss(PMLLoss):
    """Proxy-Anchor loss: one learned proxy per class.

    Mean over the proxies in the batch of log(1 + Σ_pos exp(−α(s − δ))) + mean over all proxies of
    log(1 + Σ_neg exp(α(s + δ))). The proxies are parameters and usually need a higher learning rate.

    Args:
        num_classes: Number of classes.
        embedding_dim: Dimension of the embeddings.
        margin: Margin δ.
        alpha: Scale of the exponents (α).
        std: Standard deviation of the initial proxies; None uses the paper's √(2/num_classes).
        generator: Random generator of the initial proxies.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020 (arXiv 2003.13911), eq. 4.

    Example:
        >>> ProxyAnchorLoss(num_classes=2, embedding_dim=8)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        std: float | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(_pml("losses").ProxyAnchorLoss(num_classes, embedding_dim, margin=margin, alpha=alpha))
        _init_normal(self.loss.proxies, std or math.sqrt(2 / num_classes), generator)


class NormSoftmaxLoss(PMLLoss):
    """Normalized softmax: cross-entropy of the cosines to one learned vector per class, divided by σ.

    Args:
        num_classes: Number of classes.
        embedding_dim: Dimension of the embeddings.
        temperature: Temperature σ.
        generator: Random generator of the initial class vectors.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019, eq. 3.

    Example:
        >>> NormSoftmaxLoss(num_classes=2, embedding_dim=8)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, temperature: float = 0.05, generator: Generator | None = None
    ) -> None:
        super().__init__(_pml("losses").NormalizedSoftmaxLoss(num_classes, embedding_dim, temperature=temperature))
        _init_normal(self.loss.W, 1.0, generator)


class ArcFaceLoss(PMLLoss):
    """ArcFace: cross-entropy of scale·cos θ, with cos(θ + margin) for the image's own class.

    Where θ > π − margin the own class has cos θ − margin·sin(margin) instead, as in the authors' code: the loss then
    still falls with θ. All logits are at the one scale, and the class vectors are normalized.

    Args:
        num_classes: Number of classes.
        embedding_dim: Dimension of the embeddings.
        scale: Factor of the cosines (s).
        margin: Additive angular margin (m), in radians.
        generator: Random generator of the initial class vectors.

    Shape:
        - embeddings: ``(n, d)``; labels: ``(n,)``; output: scalar.

    References:
        Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019, eq. 3.

    Example:
        >>> ArcFaceLoss(num_classes=2, embedding_dim=8)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
        0
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 16.0,
        margin: float = 0.5,
        generator: Generator | None = None,
    ) -> None:
        degrees = math.degrees(margin)
        super().__init__(_pml("losses").ArcFaceLoss(num_classes, embedding_dim, margin=degrees, scale=scale))
        with torch.no_grad():
            uniform = torch.rand(self.loss.W.shape, generator=generator, dtype=torch.float32)
            self.loss.W.copy_((2 * uniform - 1) / math.sqrt(embedding_dim))


def _init_normal(parameter: nn.Parameter, std: float, generator: Generator | None) -> None:
    """Draw class vectors from their own random stream instead of the global one."""
    with torch.no_grad():
        parameter.copy_(std * torch.randn(parameter.shape, generator=generator, dtype=torch.float32))
