"""Depthwise convolutions in bfloat16 on a CPU, with gradients that oneDNN computes fast.

oneDNN has no fast bfloat16 kernel for the gradient of the input of a depthwise convolution with a stride, nor for that
of the weights of a 5×5 one: both take 30 to 100 times as long as in float32, and made training in bfloat16 slower than
in float32 (docs/design/training.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lookalike.core.device import CPU

FAST = 3  # size of the kernels whose weight gradient is fast


class FastDepthwise(TorchFunctionMode):
    """Within the block, depthwise convolutions of bfloat16 on a CPU have fast gradients; other functions are as usual.

    Example:
        >>> x, weight = torch.randn(2, 4, 9, 9, requires_grad=True), torch.randn(4, 1, 5, 5)
        >>> with torch.autocast(x.device.type, torch.bfloat16), FastDepthwise():
        ...     torch.conv2d(x, weight, groups=4).sum().backward()
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and not kwargs and len(args) == 7:
            x, weight, bias, stride, padding, dilation, groups = args
            slow = max(*stride, *(size - FAST + 1 for size in weight.shape[2:])) > 1
            plain = bias is None and tuple(dilation) == (1, 1) and not isinstance(padding, str)
            if slow and plain and groups == x.shape[1] == len(weight) > 1 and x.device.type == CPU:
                return _Depthwise.apply(x, weight, tuple(stride), tuple(padding))
        return func(*args, **(kwargs or {}))


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        x, low = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        ctx.save_for_backward(x, weight)
        ctx.where = stride, padding
        return torch.conv2d(x, low, None, stride, padding, 1, len(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (x, weight), (stride, padding) = ctx.saved_tensors, ctx.where
        grad_x = _input_gradient(grad, x, weight, stride, padding) if ctx.needs_input_grad[0] else None
        grad_weight = _weight_gradient(grad, x, weight, stride, padding) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any) -> Tensor:
    dtype = torch.float32 if max(stride) > 1 else torch.bfloat16
    like = torch.empty_like(x, dtype=dtype)
    return _gradients(grad.to(dtype), like, weight.to(dtype), stride, padding, 0).to(x.dtype)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any) -> Tensor:
    """A larger kernel's gradient is put together from those of 3×3 kernels over shifted images."""
    height, width = weight.shape[2:]
    if max(height, width) <= FAST:
        return _gradients(grad, x, weight, stride, padding, 1).to(weight.dtype)
    padded = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    out = torch.empty_like(weight)
    for i in _starts(height):
        for j in _starts(width):
            rows = slice(i, i + (grad.shape[2] - 1) * stride[0] + FAST)
            columns = slice(j, j + (grad.shape[3] - 1) * stride[1] + FAST)
            part = weight[:, :, i : i + FAST, j : j + FAST]
            image = padded[:, :, rows, columns].contiguous(memory_format=torch.channels_last)
            out[:, :, i : i + FAST, j : j + FAST] = _gradients(grad, image, part, stride, (0, 0), 1)
    return out


def _starts(size: int) -> list[int]:
    """Where pieces of 3 begin that cover `size`, the last one flush with the end."""
    return [*range(0, size - FAST, FAST), size - FAST] if size > FAST else [0]


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, which: int) -> Tensor:
    """The gradient of the input (0) or of the weights (1), as torch computes it."""
    options = stride, padding, [1, 1], False, [0, 0], len(weight), [which == 0, which == 1, False]
    return torch.ops.aten.convolution_backward(grad, x, weight.to(x.dtype), None, *options)[which]
