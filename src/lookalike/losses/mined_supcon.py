"""SupCon with a pair-margin miner over many reference rows, in one pass: one similarity matrix for both.

The rows are constants, so the gradient is taken in the same pass, block by block while a block of rows is in
the cache; nothing of the size of the matrix is kept. Rows may be given as base rows and one affine map,
z = a∘u + c, which is applied to a block at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError

BLOCK = 2048
"""Rows at a time on a processor, so that a block stays in its caches; an accelerator takes 64 times as many."""
FEW = 0.7
"""Below this share of rows with a mined negative, they are picked out before the product of the gradient."""
STEEP = 64.0
"""exp(s/τ) of cosines stays within float32 as it is up to 1/τ = 64; beyond, the largest is subtracted."""


class References(NamedTuple):
    """Rows z = scale∘base + shift; without the two, the base rows themselves."""

    base: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None
    lengths: Tensor | None = None
    """|z| where it is known; otherwise it is computed."""
    cosine: bool = True
    """Divide by the lengths; otherwise the plain dot product is taken."""

    def rows(self, chosen: slice | Tensor) -> Tensor:
        base = self.base[chosen]
        return base if self.scale is None or self.shift is None else torch.addcmul(self.shift, base, self.scale)


class Margins(NamedTuple):
    """What the miner keeps, as similarities."""

    positives_below: float = math.inf
    negatives_above: float = -math.inf


class Pairs(NamedTuple):
    """Query and row of each pair, sorted by row."""

    queries: Tensor
    rows: Tensor

    def keep(self, mask: Tensor) -> Pairs:
        return Pairs(self.queries[mask], self.rows[mask])


class Mined(NamedTuple):
    losses: Tensor
    """One a query; 0 where there is nothing to compare."""
    positives: Tensor
    """Mined positives of each query."""
    has_negatives: Tensor
    """Whether a query has a mined negative."""


def equal_pairs(left: Tensor, right: Tensor) -> Pairs:
    """All (i, j) with left[i] == right[j]; made for a short `left` and a long `right` that share few values."""
    if not len(left):
        return Pairs(left[:0].long(), right[:0].long())
    values, group = torch.unique(left, return_inverse=True)
    place = torch.searchsorted(values, right).clamp_(max=len(values) - 1)
    rows = torch.nonzero(values[place] == right).squeeze(1)
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
    hidden: Pairs,
    *,
    temperature: float,
    margins: Margins | None = None,
) -> Mined:
    """Losses of unit `queries` (B, d) against at least one row, differentiable in them. All pairs are negatives
    except the `hidden` ones, of which the `positives` are a part."""
    return Mined(*_Kernel.apply(queries, references, positives, hidden, temperature, margins or Margins()))


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        references: References,
        positives: Pairs,
        hidden: Pairs,
        temperature: float,
        margins: Margins,
    ) -> tuple[Tensor, Tensor, Tensor]:
        work = _Pass(queries, references, positives, hidden, temperature, margins)
        losses, gradient = work.run(ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        has_negatives = work.far > 0
        ctx.mark_non_differentiable(work.found, has_negatives)
        return losses, work.found, has_negatives

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: the answer would be silently wrong
            raise LookalikeError("This loss has no second derivative: take the gradient without create_graph.")
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None], None, None, None, None, None


class _Pass:
    """One evaluation. Similarities are in units in which 2^y is exp(s/τ): exp2 is three times as fast as exp."""

    def __init__(
        self,
        queries: Tensor,
        references: References,
        positives: Pairs,
        hidden: Pairs,
        temperature: float,
        margins: Margins,
    ) -> None:
        base = references.base
        self.references, self.positives, self.hidden = references, positives, hidden
        self.number, self.size, self.dim = len(base), len(queries), base.shape[1]
        self.temperature, self.unit = temperature, math.log2(math.e) / temperature
        self.turned = (queries * self.unit).t()
        self.below, self.above = margins.positives_below * self.unit, margins.negatives_above * self.unit
        self.block = BLOCK if base.device.type == CPU else 64 * BLOCK
        self.cosine, lengths = references.cosine, references.lengths
        self.known = lengths is not None or not self.cosine
        # 1/|z|, or 1 for plain dot products; filled by the first pass unless the lengths are known.
        self.inverse = base.new_ones(self.number) if lengths is None else lengths.clamp_min(1e-12).reciprocal_()
        self.value = base.new_empty(len(positives.rows))  # y of the positives, −inf where they are not mined
        self.far = base.new_zeros(self.size)  # Σ 2^y over the mined negatives
        self.found = self.far
        self.top: Tensor | None = None

    def run(self, wanted: bool) -> tuple[Tensor, Tensor | None]:
        if 1.0 / self.temperature > STEEP or not self.cosine:
            self.top = self._top()
        weighted = self.far.new_zeros(self.size, self.dim)
        sums = self.far.new_zeros(-(-self.number // self.block), self.size)
        for (rows, block, inverse), far in zip(self._blocks(), sums.unbind(0), strict=True):
            if self.top is not None:
                block.sub_(self.top)
            torch.sum(block.exp2_(), 0, out=far)
            if wanted:
                _add(weighted, rows, block, inverse)
        self.far = sums.sum(0)
        self.value.masked_fill_(self.value >= self.below, -math.inf)
        losses, norm = self._losses()
        return losses, self._gradient(losses, norm, weighted) if wanted else None

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, similarities (rows, queries) and 1/|z| of each block: −inf where there is no mined negative."""
        base, scale, shift = self.references.base, self.references.scale, self.references.shift
        step = min(self.block, self.number)
        edges = torch.arange(1, -(-self.number // step), device=base.device) * step
        take, fill = (_places(pairs, self.size, step, edges) for pairs in (self.positives, self.hidden))
        values = self.value.tensor_split(take.cuts)
        matrix = base.new_empty(step, self.size)
        buffer = None if scale is None else base.new_empty(step, self.dim)
        parts = zip(base.split(step), self.inverse.split(step), values, take.parts, fill.parts, strict=True)
        for rows, inverse, value, taken, filled in parts:
            count = rows.shape[0]
            if buffer is not None and scale is not None and shift is not None:
                rows = torch.addcmul(shift, rows, scale, out=buffer[:count])
            block = torch.mm(rows, self.turned, out=matrix[:count])
            if not self.known:
                torch.linalg.vector_norm(rows, dim=1, out=inverse)
                inverse.clamp_min_(1e-12).reciprocal_()
            if self.cosine:
                block.mul_(inverse[:, None])
            if taken.numel():
                torch.take(block, taken, out=value)
            if filled.numel():
                block.view(-1).index_fill_(0, filled, -math.inf)
            if self.above > -math.inf:
                torch.threshold_(block, self.above, -math.inf)
            yield rows, block, inverse

    def _top(self) -> Tensor:
        """The largest y of each query, from a pass of its own."""
        top = self.far.new_full((self.size,), -math.inf)
        for _, block, _ in self._blocks():
            top = torch.maximum(top, block.amax(0))
        value = torch.where(self.value < self.below, self.value, -math.inf)
        top = top.scatter_reduce_(0, self.positives.queries, value, "amax")
        return torch.where(top > -math.inf, top, 0.0)

    def _raised(self) -> Tensor:
        """2^y of the positives, in the same units as `far`."""
        return torch.exp2(self.value if self.top is None else self.value - self.top[self.positives.queries])

    def _losses(self) -> tuple[Tensor, Tensor]:
        """Loss of each query, and Σ 2^y over all its mined pairs."""
        queries, tiny = self.positives.queries, torch.finfo(self.far.dtype).tiny
        kept = self.value > -math.inf
        sums = self.far.new_zeros(3, self.size)
        parts = torch.stack([kept.to(self.far.dtype), self._raised(), torch.where(kept, self.value, 0.0)])
        self.found, near, mean = sums.index_add_(1, queries, parts)
        mean /= self.found.clamp_min(1)
        norm = (self.far + near).clamp_min(tiny)
        # One positive that outweighs the negatives: log(1 + N/P) is no difference of logarithms, and can be 0.
        alone = torch.log1p(self.far / near.clamp_min(tiny))
        several = (torch.log2(norm) - mean if self.top is None else torch.log2(norm) + self.top - mean) * math.log(2)
        losses = torch.where((self.found == 1) & (near >= self.far), alone, several)
        # What is lost against s/τ − 1/τ in this precision counts as no loss, as in pytorch-metric-learning's sum.
        gap = mean * math.log(2) - 1.0 / self.temperature
        nil = (self.found == 0) | ((self.found == 1) & (gap + losses == gap))
        return losses.masked_fill_(nil, 0.0), norm

    def _gradient(self, losses: Tensor, norm: Tensor, weighted: Tensor) -> Tensor:
        """∂loss/∂q of each query: mined pairs weighted by the softmax, minus the mean of the positives."""
        queries = self.positives.queries
        live = (losses > 0).to(norm.dtype)
        gradient = weighted.mul_((live / norm)[:, None])
        share = self._raised() * (live / norm)[queries] - (live / self.found.clamp_min(1))[queries]
        share.masked_fill_(self.value == -math.inf, 0.0)
        share *= self.inverse[self.positives.rows]
        rows, place = torch.unique_consecutive(self.positives.rows, return_inverse=True)
        weights = share.new_zeros(len(rows), self.size).index_put_((place, queries), share)
        for start in range(0, len(rows), self.block):
            part = slice(start, start + self.block)
            gradient.addmm_(weights[part].t(), self.references.rows(rows[part]))
        return gradient.div_(self.temperature)


class _Places(NamedTuple):
    cuts: list[int]
    parts: tuple[Tensor, ...]


def _places(pairs: Pairs, size: int, step: int, edges: Tensor) -> _Places:
    """Positions of the pairs in the flat matrix of each block, and where the next block's pairs begin."""
    cuts = torch.searchsorted(pairs.rows, edges).tolist()
    return _Places(cuts, (pairs.rows % step).mul_(size).add_(pairs.queries).tensor_split(cuts))


def _add(weighted: Tensor, rows: Tensor, block: Tensor, inverse: Tensor) -> None:
    """Σ 2^y z/|z| over a block's mined negatives."""
    alive = torch.nonzero(block.sum(1)).view(-1)
    count = alive.numel()
    if count < FEW * rows.shape[0]:
        if not count:
            return
        rows, block, inverse = (part.index_select(0, alive) for part in (rows, block, inverse))
    weighted.addmm_(block.mul_(inverse[:, None]).t(), rows)


@torch.no_grad()
def count_negatives(queries: Tensor, references: References, hidden: Pairs, above: float) -> int:
    """How many pairs are mined as negatives; for batches with next to none."""
    rows = references.rows(slice(None))
    if references.cosine:
        rows = torch.nn.functional.normalize(rows, dim=1)
    mined = rows @ queries.t() > above
    mined[hidden.rows, hidden.queries] = False
    return int(mined.sum())
