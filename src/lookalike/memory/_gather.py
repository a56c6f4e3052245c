"""The joint batch of several processes, for loops that are not ours (docs/decisions/0095)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike.core import distributed


class Joint(NamedTuple):
    embeddings: Tensor
    """In rank order; only the rows of this process carry gradient."""
    labels: Tensor
    ids: Tensor | None
    mask: Tensor | None
    mine: slice
    """Where the rows of this process stand."""
    parts: int
    """How many processes there are."""

    def share(self, loss: Tensor) -> Tensor:
        """A loss of the joint batch, so that the mean of all processes' gradients is the gradient of the joint
        loss: each has only the part of its own rows."""
        return loss if self.parts == 1 else loss.detach() + self.parts * (loss - loss.detach())


def alone(embeddings: Tensor, labels: Tensor, ids: Tensor | None, mask: Tensor | None) -> Joint:
    return Joint(embeddings, labels, ids, mask, slice(0, len(embeddings)), 1)


def gathered(embeddings: Tensor, labels: Tensor, ids: Tensor | None, mask: Tensor | None) -> Joint:
    rows, mine = distributed.group_rows(embeddings)
    rows = torch.cat([rows[: mine.start], embeddings, rows[mine.stop :]])
    return Joint(
        rows,
        distributed.group_rows(labels)[0],
        None if ids is None else distributed.group_rows(ids)[0],
        None if mask is None else distributed.group_rows(mask.to(torch.uint8))[0].bool(),
        mine,
        distributed.group(),
    )


def gathered_tuple(given: tuple[Tensor, ...], joint: Joint) -> tuple[Tensor, ...]:
    """Positions in the batches of all processes as positions in the joint one."""
    return tuple(distributed.group_rows(part + joint.mine.start)[0] for part in given)
