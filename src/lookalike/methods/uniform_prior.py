"""Uniform Prior: margin loss plus a term that makes embeddings indistinguishable from uniform noise.

The formulas are in :mod:`lookalike.losses.uniform_prior`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lookalike.core.seeds import torch_rng
from lookalike.losses import uniform_prior as prior
from lookalike.methods._utils import record_calls
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.margin import Margin, MarginSettings


class UniformPriorSettings(MarginSettings):
    """Settings of Uniform Prior."""

    weight: NonNegativeFloat = 0.2
    """Weight of the prior."""
    on: Literal["auto", "embedding", "features"] = "auto"
    """What should look uniform: the embedding before normalization, or the pooled features as in the authors' code.
    `auto`: the features if the backbone is trained; cached features have no gradient."""
    chunk_dim: PositiveInt = 128
    """Input dimension of the discriminator; longer vectors are cut into chunks."""
    hidden_dim: PositiveInt = 100
    """Width of the discriminator's two hidden layers."""
    update_every: PositiveInt = 10
    """Steps between two updates of the discriminator."""
    lr: PositiveFloat | None = None
    """Learning rate of the discriminator; null: that of the training."""


class UniformPrior(Margin):
    """Margin loss with a uniform prior, which keeps directions in use that the training classes do not need.

    The discriminator is not among the optimizer's parameters: it has its own Adam, whose state is in buffers so that a
    resumed run continues with it.

    References:
        See :mod:`lookalike.losses.uniform_prior`.

    Example:
        >>> la.train(data="photos", method="uniform_prior", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "uniform_prior"
    Settings = UniformPriorSettings
    settings: UniformPriorSettings

    def __init__(self, settings: UniformPriorSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.chunk_dim = min(settings.chunk_dim, context.dim)
        layers = prior.init_discriminator(self.chunk_dim, settings.hidden_dim, torch_rng(context.seed, "discriminator"))
        self._count = len(layers)
        for i, layer in enumerate(layers):
            self.register_buffer(f"layer_{i}", layer)
            self.register_buffer(f"mean_{i}", torch.zeros_like(layer))
            self.register_buffer(f"square_{i}", torch.zeros_like(layer))
        self.scale = nn.Buffer(torch.zeros(()))
        self.updates = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self._rows: Tensor | None = None
        self._lr = settings.lr

    def param_groups(self, lrs: LearningRates) -> list[dict[str, Any]]:
        self._lr = self.settings.lr or lrs.backbone
        return super().param_groups(lrs)

    @property
    def layers(self) -> list[Tensor]:
        """Weights and biases of the discriminator."""
        return [self.get_buffer(f"layer_{i}") for i in range(self._count)]

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        model = self.context.model
        with record_calls(model.head if self._on_embedding(batch) else model.pooling) as calls:
            z = self.context.forward(batch)
        return {"z": z, "rows": calls[-1].output}

    def _on_embedding(self, batch: Batch) -> bool:
        return self.settings.on == "embedding" or (self.settings.on == "auto" and batch.layer == "pooled")

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        rows = embeddings["rows"]
        if not self.scale:  # the first step
            # The scale of a head would make the discriminator's task trivial: rows get the root mean square of uniform
            # noise, 1/√3. Features stay as they are, as in the authors' code.
            self.scale.fill_((3 * rows.detach().square().mean()).rsqrt() if self._on_embedding(batch) else 1.0)
        chunks = prior.split_chunks(rows * self.scale, self.chunk_dim)
        self._rows = chunks.detach()
        value = prior.prior_loss(self.layers, chunks)
        self.context.log("prior", value)
        return self.margin_loss(embeddings["z"], batch) + self.settings.weight * value

    def after_step(self) -> None:
        if self.context.step % self.settings.update_every or self._rows is None or self._lr is None:
            return
        layers = [layer.clone().requires_grad_() for layer in self.layers]
        noise = 2 * self.stream.uniform(tuple(self._rows.shape), self.context.step, "noise") - 1
        with torch.enable_grad():
            loss = prior.discriminator_loss(layers, self._rows, noise)
        gradients = torch.autograd.grad(loss, layers)
        self.updates.add_(1)
        count = int(self.updates)
        for i, gradient in enumerate(gradients):  # Adam with β 0.5 and 0.999
            mean, square = self.get_buffer(f"mean_{i}"), self.get_buffer(f"square_{i}")
            mean.lerp_(gradient, 0.5)
            square.lerp_(gradient.square(), 0.001)
            scale = (square / (1 - 0.999**count)).sqrt() + 1e-8
            self.get_buffer(f"layer_{i}").sub_(self._lr / (1 - 0.5**count) * mean / scale)
