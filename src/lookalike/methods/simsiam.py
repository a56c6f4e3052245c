"""SimSiam: one view predicts the other through the same network, without negatives, queue or teacher.

Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021. The loss is lightly's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from lookalike.methods import lightly
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.crops import GLOBAL, CropMethod, CropSettings, images_first
from lookalike.methods.start import linear


class SimSiamSettings(CropSettings):
    asymmetric: bool = False
    """Views as BYOL draws them; the paper has both alike."""
    dim: PositiveInt = 2048
    """Numbers that views are compared by."""
    hidden: PositiveInt = 2048
    """Width of the projection."""
    predicted: PositiveInt = 512
    """Width of the prediction's bottleneck."""


class SimSiam(CropMethod):
    """A baseline beside CARP: the simplest of its kind."""

    name = "simsiam"
    Settings = SimSiamSettings
    default_overrides: ClassVar = {
        "optimizer": {"kind": "sgd", "lr": 3e-3, "head_lr": 0.05, "weight_decay": 1e-4},
        "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.0, "freeze_backbone_steps": 50},
    }
    from_scratch_overrides: ClassVar = {
        "optimizer": {"lr": 0.0125, "head_lr": None, "weight_decay": 1e-4},  # 0.05 for a batch of 256
        "schedule": {"warmup_steps": 0, "freeze_backbone_steps": 0},
    }
    settings: SimSiamSettings

    def __init__(self, settings: SimSiamSettings, context: Context) -> None:
        super().__init__(settings, context)
        generator = context.generator("heads")
        hidden, dim = settings.hidden, settings.dim
        layers: list[nn.Module] = []
        for wide in (context.model.feature_dim, hidden):
            layers += [linear(wide, hidden, generator), nn.BatchNorm1d(hidden), nn.ReLU()]
        self.projection = nn.Sequential(*layers, linear(hidden, dim, generator), nn.BatchNorm1d(dim, affine=False))
        first, last = linear(dim, settings.predicted, generator), linear(settings.predicted, dim, generator)
        self.prediction = nn.Sequential(first, nn.BatchNorm1d(settings.predicted), nn.ReLU(), last)
        self.criterion = lightly.part("loss", "NegativeCosineSimilarity", self.name)()

    def param_groups(self, lrs: LearningRates, head_modules: Any = ()) -> list[dict[str, Any]]:
        return super().param_groups(lrs, [*head_modules, self.projection, self.prediction])

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        z = self.projection(self.crops(batch))
        views = len(batch.views)
        return {"p": images_first(self.prediction(z), views), "target": images_first(z.detach(), views)[:, :GLOBAL]}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        p, z = embeddings["p"], embeddings["target"]
        pairs = [(v, w) for v in range(p.shape[1]) for w in range(GLOBAL) if v != w]
        total = sum(self.criterion(p[:, v], z[:, w]) for v, w in pairs)
        return total / len(pairs)
