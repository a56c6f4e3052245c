"""Supervised contrastive loss with a pair-margin miner against many stored embeddings, in one fused pass.

`mined_supcon_reference` is the loss in plain PyTorch. The kernel behind `mined_supcon` computes similarities, miner,
loss and gradient in one pass over blocks of the stored rows, which are constants; no matrix of queries × rows is
stored. See docs/design/memory.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError

BLOCK = 2048  # rows per block on a CPU, so that a block stays in its caches; accelerators take 64 times as many
DENSE_FRACTION = 0.7  # if fewer rows of a block have a mined negative, they are selected before the gradient's product
MAX_INVERSE_TEMPERATURE = 64.0  # up to this 1/τ, exp(s/τ) stays within float32; beyond, the row maximum is subtracted


class References(NamedTuple):
    """Stored rows z = scale∘base + shift; without scale and shift the base rows themselves."""

    base: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None
    norms: Tensor | None = None
    """|z| if already known."""
    cosine: bool = True
    """Use cosines; otherwise dot products."""

    def rows(self, selection: slice | Tensor) -> Tensor:
        """Return some of the rows with the affine map applied."""
        base = self.base[selection]
        return base if self.scale is None or self.shift is None else torch.addcmul(self.shift, base, self.scale)


class Margins(NamedTuple):
    """Similarities between which the miner keeps pairs: positives below, negatives above."""

    max_positive: float = math.inf
    min_negative: float = -math.inf


class Pairs(NamedTuple):
    """Indices of query and row of each pair, sorted by row."""

    queries: Tensor
    rows: Tensor

    def select(self, mask: Tensor) -> Pairs:
        return Pairs(self.queries[mask], self.rows[mask])


class MinedLosses(NamedTuple):
    """Of each query (B,): loss (0 with nothing to compare), number of mined positives, whether it has negatives."""

    losses: Tensor
    positives: Tensor
    has_negatives: Tensor


def equal_value_pairs(left: Tensor, right: Tensor) -> Pairs:
    """Return all (i, j) with left[i] == right[j]; fast for a short `left` and a long `right` with few common values."""
    if not len(left):
        return Pairs(left[:0].long(), right[:0].long())
    values, group = torch.unique(left, return_inverse=True)
    place = torch.searchsorted(values, right).clamp_(max=len(values) - 1)
    rows = torch.nonzero(values[place] == right).squeeze(1)
    matches = torch.nonzero(place[rows][:, None] == group[None, :])
    return Pairs(matches[:, 1], rows[matches[:, 0]])


def merge_pairs(*pairs: Pairs) -> Pairs:
    """Concatenate pairs, sorted by row; a pair may occur more than once."""
    rows = torch.cat([p.rows for p in pairs])
    order = torch.argsort(rows)
    return Pairs(torch.cat([p.queries for p in pairs])[order], rows[order])


def mined_supcon_reference(
    queries: Tensor,
    references: References,
    positives: Pairs,
    excluded: Pairs,
    *,
    temperature: float,
    margins: Margins | None = None,
) -> Tensor:
    """Compute the losses of :func:`mined_supcon` in plain PyTorch, with the same arguments."""
    margins, rows = margins or Margins(), references.rows(slice(None))
    sim = queries @ (torch.nn.functional.normalize(rows, dim=1) if references.cosine else rows).t()
    pos_mask, neg_mask = torch.zeros_like(sim, dtype=torch.bool), torch.ones_like(sim, dtype=torch.bool)
    pos_mask[positives.queries, positives.rows] = True
    neg_mask[excluded.queries, excluded.rows] = False
    pos_mask, neg_mask = pos_mask & (sim < margins.max_positive), neg_mask & (sim > margins.min_negative)
    logits = sim / temperature
    lse = logits.masked_fill(~(pos_mask | neg_mask), -math.inf).logsumexp(1)
    count = pos_mask.sum(1)
    mean = logits.masked_fill(~pos_mask, 0).sum(1) / count.clamp(min=1)
    return torch.where(count > 0, lse - mean, 0.0)


def mined_supcon(
    queries: Tensor,
    references: References,
    positives: Pairs,
    excluded: Pairs,
    *,
    temperature: float,
    margins: Margins | None = None,
) -> MinedLosses:
    """Return SupCon of each query against the stored rows, over the pairs that the miner keeps.

    All pairs are negatives except the excluded ones. :mod:`lookalike.memory` averages the losses.

    Args:
        queries: Unit embeddings, the only input with a gradient.
        references: Stored rows, at least one.
        positives: Positive pairs.
        excluded: Pairs that are not negatives, the positives among them.
        temperature: Temperature τ.
        margins: Thresholds of the miner; None keeps all pairs.

    Shape:
        - queries: ``(B, d)``; references: ``(N, d)``; losses: ``(B,)``.

    References:
        Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, eq. 2; over a memory as in Wang et al.,
        "Cross-Batch Memory for Embedding Learning", CVPR 2020, eq. 3.

    Example:
        >>> z, stored = (torch.nn.functional.normalize(torch.randn(n, 8), dim=1) for n in (4, 32))
        >>> pairs = equal_value_pairs(torch.arange(4), torch.arange(32) % 4)
        >>> mined_supcon(z, References(stored), pairs, pairs, temperature=0.1).losses.shape
        torch.Size([4])
    """
    return MinedLosses(*_Kernel.apply(queries, references, positives, excluded, temperature, margins or Margins()))


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        kernel = _SupConPass(*inputs)
        losses, gradient = kernel.run(ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        has_negatives = kernel.neg_sum > 0
        ctx.mark_non_differentiable(kernel.num_positives, has_negatives)
        return losses, kernel.num_positives, has_negatives

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: the result would be silently wrong
            raise LookalikeError(
                "SupCon against a memory has no second derivative: take the gradient without create_graph."
            )
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None], None, None, None, None, None


class _SupConPass:
    """One evaluation. Logits y are scaled so that 2^y is exp(s/τ): exp2 is three times as fast as exp."""

    def __init__(
        self, queries: Tensor, references: References, positives: Pairs, excluded: Pairs, tau: float, margins: Margins
    ) -> None:
        base = references.base
        self.references, self.positives, self.excluded = references, positives, excluded
        self.num_rows, self.num_queries, self.dim = len(base), len(queries), base.shape[1]
        self.temperature, self.log2_scale = tau, math.log2(math.e) / tau
        self.queries_t = (queries * self.log2_scale).t()
        self.pos_threshold = margins.max_positive * self.log2_scale
        self.neg_threshold = margins.min_negative * self.log2_scale
        self.block = BLOCK if base.device.type == CPU else 64 * BLOCK
        self.cosine, norms = references.cosine, references.norms
        self.norms_known = norms is not None or not self.cosine
        # 1/|z|, or 1 for plain dot products; filled by the first pass unless the norms are known.
        self.inverse_norms = base.new_ones(self.num_rows) if norms is None else norms.clamp_min(1e-12).reciprocal_()
        self.pos_logits = base.new_empty(len(positives.rows))  # y of the positives, −inf where they are not mined
        self.neg_sum = base.new_zeros(self.num_queries)  # Σ 2^y over the mined negatives
        self.num_positives = self.neg_sum
        self.row_max: Tensor | None = None

    def run(self, needs_grad: bool) -> tuple[Tensor, Tensor | None]:
        if 1.0 / self.temperature > MAX_INVERSE_TEMPERATURE or not self.cosine:
            self.row_max = self._row_max()
        weighted = self.neg_sum.new_zeros(self.num_queries, self.dim)
        sums = self.neg_sum.new_zeros(-(-self.num_rows // self.block), self.num_queries)
        for (rows, block, inverse_norm), neg_sum in zip(self._blocks(), sums.unbind(0), strict=True):
            if self.row_max is not None:
                block.sub_(self.row_max)
            torch.sum(block.exp2_(), 0, out=neg_sum)
            if needs_grad:
                _add_weighted(weighted, rows, block, inverse_norm)
        self.neg_sum = sums.sum(0)
        self.pos_logits.masked_fill_(self.pos_logits >= self.pos_threshold, -math.inf)
        losses, norm = self._losses()
        return losses, self._gradient(losses, norm, weighted) if needs_grad else None

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, similarities (rows, queries) and 1/|z| of each block: −inf where there is no mined negative."""
        base, scale, shift = self.references.base, self.references.scale, self.references.shift
        step = min(self.block, self.num_rows)
        edges = torch.arange(1, -(-self.num_rows // step), device=base.device) * step
        cuts, take = _flat_positions(self.positives, self.num_queries, step, edges)
        _, fill = _flat_positions(self.excluded, self.num_queries, step, edges)
        values = self.pos_logits.tensor_split(cuts)
        matrix = base.new_empty(step, self.num_queries)
        buffer = None if scale is None else base.new_empty(step, self.dim)
        parts = zip(base.split(step), self.inverse_norms.split(step), values, take, fill, strict=True)
        for rows, inverse_norm, value, taken, filled in parts:
            count = rows.shape[0]
            if buffer is not None and scale is not None and shift is not None:
                rows = torch.addcmul(shift, rows, scale, out=buffer[:count])
            block = torch.mm(rows, self.queries_t, out=matrix[:count])
            if not self.norms_known:
                torch.linalg.vector_norm(rows, dim=1, out=inverse_norm)
                inverse_norm.clamp_min_(1e-12).reciprocal_()
            if self.cosine:
                block.mul_(inverse_norm[:, None])
            if taken.numel():
                torch.take(block, taken, out=value)
            if filled.numel():
                block.view(-1).index_fill_(0, filled, -math.inf)
            if self.neg_threshold > -math.inf:
                torch.threshold_(block, self.neg_threshold, -math.inf)
            yield rows, block, inverse_norm

    def _row_max(self) -> Tensor:
        """The largest y of each query, from a pass of its own."""
        row_max = self.neg_sum.new_full((self.num_queries,), -math.inf)
        for _, block, _ in self._blocks():
            row_max = torch.maximum(row_max, block.amax(0))
        value = torch.where(self.pos_logits < self.pos_threshold, self.pos_logits, -math.inf)
        row_max = row_max.scatter_reduce_(0, self.positives.queries, value, "amax")
        return torch.where(row_max > -math.inf, row_max, 0.0)

    def _pos_powers(self) -> Tensor:
        """2^y of the positives, in the same units as `neg_sum`."""
        if self.row_max is None:
            return torch.exp2(self.pos_logits)
        return torch.exp2(self.pos_logits - self.row_max[self.positives.queries])

    def _losses(self) -> tuple[Tensor, Tensor]:
        """Loss of each query, and Σ 2^y over all its mined pairs."""
        queries, tiny = self.positives.queries, torch.finfo(self.neg_sum.dtype).tiny
        mined = self.pos_logits > -math.inf
        sums = self.neg_sum.new_zeros(3, self.num_queries)
        parts = [mined.to(self.neg_sum.dtype), self._pos_powers(), torch.where(mined, self.pos_logits, 0.0)]
        self.num_positives, pos_sum, mean = sums.index_add_(1, queries, torch.stack(parts))
        mean /= self.num_positives.clamp_min(1)
        norm = (self.neg_sum + pos_sum).clamp_min(tiny)
        # One positive that outweighs the negatives: log(1 + N/P) avoids a difference of logarithms, and can be 0.
        single = torch.log1p(self.neg_sum / pos_sum.clamp_min(tiny))
        lse2 = torch.log2(norm) if self.row_max is None else torch.log2(norm) + self.row_max
        several = (lse2 - mean) * math.log(2)
        losses = torch.where((self.num_positives == 1) & (pos_sum >= self.neg_sum), single, several)
        # A loss that vanishes beside s/τ − 1/τ in this precision counts as 0, as in pytorch-metric-learning's sum.
        gap = mean * math.log(2) - 1.0 / self.temperature
        zero = (self.num_positives == 0) | ((self.num_positives == 1) & (gap + losses == gap))
        return losses.masked_fill_(zero, 0.0), norm

    def _gradient(self, losses: Tensor, norm: Tensor, weighted: Tensor) -> Tensor:
        """∂loss/∂q of each query: mined pairs weighted by the softmax, minus the mean of the positives."""
        queries = self.positives.queries
        live = (losses > 0).to(norm.dtype)
        gradient = weighted.mul_((live / norm)[:, None])
        weight = self._pos_powers() * (live / norm)[queries] - (live / self.num_positives.clamp_min(1))[queries]
        weight.masked_fill_(self.pos_logits == -math.inf, 0.0)
        weight *= self.inverse_norms[self.positives.rows]
        rows, place = torch.unique_consecutive(self.positives.rows, return_inverse=True)
        weights = weight.new_zeros(len(rows), self.num_queries).index_put_((place, queries), weight)
        for start in range(0, len(rows), self.block):
            part = slice(start, start + self.block)
            gradient.addmm_(weights[part].t(), self.references.rows(rows[part]))
        return gradient.div_(self.temperature)


def _flat_positions(pairs: Pairs, size: int, step: int, edges: Tensor) -> tuple[list[int], tuple[Tensor, ...]]:
    """Where the pairs of each block begin, and their positions in the flat matrix of the block."""
    cuts = torch.searchsorted(pairs.rows, edges).tolist()
    return cuts, (pairs.rows % step).mul_(size).add_(pairs.queries).tensor_split(cuts)


def _add_weighted(weighted: Tensor, rows: Tensor, block: Tensor, inverse_norm: Tensor) -> None:
    """Σ 2^y z/|z| over a block's mined negatives."""
    active = torch.nonzero(block.sum(1)).view(-1)
    count = active.numel()
    if count < DENSE_FRACTION * rows.shape[0]:
        if not count:
            return
        rows, block, inverse_norm = (part.index_select(0, active) for part in (rows, block, inverse_norm))
    weighted.addmm_(block.mul_(inverse_norm[:, None]).t(), rows)


@torch.no_grad()
def count_negatives(queries: Tensor, references: References, excluded: Pairs, min_negative: float) -> int:
    """Count the pairs that are mined as negatives; for batches with very few."""
    rows = references.rows(slice(None))
    if references.cosine:
        rows = torch.nn.functional.normalize(rows, dim=1)
    mined = rows @ queries.t() > min_negative
    mined[excluded.rows, excluded.queries] = False
    return int(mined.sum())
