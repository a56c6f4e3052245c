"""CARP: two views of an image should be assigned to the same prototype, within random blocks of prototypes.

Silva and Ramírez Rivera, "CARP: Learning Consistent Assignment of Views over Random Partitions", NeurIPS 2023.
`carp_reference` is the objective in plain PyTorch. `CARPLoss` (from logits) and `fused_carp` (from embeddings and
prototypes) compute it with its gradient block by block, without an N×K matrix. See docs/design/pretraining.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from lookalike.core import distributed, seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings

CHUNK = 2048  # columns processed at a time, in whole blocks
MIN_DOT = 1e-20  # below this, ⟨s, t⟩ has lost its digits and is computed from the logits in log space


class CARPOptions(Settings):
    """How the two terms are reduced and weighted, and how blocks are drawn."""

    pair_reduction: Literal["mean", "sum"] = "mean"
    """Mean over the view pairs (authors' code), or sum (equation 3), which halves the weight of the balance."""
    mean_over: Literal["both", "student"] = "both"
    """Balance the assignments of student and teacher together, or of the student only."""
    weight: NonNegativeFloat = 1.0
    """Weight λ of the balance; with one block (N_B = K) it is λ_e of equation 2."""
    partition: Literal["random", "fixed", "constant"] = "random"
    """Blocks drawn at every step, drawn once, or in the order of the prototypes."""


class Diagnostics(NamedTuple):
    """Statistics of a step for the collapse monitor."""

    information: Tensor
    """Mean over blocks of H(p̄ˢ) − mean H(s), students only, in nats; 0 if assignments ignore the image."""
    max_balance: Tensor
    max_fraction: Tensor
    """Largest mean assignment p̄ of any prototype within its block."""
    assignments: Tensor
    """(N,) nearest of all K prototypes to the teacher's first view."""


class CARPOutput(NamedTuple):
    """The loss (differentiable) and its two terms (detached)."""

    loss: Tensor
    consistency: Tensor
    balance: Tensor
    diagnostics: Diagnostics | None = None


def view_pairs(student_views: int, teacher_views: int) -> list[tuple[int, int]]:
    """Return the (student view, teacher view) pairs that are compared: all except a crop with itself."""
    return [(v, w) for v in range(student_views) for w in range(teacher_views) if v != w]


def carp_reference(
    student: Tensor, teacher: Tensor, permutation: Tensor, block_size: int, options: CARPOptions | None = None
) -> Tensor:
    """Compute `CARPLoss(...)(student, teacher, permutation).loss` in plain PyTorch, by autograd (eq. 3).

    `student` (V, N, K) and `teacher` (W, N, K) are logits; runs of `block_size` in `permutation` (K,) are the blocks.
    """
    options = options or CARPOptions()
    log_s, log_t = (x[..., permutation].unflatten(-1, (-1, block_size)).log_softmax(-1) for x in (student, teacher))
    pairs = view_pairs(len(student), len(teacher))
    consistency = torch.stack([-(log_s[v] + log_t[w]).logsumexp(-1).mean() for v, w in pairs])
    mean = (torch.cat([log_s, log_t]) if options.mean_over == "both" else log_s).exp().mean((0, 1))
    balance = (math.log(block_size) + torch.xlogy(mean, mean).sum(-1)).mean()  # KL(p̄ ‖ uniform) of every block
    return getattr(consistency, options.pair_reduction)() + options.weight * balance


def draw_partition(kind: str, prototypes: int, seed: int, step: int) -> Tensor:
    """Draw the order of the prototypes whose runs of N_B are the blocks.

    It depends on seed and step only, so there is nothing to save for a resume. `kind` is ``"random"`` (new at every
    step), ``"fixed"`` (drawn once) or ``"constant"`` (the identity).
    """
    if kind == "constant":
        return torch.arange(prototypes)
    at = step if kind == "random" else 0
    return torch.randperm(prototypes, generator=seeds.torch_rng(seed, "partition", at))


class CARPLoss(nn.Module):
    """Consistent assignment of views over random partitions, from logits.

    L = C + weight·B. C is the mean over view pairs (v, w), v ≠ w, images and blocks of −log⟨s, t⟩, where s and t are
    the softmax within a block. B is the mean over blocks of KL(p̄ ‖ uniform), p̄ the mean of s and t over all rows.

    Args:
        block_size: Prototypes in a block (N_B); must divide K.
        seed: Seed of the partitions.
        gather: With several processes, take p̄ over all of them; gradients are then right for a trainer that averages
            gradients. Otherwise the rows passed are the whole batch.
        options: Fields of :class:`CARPOptions`.

    Shape:
        - student: ``(V, N, K)`` logits; teacher: ``(W, N, K)`` logits; view w of both is the same crop for w < W.
        - permutation: ``(K,)``, optional.

    References:
        Silva and Ramírez Rivera, "CARP", NeurIPS 2023, eq. 1 to 3. Differences between the paper and the authors'
        code: docs/design/pretraining.md.

    Example:
        >>> student, teacher = torch.randn(2, 8, 64, requires_grad=True), torch.randn(2, 8, 64)
        >>> output = CARPLoss(block_size=16)(student, teacher)
        >>> output.loss.backward()
        >>> student.grad.shape
        torch.Size([2, 8, 64])
    """

    def __init__(self, block_size: int, *, seed: int = 0, gather: bool = True, **options: Any) -> None:
        super().__init__()
        self.block_size, self.seed, self.gather = block_size, seed, gather
        self.options = CARPOptions.parse(options, "settings of CARP")
        self.step = nn.Buffer(torch.zeros((), dtype=torch.int64))  # calls in training mode

    def forward(self, student: Tensor, teacher: Tensor, permutation: Tensor | None = None) -> CARPOutput:
        """Compute the loss; without a permutation one is drawn from seed and step, the same on every process."""
        _check_views(student, teacher)
        prototypes = student.shape[-1]
        if permutation is None:
            drawn = draw_partition(self.options.partition, prototypes, self.seed, int(self.step))
            permutation = distributed.group_broadcast(drawn.to(student.device)) if self.gather else drawn
            if self.training:
                self.step.add_(1)
        _check_partition(permutation, prototypes, self.block_size)
        blocks = _make_blocks(student, permutation, self.block_size, CHUNK, self.options, self.gather)
        if blocks.world_size > 1:  # all blocks go in one message, instead of as many at a time as stay in the caches
            blocks = blocks._replace(chunk=prototypes)
        return CARPOutput(*_Kernel.apply(blocks, False, student, teacher))


def fused_carp(
    student: Tensor,
    teacher: Tensor,
    prototypes: Tensor,
    teacher_prototypes: Tensor,
    permutation: Tensor,
    block_size: int,
    *,
    options: CARPOptions | None = None,
    gather: bool = True,
    diagnostics: bool = False,
    chunk: int = CHUNK,
) -> CARPOutput:
    """Return the CARP loss and its terms from embeddings and prototypes, a few blocks of logits at a time.

    Prototypes are normalized here. Every input that requires a gradient gets one, the teacher's included.

    Args:
        student: Projected views of the student, not normalized.
        teacher: Projected views of the teacher.
        prototypes: The student's prototypes.
        teacher_prototypes: The teacher's prototypes.
        permutation: Order of the prototypes; see :func:`draw_partition`.
        block_size: Prototypes in a block (N_B).
        options: Reduction and weight of the terms.
        gather: As in :class:`CARPLoss`.
        diagnostics: Also return :class:`Diagnostics`.
        chunk: Columns of logits that are held at a time.

    Shape:
        - student: ``(V, N, d)``; teacher: ``(W, N, d)``; prototypes: ``(K, d)``; permutation: ``(K,)``.

    References:
        Silva and Ramírez Rivera, "CARP", NeurIPS 2023, eq. 1 to 3.

    Example:
        >>> z, prototypes = torch.randn(2, 8, 16, requires_grad=True), torch.randn(64, 16)
        >>> order = draw_partition("random", 64, seed=0, step=1)
        >>> fused_carp(z, z.detach(), prototypes, prototypes, order, block_size=16).loss.backward()
    """
    _check_views(student, teacher)
    _check_partition(permutation, len(prototypes), block_size)
    blocks = _make_blocks(student, permutation, block_size, chunk, options or CARPOptions(), gather)
    output = _Kernel.apply(blocks, diagnostics, student, teacher, prototypes, teacher_prototypes)
    loss, consistency, balance, *statistics = output
    return CARPOutput(loss, consistency, balance, Diagnostics(*statistics) if diagnostics else None)


def check_blocks(prototypes: int, block_size: int) -> None:
    """Raise unless blocks of at least two prototypes divide the prototypes evenly."""
    if block_size < 2:
        raise LookalikeError(f"A block of {block_size} prototype has a constant softmax; use 2 or more.")
    if prototypes % block_size:
        raise LookalikeError(
            f"{prototypes} prototypes cannot be divided into blocks of {block_size}; use a size that divides them."
        )


def _check_views(student: Tensor, teacher: Tensor) -> None:
    if student.ndim != 3 or teacher.ndim != 3 or student.shape[1:] != teacher.shape[1:]:
        raise LookalikeError(
            f"The shapes of student {tuple(student.shape)} and teacher {tuple(teacher.shape)} do not match: both must "
            "be (views, images, dimension) of the same images."
        )
    if not view_pairs(len(student), len(teacher)):
        raise LookalikeError("CARP needs two different views of each image; only one was passed.")


def _check_partition(permutation: Tensor, prototypes: int, block_size: int) -> None:
    check_blocks(prototypes, block_size)
    if permutation.shape != (prototypes,):
        raise LookalikeError(f"A permutation of {len(permutation)} does not fit {prototypes} prototypes.")


class _Blocks(NamedTuple):
    """The partition and how it is processed; `rows` is the number of images, the mean over the processes."""

    permutation: Tensor
    size: int
    chunk: int
    options: CARPOptions
    rows: float
    world_size: int

    @property
    def num_blocks(self) -> int:
        return len(self.permutation) // self.size

    def all_reduce(self, value: Tensor) -> Tensor:
        return distributed.group_sum(value) if self.world_size > 1 else value

    def columns(self) -> list[slice]:
        """Slices of the permutation that hold whole blocks, at most `chunk` columns each."""
        count, step = len(self.permutation), max(self.size, self.chunk - self.chunk % self.size)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _make_blocks(
    student: Tensor, permutation: Tensor, size: int, chunk: int, options: CARPOptions, gather: bool
) -> _Blocks:
    """Scale so that the mean over processes of losses and gradients is that of the joint batch."""
    rows, world_size = float(student.shape[1]), distributed.group_size() if gather else 1
    if world_size > 1:
        rows = distributed.group_sum(torch.tensor(rows, device=student.device)).item() / world_size
    return _Blocks(permutation.to(student.device), size, chunk, options, rows, world_size)


class _Workspace:
    """Buffers reused by every chunk of a step: allocating them anew takes longer than the arithmetic."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers = like, dict[str, Tensor]()

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialized buffer of that shape."""
        count = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < count:
            self.buffers[name] = self.like.new_empty(count)
        return self.buffers[name][:count].view(shape)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _LogitSide:
    """Logits whose columns are brought into the order of the partition once, and whose gradient is brought back."""

    def __init__(self, logits: Tensor, permutation: Tensor, needs_grad: bool) -> None:
        self.needs_grad, self.permutation, self.dtype = needs_grad, permutation, _compute_dtype(logits)
        self.ordered = self._select(logits.detach().to(self.dtype), permutation)

    @staticmethod
    def _select(x: Tensor, order: Tensor) -> Tensor:
        # As a matrix: index_select is ten times slower on more axes.
        return x.flatten(0, -2).index_select(1, order).view(x.shape)

    def logits(self, columns: slice) -> Tensor:
        return self.ordered[:, :, columns]

    def accumulate(self, columns: slice) -> None:
        """The gradient has already replaced the logits."""

    def gradients(self) -> list[Tensor | None]:
        return [self._select(self.ordered, torch.argsort(self.permutation)) if self.needs_grad else None]


class _EmbeddingSide:
    """Embeddings and prototypes, whose products are the logits, and the gradients of both."""

    def __init__(self, z: Tensor, prototypes: Tensor, permutation: Tensor, needs: tuple[bool, bool]) -> None:
        self.dtype = _compute_dtype(z)
        self.shape, self.z, self.prototypes = z.shape, z.detach().to(self.dtype).flatten(0, 1), prototypes.detach()
        self.grad_z = torch.zeros(z.shape, dtype=self.dtype, device=z.device) if needs[0] else None
        self.grad_prototypes = torch.empty(prototypes.shape, dtype=self.dtype, device=z.device) if needs[1] else None
        self.needs_grad, self.permutation, self.workspace = any(needs), permutation, _Workspace(self.z)

    def logits(self, columns: slice) -> Tensor:
        rows = self.prototypes[self.permutation[columns]].to(self.z.dtype)
        self.norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=torch.finfo(rows.dtype).tiny)
        self.rows = rows.div_(self.norms)
        self.block = torch.mm(self.z, self.rows.t(), out=self.workspace.take("logits", len(self.z), len(rows)))
        return self.block.view(*self.shape[:2], -1)

    def accumulate(self, columns: slice) -> None:
        """Pass on the gradient of the logits; through the normalization it is the tangential part over the norm."""
        if self.grad_z is not None:
            self.grad_z.flatten(0, 1).addmm_(self.block, self.rows)
        if self.grad_prototypes is not None:
            grad = torch.mm(self.block.t(), self.z, out=self.workspace.take("grad", *self.rows.shape))
            radial = torch.einsum("kd,kd->k", grad, self.rows)[:, None]
            self.grad_prototypes[self.permutation[columns]] = grad.sub_(self.rows * radial).div_(self.norms)

    def gradients(self) -> list[Tensor | None]:
        return [self.grad_z, self.grad_prototypes]


class _Kernel(torch.autograd.Function):
    """The loss with its gradient, a few blocks at a time; inputs are (student, teacher[, their prototypes])."""

    @staticmethod
    def forward(ctx: Any, blocks: _Blocks, diagnostics: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        needs, order, options = ctx.needs_input_grad[2:], blocks.permutation, blocks.options
        sides: list[_LogitSide] | list[_EmbeddingSide]
        if len(inputs) == 2:
            sides = [_LogitSide(x, order, need) for x, need in zip(inputs, needs, strict=True)]
        else:
            sides = [_EmbeddingSide(inputs[n], inputs[n + 2], order, (needs[n], needs[n + 2])) for n in (0, 1)]
        dtype, device = sides[0].dtype, inputs[0].device
        parts, workspace = list[_BlockTerms](), _Workspace(torch.empty(0, dtype=dtype, device=device))
        best = torch.full(inputs[1].shape[1:2], -torch.inf, device=device, dtype=sides[1].dtype)
        assignments = torch.zeros_like(best, dtype=torch.int64)
        for columns in blocks.columns():
            a, b = (side.logits(columns).unflatten(-1, (-1, blocks.size)) for side in sides)
            if diagnostics:
                top, place = b[0].flatten(1).max(1)
                assignments = torch.where(top > best, order[columns][place], assignments)
                best = torch.maximum(top, best)
            needed = (sides[0].needs_grad, sides[1].needs_grad)
            parts.append(_block_terms(a, b, blocks, workspace, needed, information=diagnostics))
            for side in sides:
                if side.needs_grad:
                    side.accumulate(columns)
        gradients = [side.gradients() for side in sides]
        ctx.save_for_backward(*(side[n] for n in range(len(gradients[0])) for side in gradients))
        consistency, balance = (torch.stack([getattr(p, k) for p in parts]).sum() for k in ("consistency", "balance"))
        output = [value.to(dtype) for value in (consistency + options.weight * balance, consistency, balance)]
        if diagnostics:
            information = torch.stack([p.information for p in parts if p.information is not None]).sum()
            output += [
                (information / blocks.num_blocks).to(dtype),
                torch.cat([p.divergence for p in parts]).max(),
                torch.stack([p.max_fraction for p in parts]).max(),
                assignments,
            ]
        ctx.mark_non_differentiable(*output[1:])
        return tuple(output)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph: the result would be silently wrong
            raise LookalikeError("CARP has no second derivative: take the gradient without create_graph.")
        return None, None, *(None if g is None else g * outer[0] for g in ctx.saved_tensors)


class _BlockTerms(NamedTuple):
    """Sums over some blocks; `divergence` is KL(p̄ ‖ uniform) of every block."""

    consistency: Tensor
    balance: Tensor
    divergence: Tensor
    max_fraction: Tensor
    information: Tensor | None


def _block_terms(
    a: Tensor, b: Tensor, blocks: _Blocks, workspace: _Workspace, needs_grad: tuple[bool, bool], information: bool
) -> _BlockTerms:
    """Both terms of J blocks of logits, a (V, N, J, M) and b (W, N, J, M).

    A block needs all rows but only its own columns. Where a gradient is needed it replaces the logits.
    """
    views, teacher_views, options = len(a), len(b), blocks.options
    pairs = view_pairs(views, teacher_views)
    each = 1.0 / (blocks.rows * blocks.num_blocks * (len(pairs) if options.pair_reduction == "mean" else 1))
    s = torch.softmax(a, -1, out=workspace.take("s", *a.shape))
    t = torch.softmax(b, -1, out=workspace.take("t", *b.shape))
    mean, balance, student_sums = _balance(s, t, blocks)
    dots = torch.stack([_dot(s[v], t[w], workspace) for v, w in pairs])
    tiny = dots < MIN_DOT
    consistency = -dots.masked_fill(tiny, 1.0).log().sum(dtype=torch.float64)
    log_space = {}
    for (v, w), rows in zip(pairs, tiny, strict=True) if tiny.any() else ():
        x, y, both = a[v][rows], b[w][rows], a[v][rows] + b[w][rows]
        r = torch.softmax(both, -1)
        logs = _logsumexp(x, s[v][rows]) + _logsumexp(y, t[w][rows]) - _logsumexp(both, r)
        consistency += logs.sum(dtype=torch.float64)
        log_space[v, w] = rows, each * r
    mutual = None
    if information:
        count = views * blocks.rows * blocks.world_size
        p = student_sums / count
        # H(s) = log Σ exp(a) − ⟨s, a⟩, summed over the rows of all processes.
        entropies = [_logsumexp(x, q) - _dot(q, x, workspace) for x, q in zip(a, s, strict=True)]
        block_entropies = blocks.all_reduce(torch.stack(entropies).sum((0, 1)))
        mutual = -torch.xlogy(p, p).sum(dtype=torch.float64)
        mutual -= block_entropies.sum(dtype=torch.float64) / count
    balances_teacher = options.mean_over == "both"
    slope = options.weight / (blocks.num_blocks * blocks.rows * (views + teacher_views * balances_teacher))
    log_mean = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
    pulls = dict(zip(pairs, each / dots.masked_fill(tiny, torch.inf), strict=True))
    if needs_grad[0]:
        _gradient(a, s, t, pulls, slope * log_mean, each, workspace)
    if needs_grad[1]:
        swapped = {(w, v): pull for (v, w), pull in pulls.items()}
        _gradient(b, t, s, swapped, slope * balances_teacher * log_mean, each, workspace)
    for (v, w), (rows, r) in log_space.items():
        for logits, needed, view in ((a, needs_grad[0], v), (b, needs_grad[1], w)):
            if needed:
                logits[view][rows] -= r
    mean_balance = balance.sum(dtype=torch.float64) / blocks.num_blocks
    return _BlockTerms(consistency * each, mean_balance, balance, mean.max(), mutual)


def _dot(x: Tensor, y: Tensor, workspace: _Workspace) -> Tensor:
    """⟨x, y⟩ over the last axis."""
    return torch.mul(x, y, out=workspace.take("product", *x.shape)).sum(-1)


PairWeights = dict[tuple[int, int], Tensor]
"""Weight (N, J) of every pair of views that is compared."""


def _gradient(
    out: Tensor, p: Tensor, q: Tensor, pulls: PairWeights, level: Tensor, each: float, workspace: _Workspace
) -> None:
    """Gradient of one side: p ∘ (Σ (each − q·pull) + level − ⟨p, level⟩), written to `out`."""
    for number, (p_view, out_view) in enumerate(zip(p, out, strict=True)):
        compared = [(other, pull) for (view, other), pull in pulls.items() if view == number]
        inner = _dot(p_view, level.expand_as(p_view), workspace)
        factor = workspace.take("product", *p_view.shape).copy_(each * len(compared) - inner[..., None])
        factor += level
        for other, pull in compared:
            factor.addcmul_(q[other], pull[..., None], value=-1)
        torch.mul(factor, p_view, out=out_view)


def _logsumexp(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Log Σ exp over the last axis from the softmax that is already known."""
    return logits.amax(-1) - probabilities.amax(-1).log()


def _balance(s: Tensor, t: Tensor, blocks: _Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """p̄ (J, M), its KL from uniform for every block, and the sums of the student's assignments."""
    sides = [s, t] if blocks.options.mean_over == "both" else [s]
    sums = blocks.all_reduce(torch.stack([side.sum((0, 1)) for side in sides]))
    rows = blocks.rows * blocks.world_size * sum(map(len, sides))
    mean = sums.sum(0) / rows
    return mean, math.log(s.shape[-1]) + torch.xlogy(mean, mean).sum(-1), sums[0]
