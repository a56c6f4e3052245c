"""Divergence and attention over a whole database, block by block: nothing of size queries × database is kept.

Two passes forward (normalizers and the attended mixture, then the divergences), one backward, each computing the
similarities of a block anew. Exact: the blocks change the order of sums and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.losses.divergence import logs_to_middle, norm_of, pair_weights, pairs, slope


class Whole(NamedTuple):
    divergence: Tensor
    """(B,)."""
    mixture: Tensor
    """(B, A, F): the attention-weighted sum of the rows."""
    mass: Tensor
    """(B,): attention on the own class, mean over the views; without gradient."""


def whole(
    z: Tensor,
    asking: Tensor,
    rows: Tensor,
    labels: Tensor,
    row_labels: Tensor,
    lengths: Tensor | None = None,
    temperature: float = 1.0,
    block: int = 4096,
) -> Whole:
    """`z` and `asking` (B, A, F), `rows` (D, F); gradients for all three where they are wanted."""
    found = _Whole.apply(z, asking, rows, labels, row_labels, lengths, temperature, block)
    return Whole(*found)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        asking: Tensor,
        rows: Tensor,
        labels: Tensor,
        row_labels: Tensor,
        lengths: Tensor | None,
        temperature: float,
        block: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries, views, width = z.shape
        flat, ask = z.reshape(-1, width), asking.reshape(-1, width)
        own = labels.repeat_interleave(views)[:, None]
        norm, top = (torch.full((len(flat), 1), -math.inf, dtype=z.dtype, device=z.device) for _ in range(2))
        total, mass = (torch.zeros(len(flat), 1, dtype=z.dtype, device=z.device) for _ in range(2))
        mixture = torch.zeros_like(ask)
        for part, near, length in _blocks(rows, lengths, block):
            logits = flat @ near.t() / temperature
            norm = torch.logaddexp(norm, torch.logsumexp(logits, 1, keepdim=True))
            logits = _times(ask @ near.t(), length)
            higher = torch.maximum(top, logits.amax(1, keepdim=True))
            shrink, powers = torch.exp(top - higher), torch.exp(logits - higher)
            total = total * shrink + powers.sum(1, keepdim=True)
            mass = mass * shrink + (powers * (row_labels[part] == own)).sum(1, keepdim=True)
            mixture = mixture * shrink + _times(powers, length) @ near
            top = higher
        mixture = mixture / total
        i, j = pairs(views, z.device)
        kl_i, kl_j = (torch.zeros(queries, len(i), dtype=z.dtype, device=z.device) for _ in range(2))
        for _, near, _ in _blocks(rows, lengths, block):
            p = _shares(flat, near, temperature, norm, queries)
            p_i, p_j = p[:, i], p[:, j]
            ell_i, ell_j = logs_to_middle(p_i, p_j)
            kl_i += p_i.mul_(ell_i).sum(2)
            kl_j += p_j.mul_(ell_j).sum(2)
        js = 0.5 * (kl_i + kl_j)
        frob = norm_of(js)
        ctx.save_for_backward(z, asking, rows, lengths, norm, top + total.log(), mixture, js, kl_i, kl_j, frob)
        ctx.temperature, ctx.block = temperature, block
        share = (mass / total).view(queries, views).mean(1)
        ctx.mark_non_differentiable(share)
        return frob, mixture.view_as(z), share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, asking, rows, lengths, norm, attended, mixture, js, kl_i, kl_j, frob = ctx.saved_tensors
        queries, views, width = z.shape
        flat, ask = z.reshape(-1, width), asking.reshape(-1, width)
        weight = pair_weights(js, frob, gradients[0])[:, :, None] / ctx.temperature
        g_mix = gradients[1].reshape(-1, width)
        shift = (g_mix * mixture).sum(1, keepdim=True)
        d_z, d_ask = torch.zeros_like(flat), torch.zeros_like(ask)
        d_rows = torch.zeros_like(rows) if ctx.needs_input_grad[2] else None
        i, j = pairs(views, z.device)
        for part, near, length in _blocks(rows, lengths, ctx.block):
            p = _shares(flat, near, ctx.temperature, norm, queries)
            p_i, p_j = p[:, i], p[:, j]
            d_logits = torch.zeros_like(p)
            sides = (i, p_i, kl_i), (j, p_j, kl_j)
            for (places, side, kl), ell in zip(sides, logs_to_middle(p_i, p_j), strict=True):
                d_logits.index_add_(1, places, slope(side, ell, kl[:, :, None]).mul_(weight))
            d_logits = d_logits.view(len(flat), -1)
            d_z += d_logits @ near
            a = torch.exp(_times(ask @ near.t(), length) - attended)
            d_ask_logits = _times(a * (_times(g_mix @ near.t(), length) - shift), length)
            d_ask += d_ask_logits @ near
            if d_rows is not None:
                d_rows[part] = d_logits.t() @ flat + d_ask_logits.t() @ ask + _times(a, length).t() @ g_mix
        return d_z.view_as(z), d_ask.view_as(z), d_rows, None, None, None, None, None


def _shares(flat: Tensor, near: Tensor, temperature: float, norm: Tensor, queries: int) -> Tensor:
    """(B, A, rows): what these rows have of the views' softmax over all."""
    return (flat @ near.t()).div_(temperature).sub_(norm).exp_().view(queries, -1, len(near))


def _blocks(rows: Tensor, lengths: Tensor | None, block: int) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        yield part, rows[part], None if lengths is None else lengths[part]


def _times(x: Tensor, lengths: Tensor | None) -> Tensor:
    return x if lengths is None else x * lengths
