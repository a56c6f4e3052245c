"""Optimizers, learning rates and their schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lookalike.methods.base import LearningRates, Method
from lookalike.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from lookalike.training.step import trained

TRUST = 0.001


class LARS(torch.optim.Optimizer):
    """You et al., "Large Batch Training of Convolutional Networks" (arXiv 1708.03888), with the exclusions of BYOL.

    Tensors of more than one dimension: u = (gradient + decay·p) · 0.001·‖p‖/‖·‖, the factor 1 where either length is
    0. Biases and the gains of norm layers: u = gradient. Then m ← momentum·m + u and p ← p − rate·m.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 0.1, *, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = None
        if closure is not None:
            with torch.enable_grad():
                found = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                u = p.grad
                if p.ndim > 1:
                    u = u.add(p, alpha=group["weight_decay"])
                    long, steep = torch.linalg.vector_norm(p), torch.linalg.vector_norm(u)
                    u = u * torch.where((long > 0) & (steep > 0), TRUST * long / steep, torch.ones_like(long))
                state = self.state[p]
                if "moving" not in state:
                    state["moving"] = torch.zeros_like(p)
                state["moving"].mul_(group["momentum"]).add_(u)
                p.sub_(state["moving"], alpha=group["lr"])
        return found


def learning_rates(settings: OptimizerSettings) -> LearningRates:
    return LearningRates(settings.lr, settings.head_lr or settings.lr, settings.loss_lr or 10 * settings.lr)


def make_optimizer(method: Method, rates: LearningRates, settings: TrainSettings) -> torch.optim.Optimizer:
    groups = []
    for group in method.param_groups(rates):
        kept = [p for p in group["params"] if p.requires_grad]
        if kept:
            groups.append({**group, "params": kept, "initial": group["lr"]})
    known = {id(p) for group in groups for p in group["params"]}
    if any(id(p) not in known for p in trained(method)):
        raise ValueError(f"the method {method.name} leaves parameters out of its groups")
    chosen = settings.optimizer
    # The fused step is several times faster; f16 needs its gradients unscaled before it.
    fused = settings.precision != "f16"
    if chosen.kind == "lars":
        return LARS(groups, momentum=chosen.momentum, weight_decay=chosen.weight_decay)
    if chosen.kind == "sgd":
        return torch.optim.SGD(groups, momentum=chosen.momentum, weight_decay=chosen.weight_decay, fused=fused)
    return torch.optim.AdamW(groups, weight_decay=chosen.weight_decay, fused=fused)


def lr_factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """What the rates are multiplied by at `step` (1 … steps)."""
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    past = step - schedule.warmup_steps - 1
    if schedule.kind == "step":
        return schedule.gamma ** (past // schedule.step_size)
    share = past / max(1, steps - schedule.warmup_steps)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * share))
