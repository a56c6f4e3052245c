"""CARP's two terms and their gradient on whole blocks of logits: what both forms of the loss in `carp.py` are made of.

A block needs all rows but only its own columns, so any number of whole blocks can be worked off by themselves. The
gradient has a closed form (docs/decisions/0180) and is taken in the same pass; nothing is kept for a second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PairReduction = Literal["mean", "sum"]
MeanOver = Literal["both", "student"]
FAR = 1e-20
"""Rows whose ⟨s, t⟩ is smaller are taken from the logits again, in log space: their product has lost its digits."""


@dataclass(frozen=True)
class Rule:
    """How the two terms are weighed; see `CARPLoss`."""

    pairs: PairReduction = "mean"
    over: MeanOver = "both"
    weight: float = 1.0


@dataclass(frozen=True)
class Scale:
    """Numbers that are the same for every block of a step."""

    blocks: int
    """All blocks of the partition."""
    rows: float
    """Images a view; with several processes the mean over them."""
    processes: int
    total: Callable[[Tensor], Tensor]
    """The sum over the processes."""


class Scratch:
    """Memory that every part of a step uses again: asking the system for it each time takes longer than the sums."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.held = like, dict[str, Tensor]()

    def take(self, name: str, *shape: int) -> Tensor:
        """Of any content."""
        count = math.prod(shape)
        if name not in self.held or self.held[name].numel() < count:
            self.held[name] = self.like.new_empty(count)
        return self.held[name][:count].view(shape)


@dataclass(frozen=True)
class Worked:
    """What some blocks gave: sums over them."""

    consistency: Tensor
    balance: Tensor
    divergence: Tensor
    """KL(p̄ ‖ uniform) of every block."""
    share: Tensor
    """The largest p̄ of any prototype."""
    information: Tensor | None
    """Sum over the blocks of H(p̄ˢ) − mean H(s), students only; None where not asked for."""


def pairs_of(views: int, others: int) -> list[tuple[int, int]]:
    """(student view, teacher view) that are compared: all but a crop with itself."""
    return [(v, w) for v in range(views) for w in range(others) if v != w]


def work(
    a: Tensor,
    b: Tensor,
    rule: Rule,
    scale: Scale,
    scratch: Scratch,
    *,
    student: bool,
    teacher: bool,
    information: bool = False,
) -> Worked:
    """Both terms of blocks of logits, a (V, N, J, M) and b (W, N, J, M).

    Where `student` (`teacher`) asks for it, the gradient takes the place of a (b).
    """
    views, others = len(a), len(b)
    chosen = pairs_of(views, others)
    each = 1.0 / (scale.rows * scale.blocks * (len(chosen) if rule.pairs == "mean" else 1))
    s = torch.softmax(a, -1, out=scratch.take("s", *a.shape))
    t = torch.softmax(b, -1, out=scratch.take("t", *b.shape))
    mean, balance, students = _balance(s, t, rule, scale)
    dots = torch.stack([_dot(s[v], t[w], scratch) for v, w in chosen])
    far = dots < FAR
    consistency = -dots.masked_fill(far, 1.0).log().sum(dtype=torch.float64)
    apart = {}
    if far.any():
        for pair, rows in zip(chosen, far, strict=True):
            v, w = pair
            logs, r = _far_apart((a[v][rows], s[v][rows]), (b[w][rows], t[w][rows]))
            consistency += logs
            apart[pair] = rows, each * r
    told = None
    if information:
        own = students / (views * scale.rows * scale.processes)
        # H(s) = log Σ exp(a) − ⟨s, a⟩, the mean over the rows of all processes.
        entropies = [_log_sum(x, p) - _dot(p, x, scratch) for x, p in zip(a, s, strict=True)]
        each_block = scale.total(torch.stack(entropies).sum((0, 1)))
        told = -torch.xlogy(own, own).sum(dtype=torch.float64)
        told -= each_block.sum(dtype=torch.float64) / (views * scale.rows * scale.processes)
    both = rule.over == "both"
    gained = rule.weight / (scale.blocks * scale.rows * (views + others if both else views))
    level = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
    pulls = each / dots.masked_fill(far, torch.inf)
    if student:
        _gradient(a, s, t, _partners(chosen, pulls, views), gained * level, each, scratch)
    if teacher:
        swapped = [(w, v) for v, w in chosen]
        _gradient(b, t, s, _partners(swapped, pulls, others), (gained if both else 0.0) * level, each, scratch)
    for (v, w), (rows, r) in apart.items():
        if student:
            a[v][rows] -= r
        if teacher:
            b[w][rows] -= r
    shares = balance.sum(dtype=torch.float64) / scale.blocks
    return Worked(consistency * each, shares, balance, mean.max(), told)


def _dot(x: Tensor, y: Tensor, scratch: Scratch) -> Tensor:
    """⟨x, y⟩ over the last axis."""
    return torch.mul(x, y, out=scratch.take("product", *x.shape)).sum(-1)


def _partners(chosen: list[tuple[int, int]], pulls: Tensor, views: int) -> list[list[tuple[int, Tensor]]]:
    """For each view of a side: the other side's views it is compared with, and how strongly, (N, J)."""
    return [[(w, pull) for (u, w), pull in zip(chosen, pulls, strict=True) if u == v] for v in range(views)]


def _gradient(
    out: Tensor,
    p: Tensor,
    q: Tensor,
    partners: list[list[tuple[int, Tensor]]],
    level: Tensor,
    each: float,
    scratch: Scratch,
) -> None:
    """Of one side: p ∘ (Σ (each − q·pull) + level − ⟨p, level⟩), where p ∘ q·pull is each·r."""
    for own, found, compared in zip(p, out, partners, strict=True):
        inner = _dot(own, level.expand_as(own), scratch)
        factor = scratch.take("product", *own.shape).copy_(each * len(compared) - inner[..., None])
        factor += level
        for view, pull in compared:
            factor.addcmul_(q[view], pull[..., None], value=-1)
        torch.mul(factor, own, out=found)


def _far_apart(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of −log⟨s, t⟩ over rows that are too far apart for it, and their r: from logits and softmax of each."""
    both = x[0] + y[0]
    r = torch.softmax(both, -1)
    return (_log_sum(*x) + _log_sum(*y) - _log_sum(both, r)).sum(dtype=torch.float64), r


def _log_sum(logits: Tensor, probabilities: Tensor) -> Tensor:
    """log Σ exp over the last axis out of the softmax that is there already: exact at any size of the logits."""
    return logits.amax(-1) - probabilities.amax(-1).log()


def _balance(s: Tensor, t: Tensor, rule: Rule, scale: Scale) -> tuple[Tensor, Tensor, Tensor]:
    """p̄ (J, M), its KL from uniform by block, and the students' sums."""
    students = s.sum((0, 1))
    both = rule.over == "both"
    sums = scale.total(torch.stack([students, t.sum((0, 1))]) if both else students[None])
    rows = scale.rows * scale.processes * (len(s) + len(t) if both else len(s))
    mean = sums.sum(0) / rows
    return mean, math.log(s.shape[-1]) + torch.xlogy(mean, mean).sum(-1), sums[0]
