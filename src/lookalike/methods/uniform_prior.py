"""Uniform Prior: Margin, and embeddings that a discriminator cannot tell from uniform noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lookalike.core.seeds import torch_rng
from lookalike.losses import uniform_prior as prior
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.margin import Margin, MarginSettings
from lookalike.methods.taps import tapped


class UniformPriorSettings(MarginSettings):
    weight: NonNegativeFloat = 0.2
    """Of the prior, beside the margin loss."""
    on: Literal["auto", "embedding", "features"] = "auto"
    """What should look uniform: the embedding before it is normalized, or the pooled features as the authors have it.
    `auto`: the features where the backbone is trained; cached ones have no gradient to follow."""
    width: PositiveInt = 128
    """Numbers the discriminator looks at at once; longer rows are cut into pieces."""
    hidden: PositiveInt = 100
    """Width of the discriminator's two hidden layers."""
    every: PositiveInt = 10
    """Steps between two steps of the discriminator."""
    rate: PositiveFloat | None = None
    """The discriminator's learning rate; null: that of the training."""


class UniformPrior(Margin):
    """Keeps directions in use that the training classes do not ask for.

    The discriminator is no part of the optimizer's parameters: it has an Adam of its own, whose state is in buffers
    so that a resumed run goes on with it.
    """

    name = "uniform_prior"
    Settings = UniformPriorSettings
    settings: UniformPriorSettings
    scale: Tensor
    updates: Tensor

    def __init__(self, settings: UniformPriorSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.width = min(settings.width, context.dim)
        layers = prior.init_discriminator(self.width, settings.hidden, torch_rng(context.seed, "discriminator"))
        self._count = len(layers)
        for i, layer in enumerate(layers):
            self.register_buffer(f"layer_{i}", layer)
            self.register_buffer(f"mean_{i}", torch.zeros_like(layer))
            self.register_buffer(f"square_{i}", torch.zeros_like(layer))
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._rows: Tensor | None = None
        self._rate = settings.rate

    def param_groups(self, lrs: LearningRates, head_modules: Sequence[nn.Module] = ()) -> list[dict[str, Any]]:
        self._rate = self.settings.rate or lrs.backbone
        return super().param_groups(lrs, head_modules)

    @property
    def layers(self) -> list[Tensor]:
        return [self.get_buffer(f"layer_{i}") for i in range(self._count)]

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        model = self.context.model
        with tapped(model.head if self._on_embedding(batch) else model.pooling) as seen:
            z = self.context.forward(batch)
        return {"z": z, "rows": seen[-1].output}

    def _on_embedding(self, batch: Batch) -> bool:
        return self.settings.on == "embedding" or (self.settings.on == "auto" and batch.layer == "pooled")

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        rows = embeddings["rows"]
        if not self.scale:  # the first step
            # A head's own scale would make the discriminator's work trivial: the rows get the root mean square of
            # uniform noise, 1/√3. The authors' features stay as they are.
            self.scale.fill_((3 * rows.detach().square().mean()).rsqrt() if self._on_embedding(batch) else 1.0)
        pieces = prior.split_chunks(rows * self.scale, self.width)
        self._rows = pieces.detach()
        value = prior.prior_loss(self.layers, pieces)
        self.context.log("prior", value)
        return self.margin(embeddings["z"], batch) + self.settings.weight * value

    def after_step(self) -> None:
        if self.context.step % self.settings.every or self._rows is None or self._rate is None:
            return
        layers = [layer.clone().requires_grad_() for layer in self.layers]
        noise = 2 * self.stream.uniform(tuple(self._rows.shape), self.context.step, "noise") - 1
        with torch.enable_grad():
            loss = prior.discriminator_loss(layers, self._rows, noise)
        gradients = torch.autograd.grad(loss, layers)
        self.updates += 1
        count = int(self.updates)
        for i, gradient in enumerate(gradients):  # Adam with β 0.5 and 0.999
            mean, square = self.get_buffer(f"mean_{i}"), self.get_buffer(f"square_{i}")
            mean.lerp_(gradient, 0.5)
            square.lerp_(gradient.square(), 0.001)
            size = (square / (1 - 0.999**count)).sqrt() + 1e-8
            self.get_buffer(f"layer_{i}").sub_(self._rate / (1 - 0.5**count) * mean / size)
