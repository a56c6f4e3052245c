"""A request to stop, looked at within long steps and evaluations: at every layer, and at every block of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lookalike.core import distributed
from lookalike.core.interrupts import StopRequest


class Dropped(Exception):
    """The step or evaluation in progress is given up, because a stop was requested."""


class StopCheck:
    """Raises `Dropped` in its blocks once a stop is requested; elsewhere it does nothing.

    Nor in one of several processes, which must stop at the same place.
    """

    def __init__(self) -> None:
        self.request, self.active = StopRequest(), False

    def __call__(self, *_: object) -> None:
        if self.active and self.request.is_set():
            raise Dropped

    @contextmanager
    def block(self, *, layers: bool = False) -> Iterator[None]:
        """A block that can be dropped; with `layers` also at every layer, in the forward and in the backward pass."""
        self.active = distributed.world_size() == 1
        hook = nn.modules.module.register_module_forward_hook(self._watch) if layers else None
        try:
            yield
        finally:
            self.active = False
            if hook is not None:
                hook.remove()

    def _watch(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self()
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(self)
