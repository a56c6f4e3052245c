"""Hyp and Sph: every image finds its class among two images of each, in hyperbolic space or on the sphere."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings
from lookalike.losses.hyperbolic import hyperbolic_loss, spherical_loss
from lookalike.methods.base import Batch, Method
from lookalike.methods.taps import last_layer, tapped


class HypSettings(Settings):
    space: Literal["hyperbolic", "sphere"] = "hyperbolic"
    """Where distances are taken; `sphere` is the same loss with cosines."""
    temperature: PositiveFloat | None = None
    """Distances are divided by this; null: 0.2, and 0.1 on the sphere, as the authors have it."""
    curvature: PositiveFloat = 0.1
    """Of the hyperbolic space."""
    clip: PositiveFloat = 2.3
    """Vectors are cut to this length before they are mapped into it."""
    scale: PositiveFloat = 4.0
    """What the head's output is multiplied by before that: ours is about one long, the authors' longer than `clip`."""


class Hyp(Method):
    """A strong pairwise loss for networks that move; needs P classes of K images each."""

    name = "hyp"
    Settings = HypSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}}
    settings: HypSettings

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        with tapped(last_layer(self.context.model)) as seen:
            z = self.context.forward(batch)
        return {"z": z, "raw": seen[-1].output}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        chosen = self.settings
        counts = torch.unique(batch.labels, return_counts=True)[1]
        slots = int(counts[0])
        if slots < 2 or not bool((counts == slots).all()):
            raise LookalikeError(
                "`hyp` needs batches with equally many images of each class: set `sampler.kind` to pk."
            )
        # By class and image, then slot by slot: the order of the batch does not matter.
        order = torch.argsort(batch.ids, stable=True)
        order = order[torch.argsort(batch.labels[order], stable=True)]
        order = order.view(-1, slots).t().reshape(-1)
        if chosen.space == "sphere":
            return spherical_loss(embeddings["z"][order], slots, chosen.temperature or 0.1)
        rows = chosen.scale * embeddings["raw"][order]
        return hyperbolic_loss(rows, slots, chosen.temperature or 0.2, chosen.curvature, chosen.clip)
