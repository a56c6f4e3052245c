"""Helpers of methods: heads, access to layers, random numbers of images, momentum teachers, the library lightly."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.imports import prepare_torchvision


class RandomStream(nn.Module):
    """Random numbers that belong to the images of a batch, not to their places in it.

    They depend on seed, step and name only; the seed is part of the state, so that a loaded method continues as the
    saved one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = nn.Buffer(torch.tensor(seeds.derive(seed, "stream")))

    def pairs(self, count: int, ids: Tensor, step: int, name: str = "pairs") -> Tensor:
        """Return uniform numbers (count, n, n), one for every ordered pair of images."""
        uniform = torch.rand(count, len(ids), len(ids), generator=self._generator(step, name)).to(ids.device)
        rank = self._rank(ids)
        return uniform[:, rank[:, None], rank[None, :]]

    def shuffled(self, values: Tensor, ids: Tensor, step: int, name: str) -> Tensor:
        """Return the values of the images, permuted among them."""
        order = torch.argsort(ids, stable=True)
        permutation = torch.randperm(len(ids), generator=self._generator(step, name)).to(ids.device)
        return values[order][permutation][self._rank(ids)]

    def uniform(self, shape: tuple[int, ...], step: int, name: str) -> Tensor:
        """Return uniform numbers that belong to no image."""
        return torch.rand(shape, generator=self._generator(step, name)).to(self.seed.device)

    def _generator(self, step: int, name: str) -> torch.Generator:
        return seeds.torch_rng(int(self.seed), name, step)

    @staticmethod
    def _rank(ids: Tensor) -> Tensor:
        order = torch.argsort(ids, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(ids), device=ids.device)
        return rank


def cosine_momentum(start: float, step: int, steps: int) -> float:
    """Return η_j = 1 − (1 − η₀)(1 + cos πj/J)/2 for the j-th step, counted from 0 (BYOL, section 3.2)."""
    return 1 - (1 - start) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2


@torch.no_grad()
def update_teacher(teacher: Sequence[nn.Module], student: Sequence[nn.Module], momentum: float) -> None:
    """Update ξ ← η ξ + (1 − η) θ, parameters only: each network keeps its own batch-norm statistics."""
    for slow, fast in zip(teacher, student, strict=True):
        for target, source in zip(slow.parameters(), fast.parameters(), strict=True):
            target.lerp_(source, 1 - momentum)


def import_lightly(module: str, name: str, method: str) -> Any:
    """Return `lightly.MODULE.NAME`, or raise with instructions for installing lightly."""
    prepare_torchvision()
    try:
        return getattr(importlib.import_module(f"lightly.{module}"), name)
    except ImportError as error:
        raise LookalikeError(
            f"The method `{method}` needs lightly: run pip install 'lookalike[ssl]', or use carp or moco."
        ) from error


def linear(in_dim: int, out_dim: int, generator: torch.Generator) -> nn.Linear:
    """Create a linear layer with PyTorch's default initialization, drawn from `generator`."""
    layer = nn.Linear(in_dim, out_dim)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * in_dim**-0.5)
    return layer


def two_layers(in_dim: int, hidden_dim: int, out_dim: int, generator: torch.Generator) -> nn.Sequential:
    """Create a network with one hidden layer, drawn from `generator`."""
    return nn.Sequential(linear(in_dim, hidden_dim, generator), nn.ReLU(), linear(hidden_dim, out_dim, generator))


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
