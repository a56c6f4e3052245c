"""The model while it adapts: features and logits from a cached layer, and what batch-norm may see.

Pool images never move the target's statistics: they pass in evaluation mode, or with the target batch's own
(`shared-stats`), never together with target images in one batch.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import derive
from lookalike.models import Embedder
from lookalike.training.batchnorm import layers

PIXELS = "pixels"
TEMPERATURE = 0.07


def pick_layer(model: Embedder, layer: str) -> str:
    """`auto`: half of the stages learn; a backbone that cannot be cut keeps all and lets its head learn."""
    if layer != "auto":
        return layer
    stages = [name for name in model.layers if name.startswith("stage")]
    if stages:
        return stages[(len(stages) - 1) // 2]
    return "pooled"


class Network(nn.Module):
    """`network(x)` is (unit features, logits); x is what `layer` of the model gives, or uint8 pixels."""

    prototypes: Tensor | None

    def __init__(self, model: Embedder, layer: str = "pooled", *, prototypes: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.layer = model.eval(), layer
        if prototypes is not None:
            self.classes = len(prototypes)
        else:
            self.classes = 0 if model.classifier is None else model.classifier.out_features
        self.register_buffer("prototypes", prototypes)

    @property
    def dim(self) -> int:
        return self.model.dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.model.pooled(x) if self.layer == PIXELS else self.model.pooled_from(self.layer, x)
        rows = self.model.from_features(pooled)
        return rows, self.logits(rows)

    def logits(self, rows: Tensor) -> Tensor:
        if self.prototypes is not None:
            return rows @ self.prototypes.T / TEMPERATURE
        return self.model.classifier(rows) if self.model.classifier is not None else rows.new_zeros(len(rows), 1)

    def upper(self) -> nn.Module:
        """What is above the cached layer and below the head."""
        if self.layer == PIXELS:
            return self.model.backbone
        return nn.Identity() if self.layer == "pooled" else self.model.upper(self.layer)

    def norms(self) -> list[_BatchNorm]:
        """Batch-norm layers that run here."""
        return [*layers(self.upper()), *layers(self.model.norm)]

    def groups(self, rate: float, head_factor: float, *, only: str = "all") -> list[dict[str, Any]]:
        """What learns, at which rate: `all`, all but the classifier (`features`), or scales and shifts of norms."""
        head: list[nn.Module] = [self.model.head, self.model.norm]
        if self.model.classifier is not None and only == "all":
            head.append(self.model.classifier)
        slow = list(self.upper().parameters())
        fast = [value for part in head for value in part.parameters()]
        if only == "norms":
            norms = self.norms()
            # TENT's are those of the backbone; where none of them runs here, that of the head is what is left.
            some = [norm for norm in norms if isinstance(norm, nn.BatchNorm2d)] or norms
            slow, fast = [value for norm in some for value in norm.parameters()], []
        for value in self.parameters():
            value.requires_grad_(False)
        for value in (*slow, *fast):
            value.requires_grad_(True)
        found = [{"params": slow, "lr": rate}, {"params": fast, "lr": rate * head_factor}]
        found = [group for group in found if group["params"]]
        if not found:
            lacks = "no batch-norm layer runs here" if only == "norms" else "it has no head"
            raise LookalikeError(f"Nothing of this model can learn here: {lacks}; choose another `layer`.")
        return found

    @contextlib.contextmanager
    def learning_statistics(self, mode: str) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Batch statistics inside, where the mode says so; gives the moments the layers saw, in their order."""
        norms = self.norms() if mode in ("target-train", "shared-stats") else []
        seen: list[tuple[Tensor, Tensor]] = []

        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach()
            seen.append(_moments(x))

        hooks = [norm.register_forward_pre_hook(look) for norm in norms]
        for norm in norms:
            norm.train()
        try:
            yield seen
        finally:
            for norm in norms:
                norm.eval()
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def borrowed_statistics(self, seen: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
        """Layers normalize with these moments inside, and have their own back after."""
        norms = self.norms()
        kept = [(norm.running_mean, norm.running_var) for norm in norms]
        for norm, moments in zip(norms, seen, strict=True):
            norm.running_mean, norm.running_var = moments
        try:
            yield
        finally:
            for norm, own in zip(norms, kept, strict=True):
                norm.running_mean, norm.running_var = own


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, over the images of all processes."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    if distributed.world_size() == 1:
        return x.mean(axes), x.var(axes, correction=0)
    total = distributed.all_reduce(x.new_tensor([x.numel() // x.shape[1]]))
    mean = distributed.all_reduce(x.sum(axes)) / total
    centered = x - mean.view([1, -1] + [1] * (x.ndim - 2))
    return mean, distributed.all_reduce(centered.square().sum(axes)) / total


def mixed_parts(ids: Sequence[str], size: int = 64) -> list[np.ndarray]:
    """Places of images in parts of nearly one size, for statistics that are means over batches.

    Folders are sorted by class, and a batch of one class has too little variance; a short last batch would count as
    much as a whole one. So images are shuffled, by their ids, and the parts are even.
    """
    order = np.argsort(np.array([derive(0, "statistics", id_) for id_ in ids]), kind="stable")
    return np.array_split(order, max(1, math.ceil(len(order) / size)))


def recalibrated(
    model: Embedder, batches: Iterable[Tensor], layer: str = PIXELS, *, above: str | None = None
) -> Embedder:
    """A copy whose batch-norm statistics are those of these images: one pass, cumulative means, nothing else.

    Batches are pixels, or what `layer` gives; only norm layers above it, or `above` another one, are touched. One
    batch at a time is held.
    """
    out = copy.deepcopy(model).eval()
    network = Network(out, layer)
    norms = Network(out, layer if above is None else above).norms()
    usable = (batch for batch in batches if len(batch) > 1)  # one image has no variance
    first = next(usable, None) if norms else None
    if first is None:
        return out
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in itertools.chain([first], usable):
            network(batch)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()
    return out
