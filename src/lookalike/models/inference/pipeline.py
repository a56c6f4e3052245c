"""Images in, rows out, in order: threads decode ahead of the runtime, in bounded memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess, UnreadableImage
from lookalike.models.inference.inputs import Failure, ImageInput
from lookalike.models.inference.pixels import center, check_view, viewed

CHUNK = 8  # images a task: enough to make handing over cheap, few enough to keep all threads busy
AHEAD = 3  # batches decoded ahead of the runtime


class Runtime(Protocol):
    """A model that is ready to run: uint8 N×S×S×3 batches in, arrays out, in the same order."""

    name: str

    def run(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]: ...


class Crew:
    """Threads that decode: one while it keeps up with the runtime, more when the runtime has to wait.

    Threads that decode small images mostly hand the interpreter to each other: two need a third more
    processor time than one for the same work.
    """

    def __init__(self, most: int) -> None:
        self.most, self.late, self.turn = most, 0, 0
        self.pools = [self._hire()]

    def _hire(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="lookalike-decode")

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        self.turn += 1
        return self.pools[self.turn % len(self.pools)].submit(function, *arguments)

    def was_late(self, late: bool) -> None:
        """Whether the runtime had to wait for a batch; the first ones of a stream always come late."""
        self.late = self.late + 1 if late else 0
        if self.late > AHEAD and len(self.pools) < self.most:
            self.pools.append(self._hire())
            self.late = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self.pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self.pools:
            pool.shutdown(wait=True)


@dataclass
class Decoder:
    """Turns images into batches; `failures` fills as the batches are drawn."""

    preprocess: Preprocess
    view: Any = None
    seed: int = 0
    skip: bool = False
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.view is not None:
            check_view(self.view, self.preprocess)

    def pixels(self, image: ImageInput) -> np.ndarray:
        data = image.load()
        if self.view is None:
            return center(data, self.preprocess, image.box)
        return viewed(data, self.view, seeds.numpy_rng(self.seed, "view", image.index), image.box)

    def _fill(self, out: np.ndarray, images: list[ImageInput]) -> list[Failure]:
        failures = []
        for row, image in zip(out, images, strict=True):
            try:
                row[...] = self.pixels(image)
            except (UnreadableImage, OSError) as error:
                failures.append(Failure(image.index, image.name, _reason(error)))
                if not self.skip:
                    break
        return failures

    def batches(self, items: Iterator[ImageInput], batch_size: int, workers: int) -> Iterator[np.ndarray]:
        """Batches in the order of the images, decoded by up to `workers` threads."""
        side = self.preprocess.size
        waiting: deque[tuple[np.ndarray, list[ImageInput], list[Future[list[Failure]]]]] = deque()
        with Crew(workers) as crew:
            while True:
                while len(waiting) < AHEAD and (group := list(itertools.islice(items, batch_size))):
                    out = np.empty((len(group), side, side, 3), np.uint8)
                    parts = range(0, len(group), CHUNK)
                    tasks = [crew.submit(self._fill, out[a : a + CHUNK], group[a : a + CHUNK]) for a in parts]
                    waiting.append((out, group, tasks))
                if not waiting:
                    return
                out, group, tasks = waiting.popleft()
                crew.was_late(not all(task.done() for task in tasks))
                failures = [failure for task in tasks for failure in task.result()]
                if failures:
                    out = self._without(out, group, failures)
                if len(out):
                    yield out

    def _without(self, out: np.ndarray, group: list[ImageInput], failures: list[Failure]) -> np.ndarray:
        if not self.skip:
            raise UnreadableImage(failures[0].reason, failures[0].name)
        self.failures += failures
        bad = {failure.index for failure in failures}
        return out[[image.index not in bad for image in group]]


def _reason(error: Exception) -> str:
    if isinstance(error, UnreadableImage):
        return error.reason
    return (getattr(error, "strerror", None) or str(error)).lower()


def check_on_error(on_error: str) -> bool:
    if on_error not in ("raise", "skip"):
        raise LookalikeError(f"on_error is `{on_error}`: it must be `raise` or `skip`.")
    return on_error == "skip"
