"""SimSiam: one view predicts the other with the same network, without negatives, queue or teacher.

The loss is lightly's.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from lookalike.methods._utils import import_lightly, linear
from lookalike.methods.base import Batch, Context
from lookalike.methods.multi_crop import GLOBAL_VIEWS, CropMethod, CropSettings, images_first


class SimSiamSettings(CropSettings):
    """Settings of SimSiam."""

    asymmetric: bool = False
    """Views as in BYOL; the paper augments both alike."""
    projection_dim: PositiveInt = 2048
    """Dimension of the projections."""
    hidden_dim: PositiveInt = 2048
    """Width of the projection head."""
    prediction_dim: PositiveInt = 512
    """Width of the prediction head's bottleneck."""


class SimSiam(CropMethod):
    """SimSiam, the simplest self-supervised baseline.

    References:
        Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021.

    Example:
        >>> la.pretrain(data="photos", method="simsiam", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "simsiam"
    head_modules = ("projection", "prediction")
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
        hidden, dim = settings.hidden_dim, settings.projection_dim
        layers: list[nn.Module] = []
        for in_dim in (context.model.feature_dim, hidden):
            layers += [linear(in_dim, hidden, generator), nn.BatchNorm1d(hidden), nn.ReLU()]
        self.projection = nn.Sequential(*layers, linear(hidden, dim, generator), nn.BatchNorm1d(dim, affine=False))
        first, last = linear(dim, settings.prediction_dim, generator), linear(settings.prediction_dim, dim, generator)
        self.prediction = nn.Sequential(first, nn.BatchNorm1d(settings.prediction_dim), nn.ReLU(), last)
        self.criterion = import_lightly("loss", "NegativeCosineSimilarity", self.name)()

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        z, views = self.projection(self.crops(batch)), len(batch.views)
        p, target = (images_first(rows, views) for rows in (self.prediction(z), z.detach()))
        return {"p": p, "target": target[:, :GLOBAL_VIEWS]}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        p, z = embeddings["p"], embeddings["target"]
        pairs = [(v, w) for v in range(p.shape[1]) for w in range(GLOBAL_VIEWS) if v != w]
        return sum(self.criterion(p[:, v], z[:, w]) for v, w in pairs) / len(pairs)
