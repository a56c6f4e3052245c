"""S2SD: wider embeddings, dropped after training, are distilled into the one that is used.

The formula is in :mod:`lookalike.losses.s2sd`.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from lookalike.core.seeds import torch_rng
from lookalike.losses.s2sd import distillation_loss
from lookalike.methods._utils import record_calls, two_layers
from lookalike.methods.base import Batch, Context
from lookalike.methods.margin import RMargin, RMarginSettings


class S2SDSettings(RMarginSettings):
    """Settings of S2SD."""

    target_dims: list[PositiveInt] = [512, 768, 1024]  # noqa: RUF012 (pydantic copies it)
    """Dimensions of the wider embeddings; the paper's are 1024, 1536 and 2048."""
    weight: NonNegativeFloat = 50.0
    """Weight of the distillation from the wider embeddings."""
    feature_weight: NonNegativeFloat = 50.0
    """Weight of the distillation from the pooled features; with cached features it pulls towards the start."""
    feature_start_step: NonNegativeInt = 0
    """First step of the distillation from the pooled features."""
    temperature: PositiveFloat = 1.0
    """Temperature T of the distillation."""


class S2SD(RMargin):
    """S2SD with R-Margin as base loss on every embedding.

    References:
        Roth et al., "S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning", ICML 2021.

    Example:
        >>> la.train(data="photos", method="s2sd", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "s2sd"
    head_modules = ("targets", "target_losses")
    Settings = S2SDSettings
    settings: S2SDSettings

    def __init__(self, settings: S2SDSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.feature_dim = context.model.feature_dim
        self.targets = nn.ModuleList(
            two_layers(self.feature_dim, dim, dim, torch_rng(context.seed, "target", dim))
            for dim in settings.target_dims
        )
        self.target_losses = nn.ModuleList(self.make_loss() for _ in settings.target_dims)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        with record_calls(self.context.model.head) as calls:
            z = self.context.forward(batch)
        return {"z": z, "features": functional.normalize(calls[-1].input, dim=1)}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        s, z, features = self.settings, embeddings["z"], embeddings["features"]
        noise = self.stream.pairs(3, batch.ids, self.context.step)
        total: Tensor = self.criterion(z, batch.labels, noise)
        if len(self.targets):
            # Unit features have entries near 0; layers are initialized for entries near 1.
            wide = [functional.normalize(branch(features * self.feature_dim**0.5), dim=1) for branch in self.targets]
            own = [loss(y, batch.labels, noise) for loss, y in zip(self.target_losses, wide, strict=True)]
            distilled = sum(distillation_loss(y, z, s.temperature) for y in wide) / len(wide)
            total = (total + sum(own) / len(own)) / 2 + s.weight * distilled
        if s.feature_weight and self.context.step >= s.feature_start_step:
            total = total + s.feature_weight * distillation_loss(features, z, s.temperature)
        return total
