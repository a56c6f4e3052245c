"""Uniform Prior: a discriminator separates embeddings from uniform noise, and the embeddings learn to fool it.

Sinha et al., "Uniform Priors for Data-Efficient Learning", CVPR Workshops 2022 (arXiv 2006.16524), section 3. The
discriminator is a list of tensors, weights and biases in turn, so that its owner can keep them as buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

Layers = Sequence[Tensor]
"""Weights and biases in turn."""


def init_discriminator(in_dim: int, hidden_dim: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """Create the layers in_dim → hidden_dim → hidden_dim → 1, initialized as `nn.Linear` is."""

    def uniform(shape: tuple[int, ...], fan_in: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) * fan_in**-0.5

    sizes = ((in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, 1))
    return [uniform(shape, wide) for wide, narrow in sizes for shape in ((narrow, wide), (narrow,))]


def discriminate(layers: Layers, x: Tensor) -> Tensor:
    """Return the logits (n,) that vectors (n, d) are uniform noise."""
    for i in range(0, len(layers), 2):
        x = functional.linear(x, layers[i], layers[i + 1])
        if i + 2 < len(layers):
            x = x.relu()
    return x.squeeze(1)


def split_chunks(x: Tensor, width: int = 128) -> Tensor:
    """Cut vectors (n, d) into chunks of `width` (n·⌊d/width⌋, width); a remainder is dropped."""
    count = x.shape[1] // width
    return x[:, : count * width].reshape(-1, width)


def prior_loss(layers: Layers, x: Tensor) -> Tensor:
    """Return the encoder's loss, mean −log D(x); the discriminator gets no gradient.

    Args:
        layers: The discriminator.
        x: Embeddings, or chunks of them.

    Shape:
        - x: ``(n, d)``; output: scalar.

    References:
        Sinha et al., CVPR Workshops 2022, section 3.

    Example:
        >>> layers = init_discriminator(8, 16)
        >>> prior_loss(layers, torch.randn(4, 8)).ndim
        0
    """
    logits = discriminate([layer.detach() for layer in layers], x)
    return functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def discriminator_loss(layers: Layers, x: Tensor, noise: Tensor) -> Tensor:
    """Return the discriminator's loss: noise is real, embeddings are fake and get no gradient.

    Args:
        layers: The discriminator.
        x: Embeddings, or chunks of them.
        noise: Uniform vectors.

    Shape:
        - x and noise: ``(n, d)``; output: scalar.

    References:
        Sinha et al., CVPR Workshops 2022, section 3.

    Example:
        >>> discriminator_loss(init_discriminator(8, 16), torch.randn(4, 8), torch.rand(4, 8)).ndim
        0
    """
    real, fake = discriminate(layers, noise), discriminate(layers, x.detach())
    loss = functional.binary_cross_entropy_with_logits
    return loss(real, torch.ones_like(real)) + loss(fake, torch.zeros_like(fake))
