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
    """Layer-wise adaptive rate scaling (LARS) with the exclusions of BYOL.

    For tensors of more than one dimension ``u = (grad + weight_decay * p) * 0.001 * |p| / |.|``, where the ratio is 1
    if either norm is 0. Biases and gains of norm layers are neither scaled nor decayed: ``u = grad``. Then ``m =
    momentum * m + u`` and ``p = p - lr * m``.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        momentum: Momentum factor.
        weight_decay: Weight decay of matrices.

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
                    u = u * torch.where(
                        (weight_norm > 0) & (update_norm > 0),
                        TRUST * weight_norm / update_norm,
                        torch.ones_like(weight_norm),
                    )
                state = self.state[p]
                if "moving" not in state:
                    state["moving"] = torch.zeros_like(p)
                state["moving"].mul_(group["momentum"]).add_(u)
                p.sub_(state["moving"], alpha=group["lr"])
        return loss


def learning_rates(settings: OptimizerSettings) -> LearningRates:
    """Learning rates of backbone, head and the method's own parameters.

    The head defaults to the backbone's learning rate, the method's own parameters to ten times it.
    """
    return LearningRates(settings.lr, settings.head_lr or settings.lr, settings.loss_lr or 10 * settings.lr)


def make_optimizer(method: Method, rates: LearningRates, settings: TrainSettings) -> torch.optim.Optimizer:
    """Build the optimizer over the parameter groups of a method.

    Args:
        method: The training method; its frozen parameters are left out.
        rates: Learning rates by group.
        settings: Settings of the run; `optimizer` and `precision` are used.

    Returns:
        An optimizer whose groups carry their undecayed learning rate as ``initial``.

    Raises:
        ValueError: If the groups of the method leave out a trainable parameter.
    """
    groups = []
    for group in method.param_groups(rates):
        trainable = [p for p in group["params"] if p.requires_grad]
        if trainable:
            groups.append({**group, "params": trainable, "initial": group["lr"]})
    known = {id(p) for group in groups for p in group["params"]}
    if any(id(p) not in known for p in trained(method)):
        raise ValueError(f"the method {method.name} leaves parameters out of its groups")
    chosen = settings.optimizer
    # The fused step is several times faster; f16 needs its gradients unscaled before it.
    fused = settings.precision != "f16"
    if chosen.kind == "lars":
        return LARS(groups, momentum=chosen.momentum, weight_decay=chosen.weight_decay)
    if chosen.kind == "sgd":
        return torch.optim.SGD(
            groups,
            momentum=chosen.momentum,
            nesterov=chosen.nesterov,
            weight_decay=chosen.weight_decay,
            fused=fused,
        )
    kind = torch.optim.Adam if chosen.kind == "adam" else torch.optim.AdamW
    return kind(groups, weight_decay=chosen.weight_decay, fused=fused)


def lr_factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """Factor of the learning rates at a step: warm-up, then decay.

    A pure function of the step, so there is nothing to save or to restore.

    Args:
        step: The current step, from 1 to `steps`.
        steps: Total number of steps.
        schedule: Warm-up and decay.

    Example:
        >>> from lookalike.training.optim import lr_factor
        >>> from lookalike.training.settings import ScheduleSettings
        >>> [lr_factor(step, 10, ScheduleSettings(warmup_steps=4)) for step in (1, 2, 4, 5)]
        [0.25, 0.5, 1.0, 1.0]
    """
    if step <= schedule.warmup_steps:
        start = schedule.warmup_start_ratio
        return (
            step / schedule.warmup_steps if start is None else start + (1 - start) * (step - 1) / schedule.warmup_steps
        )
    if schedule.kind == "constant":
        return 1.0
    past = step - schedule.warmup_steps - 1
    if schedule.kind == "step":
        return schedule.gamma ** (past // schedule.step_size)
    if schedule.kind == "inverse_steps":
        return float((1 + 1e-3 * past) ** -0.75)
    progress = past / max(1, steps - schedule.warmup_steps)
    if schedule.kind == "inverse":
        return float((1 + 10 * progress) ** -0.75)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
