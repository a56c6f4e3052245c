"""The stored rows: a ring in which one affine map stands for all adaptations so far.

Every row present gets the same map at each step, so base rows u and one pair (a, c) with z = a∘u + c are
enough, and adapting costs O(d) instead of O(n·d). The sums over the base rows are kept up to date with every
write; a and c are set from them anew each time, never multiplied up, so nothing drifts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core.device import CPU
from lookalike.memory.moments import TINY, Moments, exact, moments, spread

NO_ID = torch.iinfo(torch.int64).min
BLOCK = 4096
SETTLE_EVERY = 10_000


class Stale(NamedTuple):
    """Watched rows, for a drift meter: as they are now and as they were when they were stored."""

    slots: Tensor
    ids: Tensor
    labels: Tensor
    adapted: Tensor
    enqueued: Tensor


class Rows(nn.Module):
    base: Tensor
    labels: Tensor
    ids: Tensor
    scale: Tensor
    shift: Tensor
    total: Tensor
    squares: Tensor
    watched: Tensor
    enqueued: Tensor

    def __init__(self, size: int, dim: int, *, tracked: bool, correction: int = 0, watch: int = 0) -> None:
        super().__init__()
        self.size, self.dim, self.tracked, self.correction = size, dim, tracked, correction
        self.watch = min(watch, size)
        self.reset()

    def reset(self) -> None:
        """Empty, as new, on the device where it was."""
        device = self.base.device if "base" in self._buffers else CPU
        self.pointer = self.count = self.step = 0
        numbers: dict[str, Tensor] = {
            "base": torch.zeros(self.size, self.dim, device=device),
            "labels": torch.zeros(self.size, dtype=torch.int64, device=device),
            "ids": torch.full((self.size,), NO_ID, device=device),
        }
        if self.watch:
            slots = torch.arange(self.watch, device=device) * self.size // self.watch
            numbers |= {"watched": slots, "enqueued": torch.zeros(self.watch, self.dim, device=device)}
        for name in ("scale", "shift", "total", "squares"):
            numbers[name] = torch.zeros(self.dim, dtype=torch.float64, device=CPU)
        for name, tensor in numbers.items():
            self.register_buffer(name, tensor)
        self.scale.fill_(1.0)
        self._norms: Tensor | None = None
        self._norms_of: tuple[Tensor, int] | None = None

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether the rows stand in `base` as they are."""
        return not self.tracked

    def map(self) -> tuple[Tensor, Tensor]:
        """(a, c) as the rows' own kind of number, where the rows are."""
        return self.scale.to(self.base), self.shift.to(self.base)

    def read(self, chosen: slice | Tensor) -> Tensor:
        """Rows as adapted now; a view of the stored ones where there is no map."""
        base = self.base[chosen]
        if self.plain:
            return base
        a, c = self.map()
        return torch.addcmul(c, base, a)

    def norms(self) -> Tensor:
        """Lengths of the filled rows where there is no map: kept, and renewed after any write from outside."""
        if self._norms is None or not self._norms_fresh():
            self._norms = torch.linalg.vector_norm(self.base, dim=1)
            self._norms_of = (self.base, self.base._version)
        return self._norms[: self.count]

    def _norms_fresh(self) -> bool:
        return self._norms_of is not None and self._norms_of[0] is self.base and self._norms_of[1] == self.base._version

    def stale(self) -> Stale:
        chosen = self.watched[self.watched < self.count] if self.watch else self.labels[:0]
        kept = self.enqueued[: len(chosen)] if self.watch else self.base[:0]
        return Stale(chosen, self.ids[chosen], self.labels[chosen], self.read(chosen).clone(), kept.clone())

    def moments(self) -> Moments | None:
        """Of the filled rows as adapted now; None for fewer than two."""
        if self.count < 2:
            return None
        mean, std = self._base_moments()
        return Moments(self.scale * mean + self.shift, self.scale.abs() * std)

    def _base_moments(self) -> Moments:
        mean = self.total / self.count
        return Moments(mean, spread(mean, self.squares / self.count, self.count, self.correction))

    # ---- adapting --------------------------------------------------------------------------------

    def move_to(self, target: Moments) -> None:
        """Eq. 6: every filled row, so that their moments are the target's. Scale 1 where either spread is nil."""
        now = self.moments()
        if now is None:
            return
        base = self._base_moments()
        flat = (now.std < TINY) | (target.std < TINY)
        scale = torch.where(flat, self.scale, target.std / base.std)
        shift = torch.where(flat, self.shift + target.mean - now.mean, target.mean - scale * base.mean)
        self.scale.copy_(scale)
        self.shift.copy_(shift)

    def move_by(self, scale: Tensor, shift: Tensor) -> None:
        """z ← scale∘z + shift for every filled row."""
        scale, shift = exact(scale), exact(shift)
        self.scale.mul_(scale)
        self.shift.mul_(scale).add_(shift)

    def settle(self) -> None:
        """Re-base when the frame has wandered so far that float32 would lose digits, and now and then anyway.

        Decided from the state alone, so that a resumed run re-bases at the same steps.
        """
        if not self.tracked or self.count < 2:
            return
        base = self._base_moments()
        matters = self.scale.abs() * base.std >= TINY
        bad = (base.mean.abs() > 8.0 * base.std) | (base.std < 2.0**-6) | (base.std > 2.0**6)
        if self.step % SETTLE_EVERY == SETTLE_EVERY - 1 or bool((bad & matters).any()):
            self.rebase()

    def rebase(self) -> None:
        """u ← (u − μ_u)/σ_u; the rows that are read stay what they are."""
        if self.count < 2:
            return
        mean, std = self._base_moments()
        std = torch.where(std * self.scale.abs() < TINY, 1.0, std)
        for block in self.blocks():
            block.copy_(((exact(block) - mean) / std).to(block))
        self.shift.add_(self.scale * mean)
        self.scale.mul_(std)
        self.recount()

    def normalize(self) -> None:
        """Apply the map for good and bring every row to length one."""
        a, c = self.map()
        for block in self.blocks():
            torch.nn.functional.normalize(torch.addcmul(c, block, a), dim=1, out=block)
        self.scale.fill_(1.0)
        self.shift.zero_()
        self.recount()

    def recount(self) -> None:
        """The sums anew, after the base rows have changed by other ways than `write`."""
        if not self.tracked:
            return
        self.total.zero_()
        self.squares.zero_()
        for block in self.blocks():
            self._count(block, 1.0)

    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.count, BLOCK):
            yield self.base[start : min(start + BLOCK, self.count)]

    def _count(self, rows: Tensor, sign: float) -> None:
        rows = exact(rows)
        self.total.add_(rows.sum(0), alpha=sign)
        self.squares.add_(rows.square_().sum(0), alpha=sign)

    # ---- writing ---------------------------------------------------------------------------------

    @torch.no_grad()
    def write(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        """Enqueue at (pointer + i) mod size. Of more rows than fit the last ones stay. The slot of each row,
        −1 for those that found none."""
        number = len(rows)
        slots = (self.pointer + torch.arange(number, device=self.base.device)) % self.size
        first = max(number - self.size, 0)
        used = slots[first:]
        rows = rows.detach()[first:]
        stored = self._encode(rows, used) if self.tracked else rows.to(self.base.dtype)
        fresh = self._norms_fresh()
        self.base[used] = stored
        if fresh and self._norms is not None:
            self._norms = self._norms.index_copy(0, used, torch.linalg.vector_norm(stored, dim=1))
            self._norms_of = (self.base, self.base._version)
        self.labels[used] = labels.detach()[first:].to(self.labels)
        self.ids[used] = NO_ID if ids is None else ids.detach()[first:].to(self.ids)
        if self.watch:
            index, which = torch.nonzero(self.watched[:, None] == used[None, :], as_tuple=True)
            self.enqueued[index] = rows[which].to(self.enqueued)
        self.pointer = (self.pointer + number) % self.size
        self.count = min(self.size, self.count + number)
        slots[:first] = -1
        return slots

    def _encode(self, rows: Tensor, used: Tensor) -> Tensor:
        if self.count == 0 and len(rows):
            self.scale.fill_(1.0)
            self.shift.zero_()
            if len(rows) > 1:
                mean, std = moments(rows)
                wide = std >= TINY
                self.scale.copy_(torch.where(wide, std, 1.0))
                self.shift.copy_(torch.where(wide, mean, 0.0))
        else:
            self._count(self.base[used[used < self.count]], -1.0)
        stored = ((exact(rows) - self.shift) / self.scale).to(self.base)
        self._count(stored, 1.0)
        return stored

    # ---- keeping ---------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"pointer": self.pointer, "count": self.count, "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.pointer, self.count, self.step = state["pointer"], state["count"], state["step"]
        self._norms = None

    def _apply(self, fn: Any, recurse: bool = True) -> Rows:
        """Rows go where the model goes and keep float32, whatever it is cast to; statistics stay."""
        device = fn(self.labels).device
        for name in ("base", "labels", "ids", "watched", "enqueued"):
            if name in self._buffers:
                setattr(self, name, getattr(self, name).to(device))
        self._norms = None
        return self
