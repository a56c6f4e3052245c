"""SupCon with a pair-margin miner over many reference rows, in one pass: one similarity matrix for both.

The rows are constants, so the gradient is taken in the same pass, block by block while a block of rows is in
the cache; nothing of the size of the matrix is kept. Rows may be given as base rows and one affine map,
z = a∘u + c: the map is moved to the queries, (q∘a)·u + q·c, and to the gradient.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 2048
STEEP = 64.0
"""exp(s/τ) stays within float32 without a shift up to 1/τ = 64."""


class References(NamedTuple):
    """Rows z = scale∘base + shift (without the two: the base rows themselves)."""

    base: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None
    lengths: Tensor | None = None
    """Of the rows; None with `cosine`: computed here."""
    cosine: bool = True
    """Divide by the lengths; otherwise the plain dot product is taken."""


class Margins(NamedTuple):
    """What the miner keeps, as similarities."""

    positives_below: float = math.inf
    negatives_above: float = -math.inf


class Pairs(NamedTuple):
    """Query and row of each pair, sorted by row."""

    queries: Tensor
    rows: Tensor


class Mined(NamedTuple):
    losses: Tensor
    """One a query; 0 where there is nothing to compare."""
    positives: Tensor
    """Mined positives of each query."""
    negatives: Tensor
    """Mined negatives of all queries together."""


def equal_pairs(left: Tensor, right: Tensor) -> Pairs:
    """All (i, j) with left[i] == right[j]. Few values of a long `right` occur in a short `left`."""
    values, group = torch.unique(left, return_inverse=True)
    place = torch.searchsorted(values, right).clamp_(max=max(len(values) - 1, 0))
    rows = torch.nonzero(values[place] == right).squeeze(1) if len(values) else place[:0]
    found = torch.nonzero(place[rows][:, None] == group[None, :])
    return Pairs(found[:, 1], rows[found[:, 0]])


def join(*pairs: Pairs) -> Pairs:
    """All of them, sorted by row; a pair may occur more than once."""
    rows = torch.cat([p.rows for p in pairs])
    order = torch.argsort(rows)
    return Pairs(torch.cat([p.queries for p in pairs])[order], rows[order])


def mined_supcon(
    queries: Tensor,
    references: References,
    positives: Pairs,
    excluded: Pairs,
    *,
    temperature: float,
    margins: Margins | None = None,
) -> Mined:
    """Losses of unit `queries` (B, d), differentiable in them. `excluded` pairs are neither positive nor negative."""
    return Mined(*_Kernel.apply(queries, references, positives, excluded, temperature, margins or Margins()))


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: References,
        positives: Pairs,
        excluded: Pairs,
        temperature: float,
        margins: Margins,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        losses, gradient, found, count = _evaluate(
            queries, references, positives, excluded, temperature, margins, wanted
        )
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(found, count)
        return losses, found, count

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None], None, None, None, None, None


def _cuts(pairs: Pairs, starts: Tensor) -> list[int]:
    """Where the pairs of each block begin, and the end."""
    return [*torch.searchsorted(pairs.rows, starts).tolist(), len(pairs.rows)]


def _evaluate(
    queries: Tensor,
    references: References,
    positives: Pairs,
    excluded: Pairs,
    temperature: float,
    margins: Margins,
    wanted: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    base, scale, shift, lengths, cosine = references
    number, dim, size = len(base), base.shape[1], len(queries)
    steep = 1.0 / temperature > STEEP
    turned = (queries if scale is None else queries * scale) / temperature
    turned = turned.t().contiguous()
    offset = None if shift is None else (queries @ shift) / temperature
    below, above = margins.positives_below / temperature, margins.negatives_above / temperature
    top = 1.0 / temperature if steep else 0.0

    starts = torch.arange(0, max(number, 1), BLOCK, device=base.device)
    cuts, out_cuts = _cuts(positives, starts), _cuts(excluded, starts)
    matrix = base.new_empty(min(BLOCK, number), size)
    negatives = base.new_zeros(size)
    count = torch.zeros((), dtype=torch.int64, device=base.device)
    weighted = base.new_zeros(size, dim)  # Σ exp(y) z/|z| over all mined pairs
    pulled = base.new_zeros(size, dim)  # Σ z/|z| over the mined positives
    weights, pulls = base.new_zeros(size), base.new_zeros(size)  # the same of 1/|z|, for the shift
    values: list[Tensor] = []
    for index, start in enumerate(range(0, number, BLOCK)):
        rows = base[start : start + BLOCK]
        block = matrix[: len(rows)]
        if offset is None:
            torch.mm(rows, turned, out=block)
        else:
            torch.addmm(offset, rows, turned, out=block)
        inverse: Tensor | None = None
        if cosine:
            if lengths is not None:
                length = lengths[start : start + BLOCK]
            else:
                length = torch.linalg.vector_norm(
                    rows if scale is None or shift is None else torch.addcmul(shift, rows, scale), dim=1
                )
            inverse = length.clamp_min(1e-12).reciprocal()
            block.mul_(inverse[:, None])
        flat = block.view(-1)
        out = slice(out_cuts[index], out_cuts[index + 1])
        flat[(excluded.rows[out] - start) * size + excluded.queries[out]] = -math.inf
        mine = slice(cuts[index], cuts[index + 1])
        place = (positives.rows[mine] - start) * size + positives.queries[mine]
        value = flat[place]
        torch.threshold_(block, above, -math.inf)
        flat[place] = -math.inf
        if top:
            block.sub_(top)
        block.exp_()
        negatives += block.sum(0)
        count += torch.count_nonzero(block)
        kept = (value < below) & (value > -math.inf)
        values.append(torch.where(kept, value, -math.inf))
        if not wanted:
            continue
        flat[place] = torch.exp(values[-1] - top)
        if inverse is not None:
            if shift is not None:
                weights += inverse @ block
            block.mul_(inverse[:, None])
        elif shift is not None:
            weights += block.sum(0)
        weighted.addmm_(block.t(), rows)
        if len(place):
            columns, local = torch.unique_consecutive(positives.rows[mine] - start, return_inverse=True)
            ones = base.new_zeros(len(columns), size)
            share = kept.to(base.dtype)
            if inverse is not None:
                share = share * inverse[columns[local]]
            ones.index_put_((local, positives.queries[mine]), share)
            pulled.addmm_(ones.t(), rows[columns])
            if shift is not None:
                pulls += ones.sum(0)
    found, losses, norm = _per_query(positives.queries, values, negatives, size, top, temperature)
    gradient: Tensor | None = None
    if wanted:
        live = (losses > 0).to(base.dtype)
        first, second = live / norm, live / found.clamp_min(1)
        gradient = first[:, None] * weighted - second[:, None] * pulled
        if scale is not None and shift is not None:
            gradient = gradient * scale + (first * weights - second * pulls)[:, None] * shift
        gradient /= temperature
    return losses, gradient, found, count


def _per_query(
    queries: Tensor, values: list[Tensor], negatives: Tensor, size: int, top: float, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """How many positives each query has, its loss, and Σ exp over all its pairs."""
    value = torch.cat(values) if values else negatives.new_zeros(0)
    kept = value > -math.inf
    found = negatives.new_zeros(size).index_add_(0, queries, kept.to(negatives.dtype))
    near = negatives.new_zeros(size).index_add_(0, queries, torch.exp(value - top))
    mean = negatives.new_zeros(size).index_add_(0, queries, torch.where(kept, value, 0.0)) / found.clamp_min(1)
    norm = (negatives + near).clamp_min(torch.finfo(negatives.dtype).tiny)
    # One positive: log(1 + N/P) needs no difference of logarithms, and is 0 without negatives.
    alone = torch.log1p(negatives / near.clamp_min(torch.finfo(negatives.dtype).tiny))
    several = torch.log(norm) + top - mean
    losses = torch.where(found == 1, alone, several)
    # What is lost against s/τ − 1/τ in this precision counts as no loss, as in pytorch-metric-learning's sum.
    far = mean - 1.0 / temperature
    losses = torch.where((found == 0) | ((found == 1) & (far + losses == far)), 0.0, losses)
    return found, losses, norm
