"""The face of pytorch-metric-learning's `CrossBatchMemory`: its attributes, its smaller methods, its checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.memory import pairs
from lookalike.memory.drift import Filter, Hook
from lookalike.memory.queue import Rows


class LikePML(nn.Module):
    """Attributes can be read and assigned. Where a drift rule is at work, reading writes the rows out, and a
    change inside what was read is not seen: assign."""

    loss: Any
    miner: Any
    queue: Rows
    drift: Filter | Hook | None
    compat: str | None
    memory_size: int
    curr_batch_idx: Tensor

    @staticmethod
    def supported_losses() -> list[str]:
        """Those that pytorch-metric-learning lets in; we take any unless `compat` is set."""
        from pytorch_metric_learning.losses import CrossBatchMemory as Theirs

        return list(Theirs.supported_losses())

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        if loss_name not in cls.supported_losses():
            raise LookalikeError(
                f"pytorch-metric-learning's memory does not take {loss_name}; ours does without compat."
            )

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: pairs.Tuple | None,
        do_remove_self_comparisons: bool,
    ) -> pairs.Tuple:
        slots = self.curr_batch_idx if do_remove_self_comparisons else None
        return self.compared(embeddings, labels, E_mem, L_mem, input_indices_tuple, slots)

    def compared(
        self,
        embeddings: Tensor,
        labels: Tensor,
        rows: Tensor,
        row_labels: Tensor,
        given: pairs.Tuple | None,
        slots: Tensor | None,
    ) -> pairs.Tuple:
        """What the miner finds, without each image's own row, and with the pairs that were given."""
        found = pairs.without_own(pairs.mine(self.miner, embeddings, labels, rows, row_labels), slots)
        if given is not None:
            found = pairs.outer(found, given, labels, None if self.compat else slots)
        return found

    @property
    def embedding_memory(self) -> Tensor:
        """All rows as adapted now, zeros where none is stored."""
        if self.queue.plain:
            return self.queue.base
        rows = self.queue.read(slice(None))
        rows[self.queue.count :] = 0
        return rows

    @embedding_memory.setter
    def embedding_memory(self, rows: Tensor) -> None:
        queue = self.queue
        if rows.shape != queue.base.shape:
            raise LookalikeError(f"The memory has the shape {tuple(queue.base.shape)}, not {tuple(rows.shape)}.")
        queue.base = rows.detach().clone() if self.compat else rows.detach().float().clone()
        queue.scale.fill_(1.0)
        queue.shift.zero_()
        queue.recount()
        queue.rebase()

    @property
    def label_memory(self) -> Tensor:
        return self.queue.labels

    @label_memory.setter
    def label_memory(self, labels: Tensor) -> None:
        self.queue.labels = labels.detach().to(torch.int64).clone()

    @property
    def queue_idx(self) -> int:
        return self.queue.pointer

    @queue_idx.setter
    def queue_idx(self, value: int) -> None:
        full = self.has_been_filled
        self.queue.pointer = value
        if not full:
            self._set_count(value)

    @property
    def has_been_filled(self) -> bool:
        return self.queue.count == self.memory_size

    @has_been_filled.setter
    def has_been_filled(self, value: bool) -> None:
        self._set_count(self.memory_size if value else self.queue.pointer)

    def _set_count(self, value: int) -> None:
        self.queue.count = value
        self.queue.recount()


def from_pml(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A checkpoint of pytorch-metric-learning's class: rows and labels, but not how far it was filled."""
    if f"{prefix}embedding_memory" not in state or not isinstance(module, LikePML):
        return
    rows = state.pop(f"{prefix}embedding_memory")
    labels = state.pop(f"{prefix}label_memory")
    stored = torch.nonzero(rows.any(1)).flatten()
    count = int(stored[-1]) + 1 if len(stored) else 0
    queue = module.queue
    queue.reset()
    if module.drift is not None:
        module.drift.reset()
    module.label_memory = labels.to(queue.labels.device)
    queue.count, queue.pointer = count, count % module.memory_size
    module.embedding_memory = rows.to(queue.base.device)
    # What was just built is put in as if it had been saved, so that nothing counts as missing.
    own = ("queue.", "drift.", "_extra_state")
    state |= {f"{prefix}{name}": value for name, value in module.state_dict().items() if name.startswith(own)}
    warn(
        f"A memory of pytorch-metric-learning does not say how far it was filled: {count:,} of {len(rows):,} rows "
        "are taken as filled, and the next batch goes after them."
    )
