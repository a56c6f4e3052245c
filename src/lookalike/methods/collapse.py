"""Collapse monitor of CARP: do the prototype assignments still depend on the image?

Assignments collapse long before features do, and neither the loss nor the balance shows it. The main statistic is
exp(I), where I is the mutual information of image and prototype within a block: 1 for every state that ignores the
image. See docs/design/pretraining.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lookalike.losses.carp import Diagnostics

WINDOW = 50  # steps over which a decrease is measured, and before which nothing is reported
RECENT_IMAGES = 2048  # images whose assignments are counted
HEALTHY, STALLED, COLLAPSED, FALLING = range(4)


class RunSize(NamedTuple):
    """Sizes of a run that the advice depends on."""

    prototypes: int
    block_size: int
    batch: int
    steps: int
    teacher: str


def expected_balance(batch: int, block_size: int) -> float:
    """Return the expected balance of random assignments, E[log M − H(counts/N)]."""
    probability = 1 / block_size
    total = 0.0
    for count in range(1, batch + 1):
        ways = math.lgamma(batch + 1) - math.lgamma(count + 1) - math.lgamma(batch - count + 1)
        log_probability = ways + count * math.log(probability) + (batch - count) * math.log1p(-probability)
        total += math.exp(log_probability) * count / batch * math.log(count / batch)
    return math.log(block_size) + block_size * total


def feature_spread(features: Tensor) -> float:
    """Return the mean standard deviation of unit features × √d: about 1 if spread evenly, 0 if all are equal."""
    rows = nn.functional.normalize(features.detach().float(), dim=1)
    return float(rows.std(0, correction=0).mean() * rows.shape[1] ** 0.5)


def mean_cosine(features: Tensor) -> float:
    """Return the mean cosine of all pairs of different rows; near 1 if features have collapsed to one point.

    Example:
        >>> round(mean_cosine(torch.eye(3)), 6)
        0.0
    """
    rows = nn.functional.normalize(features.detach().double(), dim=1)
    count = len(rows)
    return float((rows.sum(0).square().sum() - count) / (count * (count - 1))) if count > 1 else 0.0


def effective_rank(features: Tensor) -> float:
    """Return exp of the entropy of the normalized singular values (Roy and Vetterli 2007).

    Example:
        >>> round(effective_rank(torch.eye(3)), 4)
        3.0
    """
    return entropy_exp(torch.linalg.svdvals(nn.functional.normalize(features.detach().float(), dim=1)))


def entropy_exp(values: Tensor) -> float:
    """Return exp of the entropy of values ≥ 0, as fractions of their sum."""
    fractions = values / values.sum().clamp(min=1e-12)
    return float(torch.exp(-torch.xlogy(fractions, fractions).sum()))


class CollapseMonitor(nn.Module):
    """Monitors assignments during training; its history is in buffers, so that a resumed run warns identically."""

    def __init__(self, size: RunSize) -> None:
        super().__init__()
        self.size = size
        self.random_balance = expected_balance(size.batch, size.block_size)
        self.clusters = nn.Buffer(torch.full((WINDOW,), -1.0, dtype=torch.float64))
        self.agreement = nn.Buffer(torch.full((WINDOW,), -1.0, dtype=torch.float64))
        self.assignments = nn.Buffer(torch.full((RECENT_IMAGES,), -1, dtype=torch.int64))

    def update(self, step: int, consistency: float, balance: float, diagnostics: Diagnostics) -> dict[str, float]:
        """Record a step and return its statistics, to be logged."""
        block_size, log_size = self.size.block_size, math.log(self.size.block_size)
        information, max_balance, max_fraction = (value.item() for value in diagnostics[:3])
        clusters = math.exp(information)
        now = diagnostics.assignments.to(self.assignments)[-RECENT_IMAGES:]
        self.assignments.copy_(torch.cat([self.assignments, now])[-RECENT_IMAGES:])
        state = self._state(step, consistency / log_size, balance / log_size, clusters)
        place, prototypes = step % WINDOW, self.size.prototypes
        self.clusters[place], self.agreement[place] = clusters, consistency
        known = self.assignments[self.assignments >= 0]
        counts = torch.unique(known, return_counts=True)[1].double()
        return {
            "clusters": clusters,
            "consistency": consistency / log_size,
            "balance": balance / log_size,
            "balance_over_random": balance - self.random_balance,
            "effective_prototypes": block_size * math.exp(-balance),
            "effective_prototypes_worst": block_size * math.exp(-max_balance),
            "largest_fraction": max_fraction,
            "in_use": float(len(counts)),
            "in_use_at_random": prototypes * (1 - (1 - 1 / prototypes) ** len(known)),
            "perplexity": entropy_exp(counts),
            "state": state,
        }

    def _state(self, step: int, consistency: float, balance: float, clusters: float) -> int:
        if step <= max(WINDOW, 0.05 * self.size.steps):
            return HEALTHY
        if consistency > 0.95 and balance < 0.02:
            return STALLED
        if clusters < max(2.0, 0.05 * min(self.size.block_size, self.size.batch)):  # they hardly depend on the image
            return COLLAPSED
        before = float(self.clusters[step % WINDOW])
        return FALLING if clusters < 0.5 * before else HEALTHY

    def message(self, state: int, clusters: float, consistency: float, step: int) -> str:
        """Return a warning with the most likely cause and the setting to change."""
        size = self.size
        if state == STALLED:
            return (
                "Nothing is being learned: all prototypes are equally likely for every image. "
                "Raise `optimizer.lr` (and `optimizer.head_lr`)."
            )
        # The next slot of the ring holds the oldest statistics.
        old = self.agreement[(step + 1) % WINDOW]
        fast = bool(consistency < 0.5 * old) and not bool(clusters > 1.1 * self.clusters[(step + 1) % WINDOW])
        if size.block_size > 2 * size.batch:
            what = f"make `method.block_size` smaller: {size.block_size} is more than twice the batch of {size.batch}"
        elif size.teacher != "ema":
            what = f"set `method.teacher` to ema: it is {size.teacher}"
        elif fast:
            what = "lower `optimizer.lr`: views agree more and more, but images are not distinguished better"
        else:
            what = f"raise `sampler.batch_size` (now {size.batch}) or `method.weight`"
        which = "has collapsed" if state == COLLAPSED else "is collapsing"
        return f"The run {which} at step {step:,}: images are assigned to {clusters:.1f} clusters. To fix it, {what}."


STATES = {
    HEALTHY: "healthy",
    STALLED: "stalled: nothing is learned, the learning rate is too low",
    COLLAPSED: "collapsed: assignments hardly depend on the image",
    FALLING: "collapsing: assignments are half as informative as 50 steps before",
}
