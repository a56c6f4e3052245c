"""Embeds the images of many concurrent requests in common batches."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.device import threads
from lookalike.searching import Index
from lookalike.service.http_errors import Problem

if TYPE_CHECKING:
    from lookalike.models.inference.pipeline import CropEncoder

Request = tuple[np.ndarray, "Future[np.ndarray]"]


class Encoder:
    """Dynamic batching: requests decode their own images, a few threads embed what is waiting together.

    There is one thread more than the model has streams, so that no stream is idle while a thread hands out results.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._model: CropEncoder | None = None
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._closed = False
        self.encoded = self.batches = 0
        self._lock, self._model_lock, self._close_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads() + 1)]
        for thread in self._threads:
            thread.start()

    def model(self, *, fast: bool = False) -> CropEncoder:
        """The model; with `fast` it is prepared for speed, which takes a while."""
        from lookalike.models.inference.pipeline import CropEncoder

        with self._lock:
            if self._model is None or fast:
                self._model = CropEncoder(self._index.embedder, fast=fast)
            return self._model

    def encode(self, image: Any) -> np.ndarray:
        """Decode (file content, path or pixels) and embed an image; see `encode_crop`."""
        return self.encode_crop(self.model().crop(image))

    def encode_crop(self, crop: np.ndarray, timeout: float = 60.0) -> np.ndarray:
        """Embed the model's input pixels, `(size, size, 3)`, together with those of other requests: the unit vector.

        `Problem` 503 if the model takes longer than `timeout` seconds, 400 if the vector is not finite.
        """
        result: Future[np.ndarray] = Future()
        with self._close_lock:
            if self._closed:  # no thread would answer
                raise Problem(503, "Busy. Try again in 2 s.", retry_after=2)
            self._queue.put((crop, result))
        try:
            vector = result.result(timeout)
        except TimeoutError:
            raise Problem(503, "The model takes too long. Try again in 5 s.", retry_after=5) from None
        if not np.isfinite(vector).all():
            raise Problem(400, "The model gave no usable result for this image: its vector is not finite.")
        return vector

    @property
    def waiting(self) -> int:
        """Number of images that wait for the model."""
        return self._queue.qsize()

    def warm(self) -> None:
        """Load the model, prepare it for speed, and run it once."""
        self.model(fast=True)
        with contextlib.suppress(Problem):  # the service is closing
            self.encode_crop(self.model().crop(np.zeros((32, 32, 3), np.uint8)), timeout=600)

    def close(self) -> None:
        """Stop the threads after the waiting images."""
        with self._close_lock:
            self._closed = True
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            requests = [first]
            try:
                model = self.model()
                # A model without concurrent streams takes all that is waiting when it is its turn.
                with contextlib.nullcontext() if model.concurrent else self._model_lock:
                    requests += self._take_waiting(model.max_batch - 1)
                    vectors = model.encode([crop for crop, _ in requests])
            except BaseException as error:  # the thread must survive; the requests get the error
                for _, result in requests:
                    result.set_exception(error)
                continue
            with self._lock:
                self.encoded, self.batches = self.encoded + len(requests), self.batches + 1
            for vector, (_, result) in zip(vectors, requests, strict=True):
                result.set_result(vector)
        self._queue.put(None)  # for the next thread

    def _take_waiting(self, count: int) -> Iterator[Request]:
        with contextlib.suppress(queue.Empty):
            for _ in range(count):
                if (request := self._queue.get_nowait()) is None:
                    self._queue.put(None)
                    return
                yield request
