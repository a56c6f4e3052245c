"""Batch-norm statistics: kept, those of the batch, or those of the joint batch over all processes.

Frozen is the default: with small batches the statistics of a batch and the running ones disagree so much
that training never recovers (docs/decisions/0051).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lookalike.core import processes


def layers(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def gather_statistics(model: nn.Module) -> None:
    """From now on batch-norm layers in training mode use the moments of all processes' pictures together.

    torch's SyncBatchNorm takes no tensors that live in main memory. The layers keep their class and their
    state; only the call is exchanged, on the object, so that a saved model knows nothing of it.
    """
    for layer in layers(model):
        vars(layer)["forward"] = _Joint(layer)


class _Joint:
    def __init__(self, layer: _BatchNorm) -> None:
        self.layer, self.usual = layer, layer.forward

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not layer.training:
            return self.usual(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count = x.new_tensor([x.numel() // x.shape[1]])
        # Two passes, mean first: the one-pass formula loses digits when the mean is large.
        total = processes.all_reduce(count)
        mean = processes.all_reduce(x.sum(axes), gradient=True) / total
        centred = x - mean.view(shape)
        variance = processes.all_reduce(centred.square().sum(axes), gradient=True) / total
        self._remember(mean.detach(), variance.detach(), total.item())
        out = centred * torch.rsqrt(variance + layer.eps).view(shape)
        if layer.affine:
            out = out * layer.weight.view(shape) + layer.bias.view(shape)
        for name in ("drop", "act"):  # timm's batch-norm brings these along
            if isinstance(getattr(layer, name, None), nn.Module):
                out = getattr(layer, name)(out)
        return out

    def _remember(self, mean: Tensor, variance: Tensor, count: float) -> None:
        layer = self.layer
        if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
            return
        layer.num_batches_tracked.add_(1)
        momentum = layer.momentum if layer.momentum is not None else 1 / float(layer.num_batches_tracked)
        layer.running_mean.lerp_(mean, momentum)
        layer.running_var.lerp_(variance * count / max(count - 1, 1), momentum)


@contextlib.contextmanager
def statistics_paused(*modules: nn.Module) -> Iterator[None]:
    """Running statistics stay as they are inside: for a forward pass that will be repeated."""
    kept = [
        (buffer, buffer.clone())
        for module in modules
        for layer in layers(module)
        if layer.training
        for buffer in layer.buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)
