"""Views for methods that learn from an image's own crops: BYOL's two ways of looking, and small local crops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings
from lookalike.methods.base import PIXELS, Batch, Method
from lookalike.models.embedder import Embedder

GLOBAL = 2


class CropSettings(Settings):
    asymmetric: bool = True
    """Views as BYOL draws them: the first always blurred, the second rarely blurred and sometimes solarized, colors
    changed half as much as brightness. Otherwise both are as `views` says."""
    local: NonNegativeInt = 0
    """Small crops beside the two large ones; only the student sees them."""
    local_size: PositiveInt | None = None
    """Their pixels; null: 3/7 of the large ones', as 96 is to 224."""
    local_scale: tuple[PositiveFloat, PositiveFloat] = (0.05, 0.2)
    """Share of an image that they cover, least and most."""


class TaughtSettings(CropSettings):
    """Of a student that learns from a slow copy of itself, through a head of three layers (`assigner.py`)."""

    hidden: PositiveInt = 2048
    """Width of the head's two layers."""
    momentum: float = Field(default=0.99, ge=0.0, le=1.0)
    """η of the slow copy at the start; it rises to 1 over the run along a cosine."""


class CropMethod(Method):
    """Base of methods with two large views and perhaps small ones."""

    command = "pretrain"
    needs_labels = False
    settings: CropSettings

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        return GLOBAL + int(own["local"])

    def views(self, default: Any) -> Sequence[Any]:
        chosen = self.settings
        first = second = small = default
        if chosen.asymmetric:
            look = replace(default, saturation=0.5)
            first, second = replace(look, blur=1.0, solarize=0.0), replace(look, blur=0.1, solarize=0.2)
            small = replace(look, blur=0.5, solarize=0.0)
        side = chosen.local_size or max(1, round(default.pre.size * 3 / 7))
        small = replace(small, pre=replace(small.pre, size=side), scale=chosen.local_scale)
        return [first, second, *[small] * chosen.local]

    def crops(self, batch: Batch, model: Embedder | None = None, views: int | None = None) -> Tensor:
        """Pooled features of the first `views` views (None: all), joined in their order.

        Crops of one size go through the network together, as in the authors' code.
        """
        seen = batch.views[:views]
        if self.settings.local and batch.layer != PIXELS:
            raise LookalikeError(
                "Small crops need pixels: set `views.mode` to end_to_end, or leave `method.local` at 0."
            )
        parts, start = [], 0
        while start < len(seen):
            stop = start
            while stop < len(seen) and seen[stop].shape == seen[start].shape:
                stop += 1
            joined = Batch((torch.cat(seen[start:stop]),), batch.layer, batch.labels, batch.ids)
            parts.append(self.context.features(joined, 0, model))
            start = stop
        return torch.cat(parts)


def images_first(rows: Tensor, views: int) -> Tensor:
    """(V·n, d) in the order of the views to (n, V, d), as the loop gathers it."""
    return rows.unflatten(0, (views, -1)).transpose(0, 1)


def rising(start: float, step: int, steps: int) -> float:
    """η_j = 1 − (1 − η₀)(1 + cos πj/J)/2, of the j-th step from 0."""
    return 1 - (1 - start) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2


@torch.no_grad()
def follow(teacher: Sequence[torch.nn.Module], student: Sequence[torch.nn.Module], momentum: float) -> None:
    """ξ ← η ξ + (1 − η) θ, parameters only: statistics of batch-norm are each network's own."""
    for slow, fast in zip(teacher, student, strict=True):
        for ours, theirs in zip(slow.parameters(), fast.parameters(), strict=True):
            ours.lerp_(theirs, 1 - momentum)
