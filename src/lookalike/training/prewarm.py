"""The paper's pre-warm-up of a new head: a few epochs in which nothing else moves.

Plain SupCon on the batch, SGD without momentum or decay, the backbone frozen in evaluation mode, so the pooled
features that are cached anyway (the center crop) are all it needs (docs/decisions/0101).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.core.progress import Progress
from lookalike.core.seeds import derive
from lookalike.data.samplers import PKSampler
from lookalike.losses.supcon import SupCon
from lookalike.models.pooling import unit

if TYPE_CHECKING:
    from torch import nn

    from lookalike.training.settings import TrainSettings


def prewarm(head: nn.Module, features: np.ndarray, labels: np.ndarray, settings: TrainSettings) -> None:
    """Train the head on pooled features (rows, d) of labeled images."""
    chosen = settings.sampler
    seed = derive(settings.seed, "prewarm")
    sampler = PKSampler(labels, classes=chosen.classes_per_batch, images=chosen.images_per_class, seed=seed)
    steps = settings.head.prewarm_epochs * sampler.steps_per_epoch
    device = next(head.parameters()).device
    criterion = SupCon()
    optimizer = torch.optim.SGD(head.parameters(), lr=settings.head.prewarm_lr)
    with Progress("Warming the head", steps, shown=True) as bar:
        for step in range(1, steps + 1):
            rows = sampler.batch(step)
            x = unit(torch.from_numpy(np.array(features[rows], np.float32)).to(device))
            loss = criterion(unit(head(x)), torch.from_numpy(labels[rows]).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.advance()
    for parameter in head.parameters():
        parameter.grad = None
