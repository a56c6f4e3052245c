"""What moves the parameters: rates by what is trained, and the optimizer over a method's groups."""

from __future__ import annotations

import torch

from lookalike.methods.base import LearningRates, Method
from lookalike.training.lars import LARS
from lookalike.training.settings import OptimizerSettings, TrainSettings
from lookalike.training.step import trained


def rates_of(settings: OptimizerSettings) -> LearningRates:
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
