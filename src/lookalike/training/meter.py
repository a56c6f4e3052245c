"""The drift meter: how far a step moves the features, and how old a memory's rows are.

Feature drift (eq. 5 of "Adaptive Cross Batch Normalization") is the distance between the embeddings of the same
pixels before and after a step of the optimizer, in evaluation mode. Staleness is the distance between a stored
row and the same image embedded now. A stored row came from a random view and is compared with the center
crop, so the distance of those two under one model, the floor, stands beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lookalike.methods.base import MemoryRows

ROWS = 64  # stored rows that are looked at in one reading


def feature_drift(before: Tensor, after: Tensor) -> dict[str, float]:
    """Mean and largest movement over the batch."""
    moved = torch.linalg.vector_norm(after - before, dim=1)
    return {"drift/mean": moved.mean().item(), "drift/max": moved.max().item()}


def staleness(stored: MemoryRows, now: Tensor, views: Tensor, centers: Tensor) -> dict[str, float]:
    """`now`: the stored images embedded now; `views` and `centers`: a batch's random views and center crops."""
    normalize = torch.nn.functional.normalize

    def distance(a: Tensor, b: Tensor) -> float:
        return torch.linalg.vector_norm(normalize(a.float(), dim=1) - b, dim=1).mean().item()

    return {
        "memory/stale": distance(stored.adapted, now),
        "memory/stale_original": distance(stored.original, now),
        "memory/floor": distance(views, centers),
    }
