"""Base of methods that learn from several crops of an image: two global views and small local crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings
from lookalike.methods.base import PIXELS, Batch, Method
from lookalike.models.embedder import Embedder

GLOBAL_VIEWS = 2


class CropSettings(Settings):
    """Settings of the crops."""

    asymmetric: bool = True
    """Views as in BYOL: the first always blurred, the second rarely blurred and sometimes solarized, saturation
    jittered half as much as brightness. Otherwise both views follow `views`."""
    local_crops: NonNegativeInt = 0
    """Number of local crops, seen by the student only."""
    local_crop_size: PositiveInt | None = None
    """Size of local crops in pixels; null: 3/7 of the global ones, as 96 is to 224."""
    local_crop_scale: tuple[PositiveFloat, PositiveFloat] = (0.05, 0.2)
    """Smallest and largest fraction of an image that a local crop covers."""


class TeacherSettings(CropSettings):
    """Settings of a student that learns from a momentum copy of itself, through a prototype head."""

    hidden_dim: PositiveInt = 2048
    """Width of the head's two hidden layers."""
    momentum: float = Field(default=0.99, ge=0.0, le=1.0)
    """Initial momentum η of the teacher; it rises to 1 over the run along a cosine."""


class CropMethod(Method):
    """Base of methods with two global views and optional local crops."""

    command = "pretrain"
    needs_labels = False
    settings: CropSettings

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        return GLOBAL_VIEWS + int(own["local_crops"])

    def views(self, default: Any) -> Sequence[Any]:
        settings = self.settings
        first = second = local = default
        if settings.asymmetric:
            base = replace(default, saturation=0.5)
            first, second = replace(base, blur=1.0, solarize=0.0), replace(base, blur=0.1, solarize=0.2)
            local = replace(base, blur=0.5, solarize=0.0)
        size = settings.local_crop_size or max(1, round(default.pre.size * 3 / 7))
        local = replace(local, pre=replace(local.pre, size=size), scale=settings.local_crop_scale)
        return [first, second, *[local] * settings.local_crops]

    def crops(self, batch: Batch, model: Embedder | None = None, views: int | None = None) -> Tensor:
        """Return the pooled features of the first `views` views (None: all), concatenated.

        Crops of one size go through the network together, as in the authors' code.
        """
        if self.settings.local_crops and batch.layer != PIXELS:
            raise LookalikeError(
                "Local crops need pixels: set `views.mode` to end_to_end, or `method.local_crops` to 0."
            )
        parts = []
        for _, crops in groupby(batch.views[:views], key=lambda view: view.shape):
            joined = Batch((torch.cat(list(crops)),), batch.layer, batch.labels, batch.ids)
            parts.append(self.context.features(joined, 0, model))
        return torch.cat(parts)


def images_first(rows: Tensor, views: int) -> Tensor:
    """Reshape (V·n, d), view by view, to (n, V, d), as the loop gathers it."""
    return rows.unflatten(0, (views, -1)).transpose(0, 1)
