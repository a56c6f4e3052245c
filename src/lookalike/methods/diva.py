"""DiVA: four heads that learn different things from the same images."""

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
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.margin import Margin, MarginSettings
from lookalike.methods.start import linear
from lookalike.models.heads import BlockLinear

HEADS = ("discriminative", "shared", "intra", "self")


class DiVASettings(MarginSettings):
    alpha: NonNegativeFloat = 0.3
    """Weight of the three further tasks."""
    decorrelation: NonNegativeFloat = 1500.0
    """ρ: how strongly the first head is kept from learning what the others do."""
    tasks: Literal["random", "paper"] = "random"
    """What the shared and the intra-class head learn: Margin on permuted labels, which is what the authors' programs
    do, or the triplets of their paper."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Of the slow copy that makes the keys."""
    queue: PositiveInt = 3240
    """Images of earlier steps that an image is told from; the authors keep 30 batches of 108."""
    temperature: PositiveFloat = 0.01
    """Of telling an image from others."""
    hidden: PositiveInt = 512
    """Width of the networks that look for what two heads have in common."""


class DiVA(Margin):
    """The embedding is the four heads side by side, each of length one, and the whole again of length one."""

    name = "diva"
    Settings = DiVASettings
    distinct_views = True  # an image is told from others by another view of it
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4, "loss_lr": 5e-4}, "views": {"num_cached": 3}}
    settings: DiVASettings
    queue: Tensor
    filled: Tensor

    def __init__(self, settings: DiVASettings, context: Context) -> None:
        super().__init__(settings, context)
        model = context.model
        model.head = BlockLinear.from_linear(model.head, len(HEADS))
        self.block = context.dim // len(HEADS)
        self.others = nn.ModuleDict({name: self.make_loss() for name in ("shared", "intra")})
        self.decorrelators = nn.ModuleDict({name: self._decorrelator(name) for name in HEADS[1:]})
        self.register_buffer("queue", torch.zeros(settings.queue, self.block))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self._moving = [p for p in model.parameters() if p.requires_grad]
        for i, parameter in enumerate(self._moving):
            self.register_buffer(f"slow_{i}", parameter.detach().clone())
        self._keys: Tensor | None = None

    def _decorrelator(self, name: str) -> nn.Module:
        generator, hidden = torch_rng(self.context.seed, "decorrelator", name), self.settings.hidden
        return nn.Sequential(linear(self.block, hidden, generator), nn.ReLU(), linear(hidden, self.block, generator))

    def views(self, default: Any) -> Sequence[Any]:
        return [default, default]

    def param_groups(self, lrs: LearningRates, head_modules: Sequence[nn.Module] = ()) -> list[dict[str, Any]]:
        return super().param_groups(lrs, [*head_modules, self.decorrelators])

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad(), self._slow():
            keys = self.heads(self.context.forward(batch, 1))[3]
        return {"z": self.context.forward(batch), "keys": keys}

    @contextmanager
    def _slow(self) -> Iterator[None]:
        """The model with the slow copy's weights."""
        own = [parameter.data for parameter in self._moving]
        try:
            for i, parameter in enumerate(self._moving):
                parameter.data = self.get_buffer(f"slow_{i}")
            yield
        finally:
            for parameter, data in zip(self._moving, own, strict=True):
                parameter.data = data

    def heads(self, z: Tensor) -> list[Tensor]:
        """The four embeddings, each of length one."""
        return [functional.normalize(part, dim=1) for part in z.split(self.block, 1)]

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        s, keys = self.settings, embeddings["keys"].detach()
        parts = dict(zip(HEADS, self.heads(embeddings["z"]), strict=True))
        tasks = {name: self._task(name, parts[name], batch) for name in self.others}
        known = self.queue[: min(int(self.filled), len(self.queue))]
        tasks["self"] = diva.self_similarity_loss(parts["self"], keys, known, s.temperature)
        self._keys = keys
        total = self.margin(parts["discriminative"], batch)
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
        for i, parameter in enumerate(self._moving):
            self.get_buffer(f"slow_{i}").lerp_(parameter, 1 - self.settings.momentum)
        if self._keys is not None:
            size = len(self.queue)
            places = (int(self.filled) + torch.arange(len(self._keys), device=self.queue.device)) % size
            self.queue[places] = self._keys
            self.filled += len(self._keys)
