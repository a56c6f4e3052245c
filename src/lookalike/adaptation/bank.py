"""The memory bank: first in, first out over images of the target and of the pool together.

Target and pool entries lie in two rings, so that a look-up for pseudo-labels reads target rows only; a common age
decides which entry leaves. Several entries of one target image share one vector of logits: their mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lookalike.adaptation.contrast import Columns
from lookalike.core.errors import LookalikeError


class Ring:
    """Entries in the order they came: features, ids, ages, a class each, and the logits of target entries."""

    def __init__(self, size: int, dim: int, classes: int, dtype: torch.dtype) -> None:
        self.rows = torch.zeros(size, dim, dtype=dtype)
        self.ids = torch.full((size,), -1)
        self.ages = torch.full((size,), -1)
        self.marks = torch.full((size,), -1)
        self.values = torch.zeros(size, classes, dtype=dtype)
        self.head, self.count = 0, 0

    def __len__(self) -> int:
        return self.count

    def slots(self) -> list[slice]:
        """Where the entries lie: one stretch, or two where a ring that is not full is wrapped."""
        end, size = self.head + self.count, len(self.ids)
        if end <= size or self.count == size:
            return [slice(0, size) if self.count == size else slice(self.head, end)] if self.count else []
        return [slice(0, end - size), slice(self.head, size)]

    def read(self, name: str) -> Tensor:
        """A column as it lies, without a copy where it lies in one stretch."""
        parts = [getattr(self, name)[part] for part in self.slots()]
        return parts[0] if len(parts) == 1 else torch.cat([getattr(self, name)[:0], *parts])

    def oldest(self, count: int) -> Tensor:
        """The ages of the entries that came first."""
        return self.ages[(self.head + torch.arange(min(count, self.count))) % len(self.ids)]

    def push(self, rows: Tensor, ids: Tensor, values: Tensor, marks: Tensor, age: int) -> None:
        place = (self.head + self.count + torch.arange(len(ids))) % len(self.ids)
        self.rows[place], self.ids[place] = rows, ids
        self.values[place], self.marks[place] = values, marks
        self.ages[place] = age + torch.arange(len(ids))
        self.count += len(ids)

    def pop(self, count: int) -> tuple[Tensor, Tensor]:
        """Ids and values of the entries that leave."""
        place = (self.head + torch.arange(count)) % len(self.ids)
        self.head, self.count = (self.head + count) % len(self.ids), self.count - count
        return self.ids[place], self.values[place]


class Bank:
    """`size` entries in all; ids of target images are 0 … `images` − 1, those of the pool lie above."""

    def __init__(self, size: int, dim: int, classes: int, images: int, *, dtype: torch.dtype = torch.float32) -> None:
        if size < 1:
            raise LookalikeError(f"A memory bank of {size} entries can hold nothing.")
        self.size = size
        self.target, self.pool = Ring(size, dim, classes, dtype), Ring(size, dim, 0, dtype)
        self.sums = torch.zeros(images, classes, dtype=torch.float64)
        self.counts = torch.zeros(images, dtype=torch.int64)
        self.classes = torch.zeros(images, dtype=torch.int64)
        """Of each image, by its entries together."""
        self.age = 0
        self.pushed, self.dropped = {"target": 0, "pool": 0}, {"target": 0, "pool": 0}

    def __len__(self) -> int:
        return len(self.target) + len(self.pool)

    def push_target(self, rows: Tensor, ids: Tensor, logits: Tensor, labels: Tensor | None = None) -> None:
        """Enqueue images of the target, oldest entries leaving first; `labels` are their classes as of now."""
        marks = logits.argmax(1) if labels is None else labels
        rows, ids, logits, marks = (x[-self.size :] for x in (rows, ids, logits, marks))
        self._make_room(len(ids))
        self.target.push(rows, ids, logits, marks, self.age)
        self.sums.index_add_(0, ids, logits.double())
        self.counts.index_add_(0, ids, torch.ones_like(ids))
        self.classes[ids] = self.sums[ids].argmax(1)
        self._came("target", len(ids))

    def push_pool(self, rows: Tensor, ids: Tensor, guesses: Tensor) -> None:
        """Enqueue images of the pool. They have no logits; `guesses` only serve to leave likely ones out."""
        rows, ids, guesses = (x[-self.size :] for x in (rows, ids, guesses))
        self._make_room(len(ids))
        self.pool.push(rows, ids, rows[:, :0], guesses, self.age)
        self._came("pool", len(ids))

    def _came(self, whose: str, count: int) -> None:
        self.age += count
        self.pushed[whose] += count

    def _make_room(self, count: int) -> None:
        gone = len(self) + count - self.size
        if gone <= 0:
            return
        ages = self.target.oldest(gone), self.pool.oldest(gone)
        last = torch.cat(ages).sort().values[gone - 1]
        ids, logits = self.target.pop(int((ages[0] <= last).sum()))
        self.sums.index_add_(0, ids, logits.double(), alpha=-1)
        self.counts.index_add_(0, ids, torch.full_like(ids, -1))
        self.classes[ids] = self.sums[ids].argmax(1)
        self.pool.pop(gone - len(ids))
        self.dropped["target"] += len(ids)
        self.dropped["pool"] += gone - len(ids)

    def recount(self) -> None:
        """Sums and counts from the entries themselves: after it, a run that was stopped and one that was not agree."""
        ids = self.target.read("ids")
        self.sums.zero_().index_add_(0, ids, self.target.read("values").double())
        self.counts.zero_().index_add_(0, ids, torch.ones_like(ids))
        self.classes = self.sums.argmax(1)

    def probabilities(self, ids: Tensor, *, of_logits: bool = True) -> Tensor:
        """Of images: softmax of their entries' mean logits, or the mean of their softmaxes; 0 where none are."""
        counts = self.counts[ids][..., None]
        if of_logits:
            return (self.sums[ids] / counts.clamp(min=1)).softmax(-1) * (counts > 0)
        single = self.target.read("values").double().softmax(1)
        sums = torch.zeros_like(self.sums).index_add_(0, self.target.read("ids"), single)
        return sums[ids] / counts.clamp(min=1)

    def columns(self, labels: Tensor | None = None, *, enqueued: bool = False) -> list[Columns]:
        """All entries, the target's first.

        The class of a target entry is that of its image's entries together, or `labels` by id, or what it was when
        it was enqueued.
        """
        by_id = self.classes if labels is None else labels
        out = []
        for ring, pool in ((self.target, False), (self.pool, True)):
            for part in ring.slots():
                marks = ring.marks[part] if pool or enqueued else by_id[ring.ids[part]]
                out.append(Columns(ring.rows[part], ring.ids[part], marks, pool=pool))
        return out

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and numbers, for a checkpoint."""
        rings = {name: {**vars(getattr(self, name))} for name in ("target", "pool")}
        rest = {name: getattr(self, name) for name in ("sums", "counts", "age", "pushed", "dropped")}
        return {**rings, **rest}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in ("target", "pool"):
            vars(getattr(self, name)).update(state[name])
        for name in ("sums", "counts", "age", "pushed", "dropped"):
            setattr(self, name, state[name])
        self.classes = self.sums.argmax(1)
