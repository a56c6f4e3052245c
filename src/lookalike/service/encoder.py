"""Pictures to vectors for many clients at once: whatever waits goes through the model together."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.service.problems import Problem

if TYPE_CHECKING:
    from lookalike.searching import Index

BATCH = 16
WAITING = 64  # more would wait for longer than people do: they are told to come back


class Encoder:
    """One thread owns the model; requests hand over pictures and wait."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._queue: queue.Queue[tuple[Any, Future[np.ndarray]] | None] = queue.Queue(maxsize=WAITING)
        self.done = self.batches = 0
        self._thread = threading.Thread(target=self._work, name="lookalike-encoder", daemon=True)
        self._thread.start()

    def encode(self, picture: Any, timeout: float = 60.0) -> np.ndarray:
        """The vector of one picture; `Problem` 503 when too many wait, what `encode` raises when it is none."""
        answer: Future[np.ndarray] = Future()
        try:
            self._queue.put_nowait((picture, answer))
        except queue.Full:
            raise Problem(503, "Busy. Try again in 2 s.", retry_after=2) from None
        try:
            return answer.result(timeout)
        except TimeoutError:
            raise Problem(503, "The model takes too long. Try again in 5 s.", retry_after=5) from None

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def warm(self) -> None:
        """Load the model and run it once."""
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

    def _run(self, jobs: list[tuple[Any, Future[np.ndarray]]]) -> None:
        from lookalike.data import UnreadableImage

        try:
            rows, failures = self._index.embedder.encode([picture for picture, _ in jobs], on_error="skip")
        except BaseException as error:  # the thread must outlive any one request; the waiters get the error
            for _, answer in jobs:
                answer.set_exception(error)
            return
        self.done += len(jobs)
        self.batches += 1
        failed = {failure.index: failure.reason for failure in failures}
        good = iter(rows)
        for place, (_, answer) in enumerate(jobs):
            if place in failed:
                answer.set_exception(UnreadableImage(failed[place]))
            else:
                answer.set_result(np.asarray(next(good)))
