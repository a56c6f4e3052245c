"""The gradient of one step: the loss is always that of the joint batch.

Embeddings are small, so the loss can be computed on all of them at once even if the images are embedded in
micro-batches or by several processes: embed everything without gradient, compute the joint loss with the embeddings as
leaves, then embed each micro-batch again and backpropagate its slice of the leaves' gradient. The result is exactly the
gradient of the joint loss (docs/design/training.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core import distributed
from lookalike.core.device import CPU
from lookalike.methods.base import Batch, Method
from lookalike.training.batchnorm import preserve_statistics


def joint_gradient(
    method: Method,
    mine: Batch,
    joint: Batch,
    accumulate: int,
    *,
    autocast: Callable[[], AbstractContextManager[Any]],
    backward: Callable[[Tensor], None],
) -> Tensor:
    """Add the gradient of the joint loss to the parameters, the same in every process.

    Args:
        method: The training method.
        mine: The images of this process.
        joint: Labels and ids of the images of all processes.
        accumulate: Number of micro-batches that `mine` is split into.
        autocast: Context manager of the forward pass.
        backward: Backpropagates the loss, as `Fabric.backward`.

    Returns:
        The joint loss, detached.
    """
    if distributed.world_size() == 1 and accumulate == 1:
        loss = method.joint_loss(_embed(method, mine, autocast), replace(joint, views=()))
        backward(loss)
        method.after_backward()
        return loss.detach()
    parts = [mine.part(distributed.rank_slice(len(mine), n, accumulate)) for n in range(accumulate)]
    parts = [part for part in parts if len(part)]
    device = joint.ids.device
    states, outputs = [], []
    if len(parts) == 1:
        outputs = [_embed(method, parts[0], autocast)]
    else:
        with torch.no_grad(), preserve_statistics(method, method.context.model):
            for part in parts:
                states.append((torch.get_rng_state(), device_random_state(device)))
                outputs.append(_embed(method, part, autocast))
    leaves = {}
    for name in outputs[0]:
        whole = distributed.all_gather(torch.cat([out[name].detach() for out in outputs]))
        leaves[name] = whole.requires_grad_(whole.is_floating_point())
    loss = method.joint_loss(leaves, replace(joint, views=()))
    backward(loss)
    parameters = trained(method)
    if distributed.world_size() > 1:
        # What the loss alone gave is complete on every process; the sum below must count it once.
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(distributed.world_size())
    method.after_backward()
    start = distributed.rank_slice(len(joint)).start
    for number, part in enumerate(parts):
        if len(parts) > 1:  # once more, with the same random numbers (dropout)
            torch.set_rng_state(states[number][0])
            set_device_random_state(states[number][1], device)
        out = outputs[0] if len(parts) == 1 else _embed(method, part, autocast)
        rows = slice(start, start + len(part))
        start += len(part)
        moving = {n: leaf.grad[rows] for n, leaf in leaves.items() if leaf.grad is not None and out[n].requires_grad}
        if moving:
            torch.autograd.backward([out[n] for n in moving], list(moving.values()))
    sum_gradients(parameters)
    return loss.detach()


def trained(method: Method) -> list[nn.Parameter]:
    """All trainable parameters of model and method, in a fixed order."""
    both = [*method.context.model.parameters(), *method.parameters()]
    return [p for p in both if p.requires_grad]


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients over all processes, in one message."""
    if distributed.world_size() == 1:
        return
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:  # another process may have one
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    distributed.sum_in_place(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _embed(method: Method, batch: Batch, autocast: Callable[[], AbstractContextManager[Any]]) -> dict[str, Tensor]:
    with autocast():
        out = method.embed(batch)
    return {name: rows.float() if rows.is_floating_point() else rows for name, rows in out.items()}


def device_random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own random generator; None for the CPU, whose generator is torch's global one."""
    return None if device.type == CPU else torch.get_device_module(device).get_rng_state(device)


def set_device_random_state(state: Tensor | None, device: torch.device) -> None:
    """Restore what `device_random_state` returned."""
    if state is not None:
        torch.get_device_module(device).set_rng_state(state, device)
