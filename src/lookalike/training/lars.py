"""LARS: the step of a matrix has a length in proportion to its own, whatever the size of its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

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
