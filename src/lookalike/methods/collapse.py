"""The collapse guard: is what the prototypes say about an image still something about the image?

Assignments collapse long before features do, and neither the loss nor the balance shows it (docs/decisions/0182). The
main reading is exp(I), I the mutual information of image and prototype inside a block: 1 for every state that ignores
the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SPAN = 50
"""Steps over which a fall counts, and before which nothing is said."""
RECENT = 2048
"""Images whose prototypes are counted."""
HEALTHY, STALLED, COLLAPSED, FALLING = range(4)


@dataclass(frozen=True)
class Sizes:
    """What the advice depends on."""

    prototypes: int
    block: int
    batch: int
    steps: int
    teacher: str


def expected_balance(batch: int, block: int) -> float:
    """B of images that choose a prototype of the block at random, one each: E[log M − H(counts/N)]."""
    chance = 1 / block
    total = 0.0
    for count in range(1, batch + 1):
        log_odds = (
            math.lgamma(batch + 1)
            - math.lgamma(count + 1)
            - math.lgamma(batch - count + 1)
            + count * math.log(chance)
            + (batch - count) * math.log1p(-chance)
        )
        total += math.exp(log_odds) * count / batch * math.log(count / batch)
    return math.log(block) + block * total


def spread(features: Tensor) -> float:
    """Mean deviation of unit features × √d: about 1 when they point everywhere, 0 when to one point."""
    rows = nn.functional.normalize(features.detach().float(), dim=1)
    return float(rows.std(0, correction=0).mean() * rows.shape[1] ** 0.5)


def mean_cosine(features: Tensor) -> float:
    """Of all pairs of different rows: near 1, everything has fallen onto one point."""
    rows = nn.functional.normalize(features.detach().double(), dim=1)
    count = len(rows)
    return float((rows.sum(0).square().sum() - count) / (count * (count - 1))) if count > 1 else 0.0


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the singular values' shares."""
    values = torch.linalg.svdvals(nn.functional.normalize(features.detach().float(), dim=1))
    shares = values / values.sum().clamp(min=1e-12)
    return float(torch.exp(-torch.xlogy(shares, shares).sum()))


class Guard(nn.Module):
    """Remembers what it needs, as buffers, so that a resumed run is warned as an unbroken one."""

    clusters: Tensor
    agreement: Tensor
    chosen: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.random = expected_balance(sizes.batch, sizes.block)
        self.register_buffer("clusters", torch.full((SPAN,), -1.0, dtype=torch.float64))
        self.register_buffer("agreement", torch.full((SPAN,), -1.0, dtype=torch.float64))
        self.register_buffer("chosen", torch.full((RECENT,), -1, dtype=torch.int64))

    def read(
        self,
        step: int,
        consistency: float,
        balance: float,
        information: float,
        worst: float,
        share: float,
        used: Tensor,
    ) -> dict[str, float]:
        """The readings of a step, to be logged."""
        size, whole = self.sizes.block, math.log(self.sizes.block)
        clusters = math.exp(information)
        now = used.to(self.chosen)[-RECENT:]
        self.chosen.copy_(torch.cat([self.chosen, now])[-RECENT:])
        state = self._state(step, consistency / whole, balance / whole, clusters)
        place = step % SPAN
        self.clusters[place], self.agreement[place] = clusters, consistency
        return {
            "clusters": clusters,
            "consistency": consistency / whole,
            "balance": balance / whole,
            "balance_over_random": balance - self.random,
            "effective_prototypes": size * math.exp(-balance),
            "effective_prototypes_worst": size * math.exp(-worst),
            "largest_share": share,
            **self._counted(),
            "state": state,
        }

    def _counted(self) -> dict[str, float]:
        known = self.chosen[self.chosen >= 0]
        counts = torch.unique(known, return_counts=True)[1].double()
        shares = counts / counts.sum()
        many = self.sizes.prototypes
        return {
            "in_use": float(len(counts)),
            "in_use_at_random": many * (1 - (1 - 1 / many) ** len(known)),
            "perplexity": float(torch.exp(-torch.xlogy(shares, shares).sum())),
        }

    @property
    def floor(self) -> float:
        """exp(I) below this says that next to nothing of the image is left."""
        return max(2.0, 0.05 * min(self.sizes.block, self.sizes.batch))

    def _state(self, step: int, consistency: float, balance: float, clusters: float) -> int:
        if step <= max(SPAN, 0.05 * self.sizes.steps):
            return HEALTHY
        if consistency > 0.95 and balance < 0.02:
            return STALLED
        if clusters < self.floor:
            return COLLAPSED
        before = float(self.clusters[step % SPAN])
        return FALLING if clusters < 0.5 * before else HEALTHY

    def sentence(self, state: int, clusters: float, consistency: float, step: int) -> str:
        """What is wrong and which setting to change; the causes in the order in which they are likely."""
        sizes = self.sizes
        if state == STALLED:
            return (
                "Nothing is being learned: all prototypes are as likely for every image. "
                "Raise `optimizer.lr` (and `optimizer.head_lr`)."
            )
        # The oldest of the last readings stands where this step's was just put.
        old = self.agreement[(step + 1) % SPAN]
        fast = bool(consistency < 0.5 * old) and not bool(clusters > 1.1 * self.clusters[(step + 1) % SPAN])
        if sizes.block > 2 * sizes.batch:
            what = f"make `method.block` smaller: {sizes.block} is more than twice the batch of {sizes.batch}"
        elif sizes.teacher != "ema":
            what = f"set `method.teacher` to ema: it is {sizes.teacher}"
        elif fast:
            what = "lower `optimizer.lr`: views agree ever more and tell images apart no better"
        else:
            what = f"raise `sampler.batch_size` (now {sizes.batch}) or `method.weight`"
        which = "has collapsed" if state == COLLAPSED else "is collapsing"
        return f"The run {which} at step {step:,}: images choose among {clusters:.1f} clusters. To mend it, {what}."


STATES = {
    HEALTHY: "healthy",
    STALLED: "stalled: nothing is learned, the rate is too low",
    COLLAPSED: "collapsed: the prototypes say next to nothing about an image",
    FALLING: "collapsing: images are told apart half as well as 50 steps before",
}
