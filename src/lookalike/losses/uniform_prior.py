"""Uniform Prior: a discriminator tells embeddings from uniform noise; the embeddings learn to pass for noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

Layers = Sequence[Tensor]
"""Weights and biases in turn."""


def start_layers(width: int, hidden: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """width → hidden → hidden → 1, drawn as `nn.Linear` draws."""

    def drawn(shape: tuple[int, ...], wide: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) * wide**-0.5

    sizes = ((width, hidden), (hidden, hidden), (hidden, 1))
    return [drawn(shape, wide) for wide, narrow in sizes for shape in ((narrow, wide), (narrow,))]


def discriminate(layers: Layers, rows: Tensor) -> Tensor:
    """How sure the discriminator is, before the sigmoid, that rows are uniform."""
    for i in range(0, len(layers), 2):
        rows = functional.linear(rows, layers[i], layers[i + 1])
        if i + 2 < len(layers):
            rows = rows.relu()
    return rows.squeeze(1)


def chunks(rows: Tensor, width: int = 128) -> Tensor:
    """Rows cut into pieces of `width`; what is left over at the end has no piece."""
    pieces = rows.shape[1] // width
    return rows[:, : pieces * width].reshape(-1, width)


def prior(layers: Layers, rows: Tensor) -> Tensor:
    """Sinha et al., "Uniform Priors for Data-Efficient Learning", CVPR workshops 2022 (arXiv 2006.16524): the
    encoder's part, −log D(row), mean over the rows. The layers get no gradient."""
    sure = discriminate([layer.detach() for layer in layers], rows)
    return functional.binary_cross_entropy_with_logits(sure, torch.ones_like(sure))


def discriminator_loss(layers: Layers, rows: Tensor, noise: Tensor) -> Tensor:
    """The discriminator's part: uniform noise is real, the rows are not; the rows get no gradient."""
    real, fake = discriminate(layers, noise), discriminate(layers, rows.detach())
    loss = functional.binary_cross_entropy_with_logits
    return loss(real, torch.ones_like(real)) + loss(fake, torch.zeros_like(fake))
