"""S2SD: wider embeddings, thrown away after training, teach the one that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from lookalike.core.seeds import torch_rng
from lookalike.losses.s2sd import distillation_loss
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.margin import RMargin, RMarginSettings
from lookalike.methods.start import linear
from lookalike.methods.taps import tapped


class S2SDSettings(RMarginSettings):
    targets: list[PositiveInt] = [512, 768, 1024]  # noqa: RUF012 (pydantic copies it)
    """Dimensions of the wider embeddings; the paper's are 1024, 1536 and 2048."""
    weight: NonNegativeFloat = 50.0
    """Of what the wider embeddings teach."""
    features: NonNegativeFloat = 50.0
    """Of what the pooled features teach; 0: nothing. Of cached features this pulls towards where training began."""
    features_from: NonNegativeInt = 0
    """The step from which they do."""
    temperature: PositiveFloat = 1.0
    """T of the softmax over a row of similarities."""


class S2SD(RMargin):
    """The base loss is R-Margin on every embedding, with a boundary of its own each."""

    name = "s2sd"
    Settings = S2SDSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}}
    settings: S2SDSettings

    def __init__(self, settings: S2SDSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.features = context.model.feature_dim
        self.targets = nn.ModuleList(self._branch(dim) for dim in settings.targets)
        self.target_losses = nn.ModuleList(self.make_loss() for _ in settings.targets)

    def _branch(self, dim: int) -> nn.Module:
        generator = torch_rng(self.context.seed, "target", dim)
        return nn.Sequential(linear(self.features, dim, generator), nn.ReLU(), linear(dim, dim, generator))

    def param_groups(self, lrs: LearningRates, head_modules: Sequence[nn.Module] = ()) -> list[dict[str, Any]]:
        return super().param_groups(lrs, [*head_modules, self.targets, self.target_losses])

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        with tapped(self.context.model.head) as seen:
            z = self.context.forward(batch)
        return {"z": z, "features": functional.normalize(seen[-1].input, dim=1)}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        s, z, features = self.settings, embeddings["z"], embeddings["features"]
        noise = self.stream.pairs(3, batch.ids, self.context.step)
        total: Tensor = self.criterion(z, batch.labels, noise)
        if len(self.targets):
            # Unit features have entries near 0; layers start for entries near 1.
            wide = [functional.normalize(branch(features * self.features**0.5), dim=1) for branch in self.targets]
            own = [loss(y, batch.labels, noise) for loss, y in zip(self.target_losses, wide, strict=True)]
            distilled = sum(distillation_loss(y, z, s.temperature) for y in wide) / len(wide)
            total = (total + sum(own) / len(own)) / 2 + s.weight * distilled
        if s.features and self.context.step >= s.features_from:
            total = total + s.features * distillation_loss(features, z, s.temperature)
        return total
