"""Images to vectors for many clients at once: what waits goes through the model together."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.device import threads
from lookalike.service.http_errors import Problem
from lookalike.service.limits import BUDGET

if TYPE_CHECKING:
    from lookalike.models.inference.pipeline import CropEncoder
    from lookalike.searching import Index

Job = tuple[np.ndarray, "Future[np.ndarray]"]


class Encoder:
    """Requests decode their own images; a few threads take the squares that wait, as many as the model likes at once.

    One thread more than the model has streams: while one hands out its rows, no stream stands still.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._model: CropEncoder | None = None
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self.encoded = self.batches = 0
        self._guard, self._alone, self._door = threading.Lock(), threading.Lock(), threading.Lock()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads() + 1)]
        for thread in self._threads:
            thread.start()

    def model(self, *, fast: bool = False) -> CropEncoder:
        from lookalike.models.inference.pipeline import CropEncoder

        with self._guard:
            if self._model is None or fast:
                self._model = CropEncoder(self._index.embedder, fast=fast)
            return self._model

    def encode(self, image: Any, timeout: float = 60.0, *, pixels: int = 0) -> np.ndarray:
        """The vector of one image; `Problem` 503 when it takes too long, what decoding raises when it is none.

        `pixels` is how many it has, for the budget of what is decoded at once.
        """
        deadline = time.monotonic() + timeout
        with BUDGET.take(pixels):
            crop = self.model().crop(image)
        answer: Future[np.ndarray] = Future()
        with self._door:
            if self._closed:  # nobody would ever answer
                raise Problem(503, "Busy. Try again in 2 s.", retry_after=2)
            self._queue.put((crop, answer))
        try:
            row = answer.result(max(deadline - time.monotonic(), 0.001))
        except TimeoutError:
            raise Problem(503, "The model takes too long. Try again in 5 s.", retry_after=5) from None
        if not np.isfinite(row).all():
            raise Problem(400, "The model gave no usable answer for this image: its vector is not finite.")
        return row

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def warm(self) -> None:
        """Load the model, make it fast, and run it once."""
        self.model(fast=True)
        self.encode(np.zeros((32, 32, 3), np.uint8), timeout=600)

    def close(self) -> None:
        with self._door:
            self._closed = True
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            jobs = [first]
            try:
                model = self.model()
                # A model that runs once at a time takes all that waits when it is its turn.
                with contextlib.nullcontext() if model.concurrent else self._alone:
                    jobs += self._waiting(model.max_batch - 1)
                    rows = model.encode([crop for crop, _ in jobs])
            except BaseException as error:  # the thread must outlive any one request; the waiters get the error
                for _, answer in jobs:
                    answer.set_exception(error)
                continue
            with self._guard:
                self.encoded += len(jobs)
                self.batches += 1
            for row, (_, answer) in zip(rows, jobs, strict=True):
                answer.set_result(row)
        self._queue.put(None)  # for the next thread

    def _waiting(self, most: int) -> Iterator[Job]:
        for _ in range(most):
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return
            if job is None:
                self._queue.put(None)
                return
            yield job
