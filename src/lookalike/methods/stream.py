"""Random numbers for the pairs of a batch that belong to the images, not to their places in the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core import seeds


class Stream(nn.Module):
    """Draws that depend on the seed, the step and a name; the seed is part of the state, so a loaded method goes on
    as the one that was saved."""

    seed: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(seeds.derive(seed, "stream")))

    def pairs(self, count: int, ids: Tensor, step: int, name: str = "pairs") -> Tensor:
        """Uniform numbers (count, n, n): a number for every ordered pair of images."""
        drawn = torch.rand(count, len(ids), len(ids), generator=self._generator(step, name)).to(ids.device)
        rank = self._rank(ids)
        return drawn[:, rank[:, None], rank[None, :]]

    def shuffled(self, values: Tensor, ids: Tensor, step: int, name: str) -> Tensor:
        """The values of the images dealt out to them anew."""
        order = torch.argsort(ids, stable=True)
        drawn = torch.randperm(len(ids), generator=self._generator(step, name)).to(ids.device)
        return values[order][drawn][self._rank(ids)]

    def uniform(self, shape: tuple[int, ...], step: int, name: str) -> Tensor:
        """Uniform numbers that belong to no image."""
        return torch.rand(shape, generator=self._generator(step, name)).to(self.seed.device)

    def _generator(self, step: int, name: str) -> torch.Generator:
        return seeds.torch_rng(int(self.seed), name, step)

    @staticmethod
    def _rank(ids: Tensor) -> Tensor:
        order = torch.argsort(ids, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(ids), device=ids.device)
        return rank
