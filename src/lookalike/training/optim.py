"""Optimizers, learning rates and their schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lookalike.methods.base import LearningRates, Method
from lookalike.training.settings import ScheduleSettings, TrainSettings
from lookalike.training.step import trained

TRUST = 0.001


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (LARS) with the exclusions of BYOL.

    For tensors of more than one dimension ``u = (grad + weight_decay * p) * 0.001 * |p| / |.|``, where the ratio is 1
    if either norm is 0. Biases and gains of norm layers are neither scaled nor decayed: ``u = grad``. Then ``m =
    momentum * m + u`` and ``p = p - lr * m``.

    References:
        You et al., "Large Batch Training of Convolutional Networks", arXiv 1708.03888.

    Example:
        >>> from lookalike.training.optim import LARS
        >>> layer = torch.nn.Linear(4, 2)
        >>> optimizer = LARS(layer.parameters(), lr=0.1, weight_decay=1e-6)
        >>> layer(torch.ones(3, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 0.1, *, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                u = p.grad
                if p.ndim > 1:
                    u = u.add(p, alpha=group["weight_decay"])
                    weight_norm, update_norm = torch.linalg.vector_norm(p), torch.linalg.vector_norm(u)
                    positive = (weight_norm > 0) & (update_norm > 0)
                    u = u * torch.where(positive, TRUST * weight_norm / update_norm, 1.0)
                if "moving" not in self.state[p]:
                    self.state[p]["moving"] = torch.zeros_like(p)
                moving = self.state[p]["moving"].mul_(group["momentum"]).add_(u)
                p.sub_(moving, alpha=group["lr"])
        return loss


def make_optimizer(method: Method, settings: TrainSettings) -> torch.optim.Optimizer:
    """Build the optimizer over the parameter groups of a method; they carry their undecayed rate as ``initial``."""
    chosen = settings.optimizer
    rates = LearningRates(chosen.lr, chosen.head_lr or chosen.lr, chosen.loss_lr or 10 * chosen.lr)
    groups = [
        {**group, "params": trainable, "initial": group["lr"]}
        for group in method.param_groups(rates)
        if (trainable := [p for p in group["params"] if p.requires_grad])
    ]
    known = {id(p) for group in groups for p in group["params"]}
    if any(id(p) not in known for p in trained(method)):
        raise ValueError(f"the method {method.name} leaves parameters out of its groups")
    decay, fused = chosen.weight_decay, settings.precision != "f16"  # f16 needs its gradients unscaled before the step
    if chosen.kind == "lars":
        return LARS(groups, momentum=chosen.momentum, weight_decay=decay)
    if chosen.kind == "sgd":
        momentum, nesterov = chosen.momentum, chosen.nesterov
        return torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=fused)
    kind = torch.optim.Adam if chosen.kind == "adam" else torch.optim.AdamW
    return kind(groups, weight_decay=decay, fused=fused)


def lr_factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """Factor of the learning rates at a step: warm-up, then decay.

    A pure function of the step (from 1 to `steps`), so there is nothing to save or to restore.

    Example:
        >>> from lookalike.training.optim import lr_factor
        >>> from lookalike.training.settings import ScheduleSettings
        >>> [lr_factor(step, 10, ScheduleSettings(warmup_steps=4)) for step in (1, 2, 4, 5)]
        [0.25, 0.5, 1.0, 1.0]
    """
    warmup, start = schedule.warmup_steps, schedule.warmup_start_ratio
    if step <= warmup:
        return step / warmup if start is None else start + (1 - start) * (step - 1) / warmup
    if schedule.kind == "constant":
        return 1.0
    past = step - warmup - 1
    if schedule.kind == "step":
        return schedule.gamma ** (past // schedule.step_size)
    if schedule.kind == "inverse_steps":
        return float((1 + 1e-3 * past) ** -0.75)
    progress = past / max(1, steps - warmup)
    if schedule.kind == "inverse":
        return float((1 + 10 * progress) ** -0.75)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
