"""Pictures to vectors for many clients at once: whatever waits goes through the model together."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.service.limits import BUDGET
from lookalike.service.problems import Problem

if TYPE_CHECKING:
    from lookalike.models.squares import Squares
    from lookalike.searching import Index

BATCH = 32
WAITING = 64  # more would wait for longer than people do: they are told to come back


class Encoder:
    """Requests decode their own pictures; one thread owns the model and takes all squares that wait at once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._squares: Squares | None = None
        self._queue: queue.Queue[tuple[np.ndarray, Future[np.ndarray]] | None] = queue.Queue(maxsize=WAITING)
        self.done = self.batches = 0
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="lookalike-encoder", daemon=True)
        self._thread.start()

    def model(self, *, fast: bool = False) -> Squares:
        from lookalike.models.squares import Squares

        with self._guard:
            if self._squares is None or fast:
                self._squares = Squares(self._index.embedder, fast=fast)
            return self._squares

    def encode(self, picture: Any, timeout: float = 60.0, *, pixels: int = 0) -> np.ndarray:
        """The vector of one picture; `Problem` 503 when too many wait, what decoding raises when it is none.

        `pixels` is how many it has, for the budget of what is decoded at once.
        """
        deadline = time.monotonic() + timeout
        if self._queue.full():
            raise Problem(503, "Busy. Try again in 2 s.", retry_after=2)
        with BUDGET.take(pixels):
            square = self.model().square(picture)
        answer: Future[np.ndarray] = Future()
        try:
            self._queue.put_nowait((square, answer))
        except queue.Full:
            raise Problem(503, "Busy. Try again in 2 s.", retry_after=2) from None
        try:
            row = answer.result(max(deadline - time.monotonic(), 0.001))
        except TimeoutError:
            raise Problem(503, "The model takes too long. Try again in 5 s.", retry_after=5) from None
        if not np.isfinite(row).all():
            raise Problem(400, "The model gave no usable answer for this picture: its vector is not finite.")
        return row

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def warm(self) -> None:
        """Load the model, make it fast, and run it once."""
        self.model(fast=True)
        self.encode(np.zeros((32, 32, 3), np.uint8), timeout=600)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            jobs = [first]
            last = False
            while len(jobs) < BATCH and not last:
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    last = True
                else:
                    jobs.append(job)
            self._run(jobs)
            if last:
                return

    def _run(self, jobs: list[tuple[np.ndarray, Future[np.ndarray]]]) -> None:
        try:
            rows = self.model().rows([square for square, _ in jobs])
        except BaseException as error:  # the thread must outlive any one request; the waiters get the error
            for _, answer in jobs:
                answer.set_exception(error)
            return
        self.done += len(jobs)
        self.batches += 1
        for row, (_, answer) in zip(rows, jobs, strict=True):
            answer.set_result(row)
