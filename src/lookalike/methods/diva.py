"""DiVA: four heads that learn complementary tasks from the same images.

The formulas are in :mod:`lookalike.losses.diva`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from lookalike.core.seeds import torch_rng
from lookalike.losses import diva
from lookalike.losses.margin import MarginLoss, sample_triplets
from lookalike.methods._utils import two_layers
from lookalike.methods.base import Batch, Context
from lookalike.methods.margin import Margin, MarginSettings
from lookalike.models.heads import BlockLinear

HEADS = ("discriminative", "shared", "intra", "self")


class DiVASettings(MarginSettings):
    """Settings of DiVA."""

    alpha: NonNegativeFloat = 0.3
    """Weight of the three auxiliary tasks."""
    decorrelation: NonNegativeFloat = 1500.0
    """Weight ρ of the decorrelation of the first head from the others."""
    tasks: Literal["random", "paper"] = "random"
    """Task of the shared and the intra-class head: Margin on permuted labels (authors' code), or the triplets of the
    paper."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Momentum of the copy that computes the keys."""
    queue_size: PositiveInt = 3240
    """Keys of earlier steps used as negatives; the authors keep 30 batches of 108."""
    temperature: PositiveFloat = 0.01
    """Temperature of the self-supervised task."""
    hidden_dim: PositiveInt = 512
    """Width of the decorrelation networks."""


class DiVA(Margin):
    """DiVA: the embedding is the concatenation of four normalized heads, normalized again.

    References:
        Milbich et al., "DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning", ECCV 2020.

    Example:
        >>> la.train(data="photos", method="diva", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "diva"
    head_modules = ("decorrelators",)
    Settings = DiVASettings
    distinct_views = True  # the self-supervised task contrasts two views of an image
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}, "views": {"num_cached": 3}}
    settings: DiVASettings

    def __init__(self, settings: DiVASettings, context: Context) -> None:
        super().__init__(settings, context)
        model = context.model
        model.head = BlockLinear.from_linear(model.head, len(HEADS))
        self.block = context.dim // len(HEADS)
        self.others = nn.ModuleDict({name: self.make_loss() for name in ("shared", "intra")})
        self.decorrelators = nn.ModuleDict()
        for name in HEADS[1:]:
            generator = torch_rng(context.seed, "decorrelator", name)
            self.decorrelators[name] = two_layers(self.block, settings.hidden_dim, self.block, generator)
        self.queue = nn.Buffer(torch.zeros(settings.queue_size, self.block))
        self.filled = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self._trained = [p for p in model.parameters() if p.requires_grad]
        for i, parameter in enumerate(self._trained):
            self.register_buffer(f"momentum_{i}", parameter.detach().clone())
        self._keys: Tensor | None = None

    def views(self, default: Any) -> Sequence[Any]:
        return [default, default]

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad(), self._momentum_weights():
            keys = self.heads(self.context.forward(batch, 1))[3]
        return {"z": self.context.forward(batch), "keys": keys}

    @contextmanager
    def _momentum_weights(self) -> Iterator[None]:
        """Use the weights of the momentum copy within the block."""
        weights = [parameter.data for parameter in self._trained]
        try:
            for i, parameter in enumerate(self._trained):
                parameter.data = self.get_buffer(f"momentum_{i}")
            yield
        finally:
            for parameter, data in zip(self._trained, weights, strict=True):
                parameter.data = data

    def heads(self, z: Tensor) -> list[Tensor]:
        """Split an embedding into the four normalized heads."""
        return [functional.normalize(part, dim=1) for part in z.split(self.block, 1)]

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        s, keys = self.settings, embeddings["keys"].detach()
        parts = dict(zip(HEADS, self.heads(embeddings["z"]), strict=True))
        tasks = {name: self._task(name, parts[name], batch) for name in self.others}
        queue = self.queue[: min(int(self.filled), len(self.queue))]
        tasks["self"] = diva.self_similarity_loss(parts["self"], keys, queue, s.temperature)
        self._keys = keys
        total = self.margin_loss(parts["discriminative"], batch)
        if s.alpha:
            total = total + s.alpha * sum(tasks.values())
        if s.decorrelation:
            main = diva.reverse_gradient(parts["discriminative"])
            total = total + s.decorrelation * sum(
                diva.decorrelation_loss(main, self.decorrelators[name](diva.reverse_gradient(parts[name])))
                for name in HEADS[1:]
            )
        for name, value in tasks.items():
            self.context.log(f"task/{name}", value)
        return total

    def _task(self, name: str, z: Tensor, batch: Batch) -> Tensor:
        step, criterion = self.context.step, self.others[name]
        assert isinstance(criterion, MarginLoss)
        noise = self.stream.pairs(2, batch.ids, step, name)
        if self.settings.tasks == "random":
            labels = self.stream.shuffled(batch.labels, batch.ids, step, name)
            return criterion.from_triplets(z, labels, sample_triplets(z, labels, noise))
        draw = diva.sample_shared_triplets if name == "shared" else diva.sample_intra_triplets
        return criterion.from_triplets(z, batch.labels, draw(z, batch.labels, noise))

    @torch.no_grad()
    def after_step(self) -> None:
        for i, parameter in enumerate(self._trained):
            self.get_buffer(f"momentum_{i}").lerp_(parameter, 1 - self.settings.momentum)
        if self._keys is not None:
            size = len(self.queue)
            places = (int(self.filled) + torch.arange(len(self._keys), device=self.queue.device)) % size
            self.queue[places] = self._keys
            self.filled.add_(len(self._keys))
