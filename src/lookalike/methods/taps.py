"""What a layer is given and gives while the model embeds a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn


class Seen(NamedTuple):
    input: Tensor
    output: Tensor


@contextmanager
def tapped(layer: nn.Module) -> Iterator[list[Seen]]:
    """Everything that passes the layer inside the block, with its gradient."""
    seen: list[Seen] = []

    def note(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        seen.append(Seen(given[0], output))

    handle = layer.register_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def last_layer(model: Any) -> nn.Module:
    """What gives the embedding before it is brought to length one."""
    layer: nn.Module = model.pooling if isinstance(model.head, nn.Identity) else model.head
    return layer
