"""Mean and standard deviation per dimension, in float64 and in main memory.

They are d numbers each, so the precision costs nothing, and a step that keeps a gain of 0.9998 needs it:
in half precision that gain rounds to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike.core.device import CPU

TINY = 1e-6
"""A dimension that spreads less than this is shifted but not scaled (docs/decisions/0092)."""


class Moments(NamedTuple):
    mean: Tensor
    std: Tensor


def exact(rows: Tensor) -> Tensor:
    """The same numbers as float64 in main memory."""
    return rows.detach().to(CPU, torch.float64)


def spread(mean: Tensor, square: Tensor, count: int, correction: int) -> Tensor:
    """Standard deviation from E[x] and E[x²]."""
    return ((square - mean * mean).clamp_min(0.0) * (count / max(count - correction, 1))).sqrt()


def moments(rows: Tensor, correction: int = 0) -> Moments:
    """Of at least two rows (n, d)."""
    rows = exact(rows)
    mean = rows.mean(0)
    variance = (rows - mean).square_().sum(0) / max(len(rows) - correction, 1)
    return Moments(mean, variance.sqrt())


def understatement(labels: Tensor, correlation: float) -> float:
    """E[s]/σ of a batch whose images share classes: √(1 − (1 + (k−1)ρ)/B), k images a class.

    For classes of different sizes k is the size of the class that an image of the batch finds itself in,
    on average.
    """
    size = len(labels)
    together = float(torch.unique(labels, return_counts=True)[1].double().square().sum()) / size
    return max(1.0 - (1.0 + (together - 1.0) * correlation) / size, TINY) ** 0.5
