"""CARP: two views of an image should choose the same prototype, in blocks drawn anew at every step.

    from lookalike.losses.carp import CARPLoss, fused_carp

    found = CARPLoss(block_size=512)(student_logits, teacher_logits)   # (V, N, K), (W, N, K)
    found.loss.backward()

`CARPLoss` takes logits. `fused_carp` takes embeddings and prototypes, never holds an N×K matrix, and is what training
uses. Both take their gradient in the forward pass (`carp_blocks.py`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core import distributed, seeds
from lookalike.core.errors import LookalikeError
from lookalike.losses.carp_blocks import MeanOver, PairReduction, Rule, Scale, Scratch, Worked, pairs_of, work

Partition = Literal["random", "fixed", "constant"]
CHUNK = 2048
"""Columns worked off at a time, in whole blocks."""


class Readings(NamedTuple):
    """What the collapse guard looks at, besides the terms."""

    information: Tensor
    """I: mean over the blocks of H(p̄ˢ) − mean H(s), students only, in nats; 0 for whatever ignores the image."""
    worst: Tensor
    """The largest balance of any block."""
    share: Tensor
    """The largest share that one prototype has of its block."""
    chosen: Tensor
    """(N,) the prototype of all K that the teacher's first view lies nearest to."""


class Terms(NamedTuple):
    """The loss with its gradient, and its two parts to look at."""

    loss: Tensor
    consistency: Tensor
    balance: Tensor
    readings: Readings | None = None


def check_blocks(prototypes: int, block_size: int) -> None:
    """N_B ≥ 2 must divide K."""
    if block_size < 2:
        raise LookalikeError(
            f"Blocks of {block_size} prototype teach nothing: the softmax of one number is 1. Take at least 2."
        )
    if block_size > prototypes:
        raise LookalikeError(
            f"There are fewer prototypes ({prototypes}) than a block holds ({block_size}): take a smaller block."
        )
    if prototypes % block_size:
        raise LookalikeError(
            f"{prototypes} prototypes cannot be parted into blocks of {block_size}: the block size must divide them."
        )


def draw_partition(kind: Partition, prototypes: int, seed: int, step: int) -> Tensor:
    """The order whose runs of N_B are the blocks: a function of seed and step, so that there is nothing to save.

    `random` is drawn anew at every step, `fixed` once for all, `constant` leaves the prototypes in their order.
    """
    if kind == "constant":
        return torch.arange(prototypes)
    at = step if kind == "random" else 0
    return torch.randperm(prototypes, generator=seeds.torch_rng(seed, "partition", at))


class CARPLoss(nn.Module):
    """Silva and Ramírez Rivera, "CARP: Consistent Assignment of Views over Random Partitions", NeurIPS 2023.

    L = C + weight·B. C = mean over pairs (v, w), v ≠ w, images and blocks of −log⟨s, t⟩, with s and t the softmax
    inside a block; B = mean over blocks of KL(p̄ ‖ uniform), p̄ the mean of s and t over all rows. With one block it is
    the paper's eq. 2, `weight` its λ_e. Where paper and authors' code differ: docs/decisions/0180.

    Without a `permutation` one is drawn from seed and step, the same on every process; `step` counts the calls in
    training mode and is part of the state. With `gather` (and several processes) p̄ is that of all of them, and the
    gradient is the right one for a trainer that averages gradients; without, the rows given are the whole batch.
    """

    step: Tensor

    def __init__(
        self,
        block_size: int,
        *,
        pair_reduction: PairReduction = "mean",
        mean_over: MeanOver = "both",
        weight: float = 1.0,
        partition: Partition = "random",
        seed: int = 0,
        gather: bool = True,
    ) -> None:
        super().__init__()
        self.block_size, self.partition, self.seed, self.gather = block_size, partition, seed, gather
        self.rule = Rule(pair_reduction, mean_over, weight)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, student: Tensor, teacher: Tensor, permutation: Tensor | None = None) -> Terms:
        """`student` (V, N, K) and `teacher` (W, N, K) logits; view w of both is the same crop for w < W."""
        check_views(student, teacher)
        if permutation is None:
            drawn = draw_partition(self.partition, student.shape[-1], self.seed, int(self.step))
            permutation = distributed.group_first(drawn.to(student.device)) if self.gather else drawn
            if self.training:
                self.step += 1
        check_partition(permutation, student.shape[-1], self.block_size)
        scale = make_scale(student, self.block_size, self.gather)
        found = _Logits.apply(student, teacher, permutation.to(student.device), self.block_size, self.rule, scale)
        return Terms(*found)


def fused_carp(
    student: Tensor,
    teacher: Tensor,
    prototypes: Tensor,
    teacher_prototypes: Tensor,
    permutation: Tensor,
    block_size: int,
    *,
    rule: Rule | None = None,
    gather: bool = True,
    readings: bool = False,
    chunk: int = CHUNK,
) -> Terms:
    """The loss from embeddings (V, N, d), (W, N, d) and prototypes (K, d), which are brought to length one here.

    The logits are the products of the two, made, used and dropped some blocks at a time. What needs a gradient gets
    one, the teacher's side too; that of the prototypes is the one of the rows as they are given.
    """
    check_views(student, teacher)
    check_partition(permutation, len(prototypes), block_size)
    scale = make_scale(student, block_size, gather, len(prototypes))
    given = (student, teacher, prototypes, teacher_prototypes)
    found = _Fused.apply(*given, permutation.to(student.device), block_size, rule or Rule(), scale, readings, chunk)
    loss, consistency, balance, *rest = found
    return Terms(loss, consistency, balance, Readings(*rest) if readings else None)


def check_views(student: Tensor, teacher: Tensor) -> None:
    if student.ndim != 3 or teacher.ndim != 3 or student.shape[1:] != teacher.shape[1:]:
        raise LookalikeError(
            f"Student {tuple(student.shape)} and teacher {tuple(teacher.shape)} do not fit: both are views × images "
            "× numbers, of the same images."
        )
    if not pairs_of(len(student), len(teacher)):
        raise LookalikeError("One view has nothing to agree with: the loss needs two different views of each image.")


def check_partition(permutation: Tensor, prototypes: int, block_size: int) -> None:
    check_blocks(prototypes, block_size)
    if permutation.shape != (prototypes,):
        raise LookalikeError(f"An order of {len(permutation)} cannot part {prototypes} prototypes.")


def make_scale(student: Tensor, block_size: int, gather: bool, prototypes: int | None = None) -> Scale:
    """Rows and blocks of the step. The mean over processes of per-process losses is then that of the joint batch, and
    so is the mean of their gradients, even if they hold different numbers of images."""
    blocks = (prototypes or student.shape[-1]) // block_size
    world = distributed.group() if gather else 1
    if world == 1:
        return Scale(blocks, student.shape[1], 1, lambda value: value)
    rows = distributed.group_sum(torch.tensor(float(student.shape[1]), device=student.device)).item() / world
    return Scale(blocks, rows, world, distributed.group_sum)


def _chunks(prototypes: int, block_size: int, wide: int) -> list[slice]:
    step = max(block_size, wide - wide % block_size)
    return [slice(start, min(start + step, prototypes)) for start in range(0, prototypes, step)]


def _columns(x: Tensor, order: Tensor) -> Tensor:
    """The last axis in another order; of a matrix, since torch is ten times slower on more axes."""
    return x.flatten(0, -2).index_select(1, order).view(x.shape)


def _joined(parts: list[Worked], rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, consistency, balance), whose sums are taken in float64."""
    c, b = (torch.stack([getattr(p, name) for p in parts]).sum() for name in ("consistency", "balance"))
    return c + rule.weight * b, c, b


def _scaled(ctx: Any, factor: Tensor) -> list[Tensor | None]:
    """The gradients that the forward pass took."""
    if torch.is_grad_enabled():  # create_graph: the answer would be silently wrong
        raise LookalikeError("This loss has no second derivative: take the gradient without create_graph.")
    return [None if g is None else g * factor for g in ctx.saved_tensors]


class _Logits(torch.autograd.Function):
    """From logits in the prototypes' own order; their columns are put in order once, and the gradient's back."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, permutation: Tensor, size: int, rule: Rule, scale: Scale
    ) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad[:2]
        kind = torch.float64 if student.dtype == torch.float64 else torch.float32
        a, b = (_columns(x.detach().to(kind), permutation).unflatten(-1, (-1, size)) for x in (student, teacher))
        # With several processes all blocks go in one message; else as many at a time as stay in the caches.
        wide = CHUNK if scale.processes == 1 else a.shape[-1] * a.shape[-2]
        parts, scratch = [], Scratch(a)
        for columns in _chunks(a.shape[2] * size, size, wide):
            blocks = slice(columns.start // size, columns.stop // size)
            here = a[:, :, blocks], b[:, :, blocks]
            parts.append(work(*here, rule, scale, scratch, student=needs[0], teacher=needs[1]))
        back = torch.argsort(permutation)
        moved = (_columns(x.flatten(2), back) if need else None for x, need in zip((a, b), needs, strict=True))
        ctx.save_for_backward(*moved)
        out = [value.to(kind) for value in _joined(parts, rule)]
        ctx.mark_non_differentiable(*out[1:])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        return *_scaled(ctx, given[0]), None, None, None, None


class _Fused(torch.autograd.Function):
    """From embeddings and prototypes, some blocks at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        teacher: Tensor,
        prototypes: Tensor,
        teacher_prototypes: Tensor,
        permutation: Tensor,
        size: int,
        rule: Rule,
        scale: Scale,
        readings: bool,
        wide: int,
    ) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad[:4]
        sides = [_Side(student, prototypes, needs[0], needs[2]), _Side(teacher, teacher_prototypes, needs[1], needs[3])]
        parts, scratch = list[Worked](), Scratch(sides[0].z)
        best = torch.full(teacher.shape[1:2], -torch.inf, device=teacher.device, dtype=sides[1].z.dtype)
        chosen = torch.zeros_like(best, dtype=torch.int64)
        for columns in _chunks(len(prototypes), size, wide):
            places = permutation[columns]
            a, b = (side.logits(places).unflatten(-1, (-1, size)) for side in sides)
            if readings:
                top, place = b[0].flatten(1).max(1)
                chosen = torch.where(top > best, places[place], chosen)
                best = torch.maximum(top, best)
            asked = {"student": sides[0].asked, "teacher": sides[1].asked}
            parts.append(work(a, b, rule, scale, scratch, **asked, information=readings))
            for side in sides:
                if side.asked:
                    side.take(places)
        ctx.save_for_backward(sides[0].dz, sides[1].dz, sides[0].dc, sides[1].dc)
        out = [value.to(sides[0].z.dtype) for value in _joined(parts, rule)]
        if readings:
            told = [p.information for p in parts if p.information is not None]
            information = (torch.stack(told).sum() / scale.blocks).to(out[0])
            worst = torch.cat([p.divergence for p in parts]).max()
            out += [information, worst, torch.stack([p.share for p in parts]).max(), chosen]
        ctx.mark_non_differentiable(*out[1:])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        return *_scaled(ctx, given[0]), None, None, None, None, None, None


class _Side:
    """Student or teacher: rows, prototypes, and the gradients of both as they come in."""

    def __init__(self, z: Tensor, prototypes: Tensor, move_z: bool, move_prototypes: bool) -> None:
        kind = torch.float64 if z.dtype == torch.float64 else torch.float32
        self.shape, self.z, self.prototypes = z.shape, z.detach().to(kind).flatten(0, 1), prototypes.detach()
        self.dz = torch.zeros(z.shape, dtype=kind, device=z.device) if move_z else None
        self.dc = torch.empty(prototypes.shape, dtype=kind, device=z.device) if move_prototypes else None
        self.asked = move_z or move_prototypes
        self.scratch = Scratch(self.z)

    def logits(self, places: Tensor) -> Tensor:
        """(V, N, places); `take` finds the gradient in the same memory."""
        rows = self.prototypes[places].to(self.z.dtype)
        self.length = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=torch.finfo(rows.dtype).tiny)
        self.rows = rows.div_(self.length)
        self.block = torch.mm(self.z, self.rows.t(), out=self.scratch.take("logits", len(self.z), len(rows)))
        return self.block.view(*self.shape[:2], -1)

    def take(self, places: Tensor) -> None:
        """The gradient of the logits, passed on: of unit rows it is the part across them, divided by their length."""
        if self.dz is not None:
            self.dz.flatten(0, 1).addmm_(self.block, self.rows)
        if self.dc is not None:
            onto = torch.mm(self.block.t(), self.z, out=self.scratch.take("onto", *self.rows.shape))
            along = torch.einsum("kd,kd->k", onto, self.rows)[:, None]
            self.dc[places] = onto.sub_(self.rows * along).div_(self.length)
