"""Compatibility with pytorch-metric-learning (PML): index tuples, attributes and checkpoints of its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.losses.mined_supcon import Margins
from lookalike.memory.queue import EmbeddingQueue
from lookalike.memory.xbn import CustomRule, MomentFilter, ShrunkMoments

IndicesTuple = Sequence[Tensor]
"""(anchors, positives, negatives) or (anchors, positives, anchors, negatives)."""


class FusedSettings(NamedTuple):
    """Settings of the fused SupCon kernel."""

    temperature: float
    margins: Margins


def fused_settings(loss: Any, miner: Any) -> FusedSettings | None:
    """Return the settings of the fused kernel if it computes exactly this loss and miner, else None."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner
    from pytorch_metric_learning.reducers import AvgNonZeroReducer

    def is_default(distance: Any, kind: Any) -> bool:
        plain = type(distance) is kind and _is_plain(distance)
        return plain and (distance.p, distance.power, distance.normalize_embeddings) == (2, 1, True)

    if type(loss) is not SupConLoss or not _is_plain(loss) or not is_default(loss.distance, CosineSimilarity):
        return None
    reducer = loss.reducer
    if type(reducer) is not AvgNonZeroReducer or not _is_plain(reducer) or (reducer.low, reducer.high) != (0, None):
        return None
    if loss.embedding_regularizer is not None or not isinstance(loss.temperature, int | float):
        return None
    margins = Margins()
    if miner is not None:
        if type(miner) is not PairMarginMiner or not _is_plain(miner):
            return None
        pos, neg = float(miner.pos_margin), float(miner.neg_margin)
        if is_default(miner.distance, CosineSimilarity):
            margins = Margins(pos, neg)
        elif is_default(miner.distance, LpDistance):
            # Distances of unit vectors as cosines: d = √(2 − 2cos).
            margins = Margins(math.inf if pos < 0 else 1 - pos**2 / 2, math.inf if neg <= 0 else 1 - neg**2 / 2)
        else:
            return None
    return FusedSettings(float(loss.temperature), margins)


def _is_plain(module: Any) -> bool:
    """Whether a module has no hooks and collects no statistics."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and not module.collect_stats


def mine_pairs(
    miner: Any, embeddings: Tensor, labels: Tensor, rows: Tensor | None = None, row_labels: Tensor | None = None
) -> IndicesTuple:
    """Return the tuples of the miner, or all pairs."""
    from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices

    return get_all_pairs_indices(labels, row_labels) if miner is None else miner(embeddings, labels, rows, row_labels)


def _select(indices: IndicesTuple, keep_pos: Tensor, keep_neg: Tensor) -> IndicesTuple:
    """Select triplets of which both pairs are kept, or pairs of each kind."""
    if len(indices) == 3:
        return tuple(part[keep_pos & keep_neg] for part in indices)
    return indices[0][keep_pos], indices[1][keep_pos], indices[2][keep_neg], indices[3][keep_neg]


def remove_own_rows(indices: IndicesTuple, slots: Tensor | None) -> IndicesTuple:
    """Drop positives that are the anchor's own row; a row of the same image cannot be a negative."""
    if slots is None:
        return indices
    return _select(indices, slots[indices[0]] != indices[1], torch.ones_like(indices[-1], dtype=torch.bool))


def remove_same_images(indices: IndicesTuple, ids: Tensor, row_ids: Tensor) -> IndicesTuple:
    """Drop pairs of the same image, whatever their labels."""
    anchors = indices[2] if len(indices) == 4 else indices[0]
    return _select(indices, ids[indices[0]] != row_ids[indices[1]], ids[anchors] != row_ids[indices[-1]])


def append_indices(indices: IndicesTuple, extra: IndicesTuple, labels: Tensor, slots: Tensor | None) -> IndicesTuple:
    """Append the caller's tuples. Theirs are positions in the batch: `slots` maps them to rows of the memory.

    None leaves them as they are, as pytorch-metric-learning does.
    """
    from pytorch_metric_learning.utils.common_functions import concatenate_indices_tuples
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs, convert_to_triplets

    if len(extra) == 3 and len(indices) == 4:
        extra = convert_to_pairs(extra, labels)
    elif len(extra) == 4 and len(indices) == 3:
        extra = convert_to_triplets(extra, labels)
    if slots is not None:  # images that were not stored drop out
        positives, negatives = slots[extra[1]], slots[extra[-1]]
        extra = _select((extra[0], positives, *extra[2:-1], negatives), positives >= 0, negatives >= 0)
    return concatenate_indices_tuples(tuple(indices), tuple(extra))


class PMLCompatibleMemory(nn.Module):
    """Attributes and smaller methods of pytorch-metric-learning's `CrossBatchMemory`.

    Attributes can be read and assigned. With a drift rule, reading returns a copy: assign to change the memory.
    """

    loss: Any
    miner: Any
    queue: EmbeddingQueue
    drift: MomentFilter | ShrunkMoments | CustomRule | None
    compat: str | None
    memory_size: int
    curr_batch_idx: Tensor

    @staticmethod
    def supported_losses() -> list[str]:
        """Return the losses that pytorch-metric-learning supports; without `compat` any loss works."""
        from pytorch_metric_learning.losses import CrossBatchMemory as Theirs

        return list(Theirs.supported_losses())

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Raise if pytorch-metric-learning does not support the loss."""
        if loss_name not in cls.supported_losses():
            raise LookalikeError(
                f"pytorch-metric-learning's memory does not support {loss_name}; leave out `compat` to use it."
            )

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: IndicesTuple | None,
        do_remove_self_comparisons: bool,
    ) -> IndicesTuple:
        """Return the pairs or triplets of a batch and a memory."""
        slots = self.curr_batch_idx if do_remove_self_comparisons else None
        return self.select_pairs(embeddings, labels, E_mem, L_mem, extra=input_indices_tuple, slots=slots)

    def select_pairs(self, *sides: Tensor, extra: IndicesTuple | None, slots: Tensor | None) -> IndicesTuple:
        """Return the mined tuples of embeddings, labels, rows and their labels, and the caller's extra tuples.

        An image's own row is left out.
        """
        indices = remove_own_rows(mine_pairs(self.miner, *sides), slots)
        if extra is not None:
            indices = append_indices(indices, extra, sides[1], None if self.compat else slots)
        return indices

    @property
    def embedding_memory(self) -> Tensor:
        """All rows as corrected now, zeros where none is stored."""
        if not self.queue.tracked:
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
        queue.recompute_sums()
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
        self.queue.recompute_sums()


def load_pml_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load a checkpoint of pytorch-metric-learning, which has rows and labels but not how many are filled."""
    if f"{prefix}embedding_memory" not in state or not isinstance(module, PMLCompatibleMemory):
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
    # Insert the new state as if it had been saved, so that no key counts as missing.
    prefixes = ("queue.", "drift.", "_extra_state")
    state |= {f"{prefix}{name}": value for name, value in module.state_dict().items() if name.startswith(prefixes)}
    warn(
        f"The checkpoint of pytorch-metric-learning does not store how many rows are filled: {count:,} of "
        f"{len(rows):,} rows are taken as filled, and the next batch goes after them."
    )
