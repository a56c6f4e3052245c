"""Ring buffer of embeddings in which one affine map stands for all drift corrections so far.

At each step every stored embedding gets the same map, so base rows u and one pair (a, c) with z = a∘u + c suffice, and
a correction costs O(d) instead of O(n·d). Sums over the base rows are updated with every write; a and c are computed
from them anew each time, never accumulated, so no error builds up. See docs/design/memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core.device import CPU
from lookalike.memory.xbn import MIN_STD, Moments, as_float64, compute_moments, std_from_squares

NO_ID = torch.iinfo(torch.int64).min
BLOCK = 4096
REBASE_EVERY = 10_000


class WatchedRows(NamedTuple):
    """Some stored embeddings for measuring drift.

    Args:
        ids: Their images.
        adapted: The embeddings as corrected now.
        enqueued: The embeddings as they were enqueued.

    Shape:
        - ids: ``(m,)``; adapted, enqueued: ``(m, d)``.

    Example:
        >>> rows = WatchedRows(torch.tensor([7]), torch.ones(1, 2), torch.zeros(1, 2))
        >>> (rows.adapted - rows.enqueued).norm(dim=1)
        tensor([1.4142])
    """

    ids: Tensor
    adapted: Tensor
    enqueued: Tensor


class EmbeddingQueue(nn.Module):
    """Ring buffer of `size` embeddings, labels and ids with a common affine map.

    `tracked`: keep the sums and the map that drift correction needs; otherwise rows are stored as they are. `watch`:
    number of rows whose original form is kept for measuring drift.
    """

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
        """Empty the buffer, on the device where it is."""
        device = self.base.device if "base" in self._buffers else CPU
        self.pointer = self.count = self.step = 0
        buffers: dict[str, Tensor] = {
            "base": torch.zeros(self.size, self.dim, device=device),
            "labels": torch.zeros(self.size, dtype=torch.int64, device=device),
            "ids": torch.full((self.size,), NO_ID, device=device),
        }
        if self.watch:
            slots = torch.arange(self.watch, device=device) * self.size // self.watch
            buffers |= {"watched": slots, "enqueued": torch.zeros(self.watch, self.dim, device=device)}
        for name in ("scale", "shift", "total", "squares"):
            buffers[name] = torch.zeros(self.dim, dtype=torch.float64, device=CPU)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.scale.fill_(1.0)
        self._norms: Tensor | None = None
        self._norms_version: tuple[Tensor, int] | None = None

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """Return (a, c) with dtype and device of the rows."""
        return self.scale.to(self.base), self.shift.to(self.base)

    def read(self, selection: slice | Tensor) -> Tensor:
        """Return rows as corrected now; without a map this is a view of the stored ones."""
        base = self.base[selection]
        if not self.tracked:
            return base
        a, c = self.affine_map()
        return torch.addcmul(c, base, a)

    def norms(self) -> Tensor:
        """Return the norms of the filled rows where there is no map; cached until the rows change."""
        if self._norms is None or not self._norms_valid():
            self._norms = torch.linalg.vector_norm(self.base, dim=1)
            self._norms_version = (self.base, self.base._version)
        return self._norms[: self.count]

    def _norms_valid(self) -> bool:
        known = self._norms_version
        return known is not None and known[0] is self.base and known[1] == self.base._version

    def watched_rows(self) -> WatchedRows:
        """Return up to `watch` filled rows, spread over the memory."""
        slots = self.watched[self.watched < self.count] if self.watch else self.labels[:0]
        enqueued = self.enqueued[: len(slots)] if self.watch else self.base[:0]
        return WatchedRows(self.ids[slots], self.read(slots).clone(), enqueued.clone())

    def moments(self) -> Moments | None:
        """Return the moments of the filled rows as corrected now; None for fewer than two."""
        if self.count < 2:
            return None
        mean, std = self._base_moments()
        return Moments(self.scale * mean + self.shift, self.scale.abs() * std)

    def _base_moments(self) -> Moments:
        mean = self.total / self.count
        return Moments(mean, std_from_squares(mean, self.squares / self.count, self.count, self.correction))

    def match_moments(self, target: Moments) -> None:
        """Apply XBN (eq. 6) to all filled rows: their moments become the target's, as in `xbn_update`.

        Dimensions in which either standard deviation vanishes are only shifted.
        """
        now = self.moments()
        if now is None:
            return
        base = self._base_moments()
        flat = (now.std < MIN_STD) | (target.std < MIN_STD)
        scale = torch.where(flat, self.scale, target.std / base.std)
        shift = torch.where(flat, self.shift + target.mean - now.mean, target.mean - scale * base.mean)
        self.scale.copy_(scale)
        self.shift.copy_(shift)

    def apply_affine(self, scale: Tensor, shift: Tensor) -> None:
        """Apply z ← scale∘z + shift to all filled rows."""
        scale, shift = as_float64(scale), as_float64(shift)
        self.scale.mul_(scale)
        self.shift.mul_(scale).add_(shift)

    def rebase_if_needed(self) -> None:
        """Rebase when the map is so extreme that float32 would lose digits, and every 10,000 steps.

        Decided from the state alone, so that a resumed run rebases at the same steps.
        """
        if not self.tracked or self.count < 2:
            return
        base = self._base_moments()
        matters = self.scale.abs() * base.std >= MIN_STD
        bad = (base.mean.abs() > 8.0 * base.std) | (base.std < 2.0**-6) | (base.std > 2.0**6)
        if self.step % REBASE_EVERY == REBASE_EVERY - 1 or bool((bad & matters).any()):
            self.rebase()

    def rebase(self) -> None:
        """Standardize the base rows, u ← (u − μ_u)/σ_u, and adjust the map; `read` returns the same rows."""
        if self.count < 2:
            return
        mean, std = self._base_moments()
        std = torch.where(std * self.scale.abs() < MIN_STD, 1.0, std)
        for block in self.blocks():
            block.copy_(((as_float64(block) - mean) / std).to(block))
        self.shift.add_(self.scale * mean)
        self.scale.mul_(std)
        self.recompute_sums()

    def normalize(self) -> None:
        """Apply the map to the base rows and normalize them to unit length."""
        a, c = self.affine_map()
        for block in self.blocks():
            torch.nn.functional.normalize(torch.addcmul(c, block, a), dim=1, out=block)
        self.scale.fill_(1.0)
        self.shift.zero_()
        self.recompute_sums()

    def recompute_sums(self) -> None:
        """Compute the sums anew after the base rows were changed other than by `write`."""
        if not self.tracked:
            return
        self.total.zero_()
        self.squares.zero_()
        for block in self.blocks():
            self._add_to_sums(block, 1.0)

    def blocks(self) -> Iterator[Tensor]:
        """Iterate over the filled base rows, a block at a time."""
        for start in range(0, self.count, BLOCK):
            yield self.base[start : min(start + BLOCK, self.count)]

    def _add_to_sums(self, rows: Tensor, sign: float) -> None:
        rows = as_float64(rows)
        self.total.add_(rows.sum(0), alpha=sign)
        self.squares.add_(rows.square_().sum(0), alpha=sign)

    @torch.no_grad()
    def write(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        """Enqueue rows (n, d) at (pointer + i) mod size; of more rows than fit, the last ones stay.

        Returns the slot of each row, −1 for rows that were not stored.
        """
        number, first = len(rows), max(len(rows) - self.size, 0)
        slots = (self.pointer + torch.arange(number, device=self.base.device)) % self.size
        used, rows = slots[first:], rows.detach()[first:]
        stored = self._encode(rows, used) if self.tracked else rows.to(self.base.dtype)
        valid = self._norms_valid()
        self.base[used] = stored
        if valid and self._norms is not None:
            self._norms = self._norms.index_copy(0, used, torch.linalg.vector_norm(stored, dim=1))
            self._norms_version = (self.base, self.base._version)
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
        if self.count:
            self._add_to_sums(self.base[used[used < self.count]], -1.0)
        elif len(rows):  # one row alone has a standard deviation of 0
            mean, std = compute_moments(rows)
            wide = std >= MIN_STD
            self.scale.copy_(torch.where(wide, std, 1.0))
            self.shift.copy_(torch.where(wide, mean, 0.0))
        stored = ((as_float64(rows) - self.shift) / self.scale).to(self.base)
        self._add_to_sums(stored, 1.0)
        return stored

    def get_extra_state(self) -> dict[str, Any]:
        return {"pointer": self.pointer, "count": self.count, "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.pointer, self.count, self.step = state["pointer"], state["count"], state["step"]
        self._norms = None

    def _apply(self, fn: Any, recurse: bool = True) -> EmbeddingQueue:
        """Move rows with the model but keep float32, whatever it is cast to; statistics stay in main memory."""
        device = fn(self.labels).device
        for name in ("base", "labels", "ids", "watched", "enqueued"):
            if name in self._buffers:
                setattr(self, name, getattr(self, name).to(device))
        self._norms = None
        return self
