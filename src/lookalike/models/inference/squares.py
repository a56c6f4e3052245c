"""A model for a service: images are made into squares where they arrive, and go through it together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.models.inference import runtimes
from lookalike.models.inference.inputs import Stream
from lookalike.models.inference.openvino_runtime import BLOCK
from lookalike.models.inference.pipeline import Runtime

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder


BATCH = 32
CACHED = 112  # px of squares of which a block fits a core's cache


class Squares:
    """What `Embedder.encode` does, in two halves: `square` in any thread, `rows` in one (or several, by `streams`).

    Few images run in a batch of their own size, many in blocks of a fixed one, which is faster (docs/decisions/0031).
    `fast` converts the model for a fast runtime now (some two seconds, kept); else that is used if it is there.
    """

    def __init__(self, model: Embedder, *, fast: bool = False, layer: str = "embedding") -> None:
        self.model, self.layer = model, layer
        self._engines: dict[bool, Runtime] = {}
        if fast:
            self._engine(BLOCK, runtimes.ENOUGH)

    def _engine(self, count: int, hint: int = 1) -> Runtime:
        many = count >= BLOCK
        if many not in self._engines:
            source = Stream(iter(()), max(hint, count))
            self._engines[many] = runtimes.select(self.model, self.layer, "auto", "f32", source, max(count, 1))[0]
        return self._engines[many]

    @property
    def streams(self) -> bool:
        """Whether several threads may run it at once, each on a stream of its own."""
        return self._engine(1).name == "openvino"

    @property
    def most(self) -> int:
        """How many squares are best run at once; on a stream as many as a core's cache holds (docs/decisions/0176)."""
        if not self.streams:
            return BATCH
        return min(max(round(BLOCK * (CACHED / self.model.preprocess.size) ** 2), 1), BLOCK)

    def square(self, image: Any) -> np.ndarray:
        return self.model.square(image)

    def rows(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.array(part) for part in self.stream(squares, len(squares))])

    def stream(self, squares: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
        """Rows of at most `count` squares, in order, a few at a time, while further squares are drawn."""
        return self._engine(count, count).run(_stacked(iter(squares)))


def _stacked(squares: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    while part := list(itertools.islice(squares, BATCH)):
        yield np.stack(part)
