"""What a step learns from: the frame of every method, and the forward passes that processes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lookalike.core import distributed

if TYPE_CHECKING:
    from lookalike.adaptation.adapter import Adapter
    from lookalike.adaptation.network import Network

Parts = tuple[Tensor, dict[str, float]]
View = Callable[[np.ndarray], Tensor]


class Objective(ABC):
    """`loss` of the target images in `rows`; `after` is called when the step is done."""

    learns = "all"

    def __init__(self, adapter: Adapter) -> None:
        self.a = adapter

    def begin(self) -> None:  # noqa: B027 - most have nothing to do
        """Before the first step of this process; must do nothing where a state was set."""

    @abstractmethod
    def loss(self, rows: np.ndarray, epoch: int) -> Parts: ...

    def after(self, rows: np.ndarray, epoch: int) -> None:  # noqa: B027 - most have nothing to do
        """The step is done."""

    def end_of_epoch(self) -> None:  # noqa: B027 - most have nothing to do
        """Every image was seen once more."""

    def state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to do
        """Go on from what `state` gave."""

    def passed(self, view: View, rows: np.ndarray, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits of these images under a view. Of several processes each computes its share, and all
        have all of them: what is made of them is then the same everywhere, and the same as with one process."""
        shared = len(rows) >= distributed.world()
        mine = rows[distributed.share(len(rows))] if shared else rows
        features, logits = (network or self.a.network)(view(mine))
        if not shared:
            return features, logits
        return distributed.all_gather(features, gradient=True), distributed.all_gather(logits, gradient=True)

    def forward(self, view: View, rows: np.ndarray) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """With gradient, and with the statistics the settings ask for."""
        with self.a.network.learning_statistics(self.a.settings.batch_norm) as seen:
            features, logits = self.passed(view, rows)
        return features, logits, seen

    def all_centers(self) -> tuple[Tensor, Tensor]:
        """Features and logits of every target image as the finished model would see it."""
        count = np.arange(len(self.a.ids))
        with torch.no_grad():
            parts = [self.passed(self.a.supply.center, part) for part in np.split(count, count[256::256])]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
