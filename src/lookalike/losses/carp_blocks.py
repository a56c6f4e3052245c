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
    """Pictures a view; with several processes the mean over them."""
    processes: int
    total: Callable[[Tensor], Tensor]
    """The sum over the processes."""


@dataclass
class Worked:
    """What some blocks gave: sums over them, and gradients of the loss (None where not asked for)."""

    consistency: Tensor
    balance: Tensor
    student: Tensor | None
    teacher: Tensor | None
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
    a: Tensor, b: Tensor, rule: Rule, scale: Scale, *, student: bool, teacher: bool, information: bool = False
) -> Worked:
    """Both terms of blocks of logits, a (V, N, J, M) and b (W, N, J, M); `student`, `teacher`: whose gradient."""
    views, others = len(a), len(b)
    chosen = pairs_of(views, others)
    each = 1.0 / (scale.rows * scale.blocks * (len(chosen) if rule.pairs == "mean" else 1))
    s, t = torch.softmax(a, -1), torch.softmax(b, -1)
    log_s, log_t = _log_sum(a, s), _log_sum(b, t)
    mean, balance, students = _balance(s, t, rule, scale)
    level = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
    both_sides = rule.over == "both"
    gained = rule.weight / (scale.blocks * scale.rows * (views + others if both_sides else views))
    gradients = [
        _own(p, level, share, each * _partners(chosen, side, p)) if asked else None
        for side, (p, asked, share) in enumerate(((s, student, gained), (t, teacher, gained if both_sides else 0.0)))
    ]
    consistency = torch.zeros((), dtype=torch.float64, device=a.device)
    for v, w in chosen:
        both = a[v] + b[w]
        r = torch.softmax(both, -1)
        consistency += (log_s[v] + log_t[w] - _log_sum(both, r)).sum(dtype=torch.float64)
        for gradient, place in ((gradients[0], v), (gradients[1], w)):
            if gradient is not None:
                gradient[place].sub_(r, alpha=each)
    told = None
    if information:
        own = students / (views * scale.rows * scale.processes)
        # H(s) = log Σ exp(a) − ⟨s, a⟩, the mean over the rows of all processes.
        each_block = scale.total(log_s.sum((0, 1)) - torch.einsum("vnjm,vnjm->j", s, a))
        told = -torch.xlogy(own, own).sum(dtype=torch.float64)
        told -= each_block.sum(dtype=torch.float64) / (views * scale.rows * scale.processes)
    shares = balance.sum(dtype=torch.float64) / scale.blocks
    return Worked(consistency * each, shares, gradients[0], gradients[1], balance, mean.max(), told)


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


def _partners(chosen: list[tuple[int, int]], side: int, p: Tensor) -> Tensor:
    """In how many pairs each view of a side stands."""
    return p.new_tensor([sum(pair[side] == view for pair in chosen) for view in range(len(p))]).view(-1, 1, 1, 1)


def _own(p: Tensor, level: Tensor, gained: float, each: Tensor) -> Tensor:
    """p ∘ (each + gained·(log p̄ − ⟨p, log p̄⟩)): the balance's gradient, and the part of consistency's without r."""
    flat = p.flatten(0, 1)
    inner = torch.einsum("njm,jm->nj", flat, level).view(*p.shape[:3], 1)
    factor = (each - gained * inner) + gained * level
    return factor.mul_(p)
