"""Supervised methods that apply one loss of pytorch-metric-learning to one view of each image.

The formulas are in :mod:`lookalike.losses.pml`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses.pml import (
    ActiveMultiSimilarityLoss,
    ArcFaceLoss,
    ContrastiveLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    SupConLoss,
    TripletLoss,
)
from lookalike.methods.base import Batch, Context, Method


class LossMethod(Method):
    """Base of methods that are one loss on one view.

    Args:
        settings: Settings of the method.
        context: What the training loop provides.
    """

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__(settings, context)
        self.criterion = self.make_loss()

    @abstractmethod
    def make_loss(self) -> nn.Module:
        """Create the loss, which is called with embeddings and labels."""

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        value: Tensor = self.criterion(embeddings["z"], batch.labels)
        return value


class MultiSimilaritySettings(Settings):
    """Settings of Multi-Similarity."""

    alpha: float = 2.0
    """Scale of the positive pairs."""
    beta: float = 50.0
    """Scale of the negative pairs."""
    base: float = 0.5
    """Similarity threshold λ."""
    epsilon: float | None = None
    """Margin of the paper's miner; null: all pairs count."""
    average: Literal["all", "active"] = "all"
    """Average over all anchors, or over those with a mined pair of the kind."""


class MultiSimilarity(LossMethod):
    """Multi-Similarity loss; the most robust choice for a head on fixed features.

    Example:
        >>> la.train(data="photos", method="ms", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "ms"
    Settings = MultiSimilaritySettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: MultiSimilaritySettings

    def make_loss(self) -> nn.Module:
        s = self.settings
        if s.average == "active":
            if s.epsilon is None:
                raise LookalikeError(
                    "`method.average` is active, which needs the miner: set `method.epsilon`, for example to 0.1."
                )
            return ActiveMultiSimilarityLoss(s.alpha, s.beta, s.base, s.epsilon)
        return MultiSimilarityLoss(s.alpha, s.beta, s.base, s.epsilon)


class SupConSettings(Settings):
    """Settings of SupCon."""

    temperature: float = 0.1
    """τ; lower values emphasize the hardest pairs."""


class SupCon(LossMethod):
    """Supervised contrastive loss; good when the backbone is trained, overfits early on fixed features."""

    name = "supcon"
    Settings = SupConSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: SupConSettings

    def make_loss(self) -> nn.Module:
        return SupConLoss(self.settings.temperature)


class ContrastiveSettings(Settings):
    """Settings of the contrastive loss."""

    pos_margin: float = 1.0
    """Positives are pulled up to this cosine."""
    neg_margin: float = 0.5
    """Negatives are pushed below this cosine."""
    mine: bool = False
    """Use only pairs that a pair-margin miner keeps."""
    miner_pos_margin: float = 0.9
    """The miner keeps positives below this cosine."""
    miner_neg_margin: float = 0.5
    """The miner keeps negatives above this cosine."""


class Contrastive(LossMethod):
    """Contrastive loss on cosine similarity, with or without a miner."""

    name = "contrastive"
    Settings = ContrastiveSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}
    settings: ContrastiveSettings

    def make_loss(self) -> nn.Module:
        return ContrastiveLoss(**self.settings.model_dump())


class TripletSettings(Settings):
    """Settings of the triplet loss."""

    margin: float = 0.2
    """How much nearer the own class must be, in Euclidean distance of unit vectors."""
    miner: Literal["all", "semihard", "hard", "batch_hard"] = "semihard"
    """Which triplets of the batch count."""


class Triplet(LossMethod):
    """Triplet margin loss with triplets mined in the batch."""

    name = "triplet"
    Settings = TripletSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}}
    settings: TripletSettings

    def make_loss(self) -> nn.Module:
        return TripletLoss(self.settings.margin, self.settings.miner)


class ClassVectorMethod(LossMethod):
    """Base of methods with one learned vector per class, which is dropped after training."""

    loss_class: ClassVar[type[nn.Module]]

    def make_loss(self) -> nn.Module:
        c = self.context
        generator = torch_rng(c.seed, "proxies")
        return self.loss_class(c.classes, c.dim, **self.settings.model_dump(), generator=generator)


class ProxyAnchorSettings(Settings):
    """Settings of Proxy-Anchor."""

    margin: float = 0.1
    """Margin δ."""
    alpha: float = 32.0
    """Scale of the exponents."""
    std: PositiveFloat | None = None
    """Standard deviation of the initial proxies; null: √(2/classes). Longer proxies turn more slowly."""


class ProxyAnchor(ClassVectorMethod):
    """Proxy-Anchor loss: the batch is compared with one learned proxy per class."""

    name = "proxy_anchor"
    Settings = ProxyAnchorSettings
    loss_class = ProxyAnchorLoss
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-3}}


class NormSoftmaxSettings(Settings):
    """Settings of the normalized softmax."""

    temperature: float = 0.05
    """Temperature σ."""


class NormSoftmax(ClassVectorMethod):
    """Normalized softmax: classification by cosine."""

    name = "norm_softmax"
    Settings = NormSoftmaxSettings
    loss_class = NormSoftmaxLoss
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-3}}


class ArcFaceSettings(Settings):
    """Settings of ArcFace."""

    scale: float = 16.0
    """Factor of the cosines."""
    margin: float = 0.5
    """Margin added to the angle to the own class, in radians."""


class ArcFace(ClassVectorMethod):
    """ArcFace: classification by angle with an additive margin."""

    name = "arcface"
    Settings = ArcFaceSettings
    loss_class = ArcFaceLoss
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}}
