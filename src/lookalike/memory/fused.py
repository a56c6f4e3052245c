"""SupCon against the memory by the fused kernel: which pairs there are, and the mean over the queries."""

from __future__ import annotations

import torch
from torch import Tensor

from lookalike.core import distributed
from lookalike.losses.mined_supcon import (
    Pairs,
    References,
    count_negatives,
    equal_value_pairs,
    merge_pairs,
    mined_supcon,
)
from lookalike.memory.pairs import Fast
from lookalike.memory.queue import Rows


def fused_loss(
    queue: Rows,
    settings: Fast,
    embeddings: Tensor,
    labels: Tensor,
    ids: Tensor | None,
    slots: Tensor | None,
    *,
    cosine: bool = True,
    parts: int = 1,
) -> Tensor:
    """The mean over the queries with a loss above 0; over those of all processes when there are `parts`.

    Each process has its own queries: their sum × processes / count over all, so that the mean of the
    processes' gradients is that of the joint loss.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        queries = torch.nn.functional.normalize(embeddings.float(), dim=1)
        references = _references(queue, cosine)
        positives, hidden = _pairs(queue, labels, ids, slots)
        mined = mined_supcon(queries, references, positives, hidden, **settings._asdict())
        above = mined.losses > 0
        counts = torch.stack([above.sum(), mined.positives.sum().long(), mined.has_negatives.sum()])
        counted, near, far = (distributed.group_sum(counts) if parts > 1 else counts).tolist()
        if near == far == 1:  # one pair of each kind counts as nothing to compare, but one query may have several
            number = count_negatives(queries, references, hidden, settings.margins.min_negative)
            far = int(distributed.group_sum(counts.new_tensor(number))) if parts > 1 else number
        if counted and near and far and max(near, far) > 1:
            value = torch.where(above, mined.losses, 0.0).sum() * (parts / counted)
        else:
            value = queries.sum() * 0
    return value.to(embeddings.dtype)


def _references(queue: Rows, cosine: bool) -> References:
    base = queue.base[: queue.count]
    if queue.plain:
        return References(base, norms=queue.norms() if cosine else None, cosine=cosine)
    return References(base, *queue.map(), cosine=cosine)


def _pairs(queue: Rows, labels: Tensor, ids: Tensor | None, slots: Tensor | None) -> tuple[Pairs, Pairs]:
    """The positives, and all pairs that are no negatives: same label, or the same image."""
    hidden = equal_value_pairs(labels, queue.labels[: queue.count])
    other = torch.ones_like(hidden.rows, dtype=torch.bool)
    if slots is not None:
        other &= slots[hidden.queries] != hidden.rows
    if ids is not None:
        other &= ids[hidden.queries] != queue.ids[hidden.rows]
    positives = hidden.select(other)
    if ids is not None:
        hidden = merge_pairs(hidden, equal_value_pairs(ids, queue.ids[: queue.count]))
    return positives, hidden
