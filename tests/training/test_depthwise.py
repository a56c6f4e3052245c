"""Depthwise convolutions in bfloat16: the gradients are those of float32 up to rounding, and what is fast stays."""

from __future__ import annotations

import contextlib

import pytest
import torch

from lookalike.core.seeds import torch_rng
from lookalike.training.depthwise import FastDepthwise, _Depthwise


def gradients(kernel, stride, padding, size, mode, channels=6):
    generator = torch_rng(0, "depthwise", kernel, stride)
    x = torch.randn(3, channels, *size, generator=generator).contiguous(memory_format=torch.channels_last)
    x, weight = x.requires_grad_(), torch.randn(channels, 1, *kernel, generator=generator, requires_grad=True)
    with mode:
        y = torch.nn.functional.conv2d(x, weight, None, stride, padding, (1, 1), channels)
    factor = torch.randn(y.shape, generator=generator)
    (y.float() * factor).sum().backward()
    return y.grad_fn, x.grad, weight.grad


@contextlib.contextmanager
def fast():
    with torch.autocast("cpu", torch.bfloat16), FastDepthwise():
        yield


@pytest.mark.parametrize("size", [(12, 12), (11, 9)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1)])
@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 3), (1, 1)), ((5, 5), (2, 2)), ((5, 5), (0, 0)), ((7, 7), (3, 3)), ((4, 2), (1, 0))]
)
def test_gradients_are_those_of_float32(kernel, stride, padding, size):
    _, *expected = gradients(kernel, stride, padding, size, contextlib.nullcontext())
    _, *actual = gradients(kernel, stride, padding, size, fast())
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == torch.float32 and (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_only_slow_gradients_are_replaced():
    for kernel, stride, replaced in (((3, 3), (1, 1), False), ((3, 3), (2, 2), True), ((5, 5), (1, 1), True)):
        function, *_ = gradients(kernel, stride, (1, 1), (12, 12), fast())
        assert ("_Depthwise" in type(function).__name__) == replaced
    x, weight = torch.randn(2, 6, 9, 9, requires_grad=True), torch.randn(12, 3, 5, 5)
    with fast():  # grouped, not depthwise
        assert "_Depthwise" not in type(torch.conv2d(x, weight, None, (1, 1), (2, 2), (1, 1), 2).grad_fn).__name__
    assert issubclass(_Depthwise, torch.autograd.Function)
