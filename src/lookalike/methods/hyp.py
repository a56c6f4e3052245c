"""Hyp and Sph: pairwise cross-entropy in hyperbolic space or on the sphere.

The formulas are in :mod:`lookalike.losses.hyperbolic`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings
from lookalike.losses.hyperbolic import hyperbolic_loss, spherical_loss
from lookalike.methods._utils import record_calls
from lookalike.methods.base import Batch, Method


class HypSettings(Settings):
    """Settings of Hyp."""

    space: Literal["hyperbolic", "sphere"] = "hyperbolic"
    """Space of the distances; `sphere` is the same loss with cosines."""
    temperature: PositiveFloat | None = None
    """Temperature of the softmax; null: 0.2, and 0.1 on the sphere, as in the paper."""
    curvature: PositiveFloat = 0.1
    """Curvature of the hyperbolic space."""
    clip: PositiveFloat = 2.3
    """Largest length of a vector before it is mapped into the ball."""
    scale: PositiveFloat = 4.0
    """Factor of the head's output before clipping: ours has a length of about 1, the authors' more than `clip`."""


class Hyp(Method):
    """Pairwise cross-entropy for end-to-end training; needs batches of P classes with K images each.

    References:
        Ermolov et al., "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning", CVPR 2022.

    Example:
        >>> la.train(data="photos", method="hyp", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "hyp"
    Settings = HypSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}}
    settings: HypSettings

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        model = self.context.model  # its embedding before normalization is what the head returns, if there is one
        with record_calls(model.pooling if isinstance(model.head, nn.Identity) else model.head) as calls:
            z = self.context.forward(batch)
        return {"z": z, "raw": calls[-1].output}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        settings = self.settings
        counts = torch.unique(batch.labels, return_counts=True)[1].tolist()
        images_per_class = counts[0]
        if images_per_class < 2 or len(set(counts)) > 1:
            raise LookalikeError(
                "`hyp` needs batches with the same number of images of each class: set `sampler.kind` to pk."
            )
        # Sort by class and image, so that the order of the batch does not matter.
        order = torch.argsort(batch.ids, stable=True)
        order = order[torch.argsort(batch.labels[order], stable=True)]
        order = order.view(-1, images_per_class).t().reshape(-1)
        if settings.space == "sphere":
            return spherical_loss(embeddings["z"][order], images_per_class, settings.temperature or 0.1)
        rows = settings.scale * embeddings["raw"][order]
        return hyperbolic_loss(rows, images_per_class, settings.temperature or 0.2, settings.curvature, settings.clip)
