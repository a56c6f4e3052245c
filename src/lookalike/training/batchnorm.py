"""Batch-norm statistics in training: frozen, of the batch, of parts of it, or of the joint batch of all processes.

Frozen is the default: with small batches the statistics of a batch and the running ones differ so much that training
does not recover (docs/design/training.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lookalike.core import distributed


def layers(model: nn.Module) -> list[_BatchNorm]:
    """All batch-norm layers of a model, including the one after the head."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def gather_statistics(model: nn.Module) -> None:
    """Let batch-norm layers in training mode use the moments of the images of all processes.

    torch's SyncBatchNorm does not accept tensors in main memory. The layers keep their class and their state; only
    `forward` of the object is replaced, so a saved model is not affected.
    """
    for layer in layers(model):
        if not isinstance(vars(layer).get("forward"), _Joint):
            vars(layer)["forward"] = _Joint(layer)


def split_statistics(model: nn.Module, splits: int) -> None:
    """Let batch-norm layers in training mode normalize image i within part i mod `splits`.

    One process then behaves like `splits` of them, which MoCo needs against information leaking through the statistics.
    """
    for layer in layers(model):
        vars(layer)["forward"] = _Split(layer, splits)


class _Forward:
    """`forward` of a batch-norm layer, with another one in training mode."""

    def __init__(self, layer: _BatchNorm, splits: int = 1) -> None:
        self.layer, self.usual, self.splits = layer, layer.forward, splits

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not layer.training:
            return self.usual(x)
        out = self.normalized(layer, x, [axis for axis in range(x.ndim) if axis != 1])
        if layer.affine:
            shape = [1, -1] + [1] * (x.ndim - 2)
            out = out * layer.weight.view(shape) + layer.bias.view(shape)
        for name in ("drop", "act"):  # what timm's layers add: dropout and activation
            if isinstance(getattr(layer, name, None), nn.Module):
                out = getattr(layer, name)(out)
        return out

    def normalized(self, layer: _BatchNorm, x: Tensor, axes: list[int]) -> Tensor:
        raise NotImplementedError


class _Split(_Forward):
    def normalized(self, layer: _BatchNorm, x: Tensor, axes: list[int]) -> Tensor:
        count = min(self.splits, len(x))
        parts = [x[part::count] for part in range(count)]
        rows = [torch.arange(part, len(x), count, device=x.device) for part in range(count)]
        whole = torch.cat([torch.nn.functional.batch_norm(p, None, None, training=True, eps=layer.eps) for p in parts])
        with torch.no_grad():
            means, variances = (torch.stack([f(p, axes) for p in parts]).mean(0) for f in (torch.mean, _variance))
            remember(layer, means, variances)
        return whole[torch.cat(rows).argsort()]


def _variance(x: Tensor, axes: list[int]) -> Tensor:
    return x.var(axes, correction=min(1, x.numel() // x.shape[1] - 1))


def remember(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics as torch does; `variance` is the unbiased one."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    momentum = layer.momentum if layer.momentum is not None else 1 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean, momentum)
    layer.running_var.lerp_(variance, momentum)


class _Joint(_Forward):
    def normalized(self, layer: _BatchNorm, x: Tensor, axes: list[int]) -> Tensor:
        shape = [1, -1] + [1] * (x.ndim - 2)
        # Two passes, mean first: the one-pass formula loses digits when the mean is large.
        total = distributed.all_reduce(x.new_tensor([x.numel() // x.shape[1]]))
        mean = distributed.all_reduce(x.sum(axes), gradient=True) / total
        centered = x - mean.view(shape)
        variance = distributed.all_reduce(centered.square().sum(axes), gradient=True) / total
        count = float(total)
        remember(layer, mean.detach(), variance.detach() * count / max(count - 1, 1))
        return centered * torch.rsqrt(variance + layer.eps).view(shape)


@contextlib.contextmanager
def preserve_statistics(*modules: nn.Module) -> Iterator[None]:
    """Restore the running statistics at the end of the block: for a forward pass that will be repeated."""
    moving = [layer for module in modules for layer in layers(module) if layer.training]
    saved = [(buffer, buffer.clone()) for layer in moving for buffer in layer.buffers(recurse=False)]
    try:
        yield
    finally:
        for buffer, value in saved:
            buffer.copy_(value)
