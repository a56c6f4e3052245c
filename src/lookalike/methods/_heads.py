"""Projection heads of methods, initialized from random streams of their own, and access to a model's layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


def linear(in_dim: int, out_dim: int, generator: torch.Generator) -> nn.Linear:
    """Create a linear layer with PyTorch's default initialization, drawn from `generator`."""
    layer = nn.Linear(in_dim, out_dim)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * in_dim**-0.5)
    return layer


class PrototypeHead(nn.Module):
    """Projection head of CARP and DINO: three layers, and prototypes to compare their output with.

    The last layer has neither norm nor activation: the length of its output acts as an inverse temperature.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, prototypes: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [(in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, out_dim)]
        layers: list[nn.Module] = []
        for number, (n, m) in enumerate(sizes):
            layer = nn.Linear(n, m)
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)
            layers += [layer] if number == 2 else [layer, nn.BatchNorm1d(m), nn.GELU()]
        self.projection = nn.Sequential(*layers)
        uniform = torch.rand(prototypes, out_dim, generator=generator)
        self.prototypes = nn.Parameter((2 * uniform - 1) / math.sqrt(out_dim))


class LayerCall(NamedTuple):
    """Input and output of one call of a layer."""

    input: Tensor
    output: Tensor


@contextmanager
def record_calls(layer: nn.Module) -> Iterator[list[LayerCall]]:
    """Record inputs and outputs of a layer within the block, with their gradients."""
    calls: list[LayerCall] = []

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls.append(LayerCall(inputs[0], output))

    handle = layer.register_forward_hook(record)
    try:
        yield calls
    finally:
        handle.remove()


def embedding_layer(model: Any) -> nn.Module:
    """Return the layer of an Embedder whose output is the embedding before normalization."""
    layer: nn.Module = model.pooling if isinstance(model.head, nn.Identity) else model.head
    return layer
