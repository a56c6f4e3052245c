"""Heads beyond a plain linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.models.pooling import unit


class BlockLinear(nn.Linear):
    """Several linear heads side by side: equal parts of the output, each of length one."""

    blocks: int = 1

    @classmethod
    def of(cls, head: nn.Module, blocks: int) -> BlockLinear:
        """A linear head whose outputs are dealt out to the parts in turn: of a head that starts as the top directions,
        each part gets some of the first."""
        if isinstance(head, cls) and head.blocks == blocks:
            return head
        assert isinstance(head, nn.Linear)
        if head.out_features % blocks:
            raise LookalikeError(f"A head of {head.out_features} dimensions cannot be cut into {blocks} equal parts.")
        out = cls(head.in_features, head.out_features, device=head.weight.device, dtype=head.weight.dtype)
        out.blocks = blocks
        turn = torch.arange(head.out_features, device=head.weight.device).view(-1, blocks).T.flatten()
        out.load_state_dict({name: value[turn] for name, value in head.state_dict().items()})
        return out

    def forward(self, x: Tensor) -> Tensor:
        return unit(super().forward(x).unflatten(1, (self.blocks, -1))).flatten(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, blocks={self.blocks}"
