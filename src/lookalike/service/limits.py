"""Limits of the service: request sizes, request rates, pixels decoded at once, and worker threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from lookalike.core.database import CANCELLED
from lookalike.core.errors import LookalikeError
from lookalike.core.files import FileTooLarge
from lookalike.searching import Index
from lookalike.service.decode_child import BUDGET_PIXELS, decoding_cost, is_isolated
from lookalike.service.http_errors import Problem
from lookalike.store import Record

MAX_PIXELS = 120_000_000  # decoded at once by all requests, about 4 bytes each: one very large image at a time
MAX_PIXELS_PER_IMAGE = 100_000_000  # charged for one image at most, so that small ones need not wait for it
MAX_CONNECTIONS = 500  # a process has about a thousand files and sockets
LARGE_FILE_BYTES = 20_000_000  # a larger file is not even read while others are decoded
MAX_FILE_BYTES = 200_000_000  # a larger file is not shown
BUDGET_WAIT_SECONDS = 5.0
MAX_CLIENTS = 10_000  # remembered by the rate limiter; the least recently seen is dropped first
REQUEST_SECONDS = 30.0  # for scans of a request, once its body has arrived
MAX_REQUESTS = 32  # of one client on another machine at a time, each with its body
TRIM_PIXELS = 10_000_000  # after a larger image, freed memory is given back to the system
TRIM_SUM = 100_000_000  # after so many pixels of smaller ones too, or once none is decoded
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one client may request.

    Args:
        upload: Bytes of an uploaded image.
        document: Bytes of any other request body.
        hits: Hits of one search.
        examples: Images in one query.
        rate: Requests per second that one client may sustain; 0 means no limit.
        burst: Requests that one client may send at once.
    """

    upload: int = 20_000_000
    document: int = 1_000_000
    hits: int = 600
    examples: int = 20
    rate: float = 0.0
    burst: int = 200


class RateLimiter:
    """Token bucket per client."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, cost: float = 1.0, now: float | None = None) -> float:
        """Charge a client `cost` tokens: 0 if the request is allowed, else the seconds until it would be."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        with self._lock:
            level, before = self._levels.pop(client, (float(self.burst), now))
            level = min(level + (now - before) * self.rate, self.burst)
            allowed = level >= cost
            self._levels[client] = (level - cost if allowed else level, now)
            while len(self._levels) > MAX_CLIENTS:
                self._levels.popitem(last=False)
        return 0.0 if allowed else (cost - level) / self.rate


def request_cost(path: str) -> float:
    """Tokens that a request takes: little for scripts and thumbnails, of which a page needs hundreds."""
    if path == "/health":
        return 0.0
    tile = path.startswith("/api/v1/map/") and path.endswith(".jpg")
    return 0.05 if tile or path.startswith(("/static/", "/thumb/", "/query/")) else 1.0


class PixelBudget:
    """Bounds the pixels that are decoded at the same time."""

    def __init__(self, pixels: int = MAX_PIXELS) -> None:
        self.available = self.total = pixels
        self._freed = 0  # since memory was given back
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Reserve pixels until the block ends; `Problem` 503 if they do not become available in time."""
        needed = min(pixels, self.total, MAX_PIXELS_PER_IMAGE)
        with self._changed:
            if not self._changed.wait_for(lambda: self.available >= needed, BUDGET_WAIT_SECONDS):
                raise Problem(503, "Busy with large images. Try again in 10 s.", retry_after=10)
            self.available -= needed
        try:
            yield
        finally:
            with self._changed:
                self.available += needed
                self._changed.notify_all()
                self._freed += needed
            if needed > TRIM_PIXELS or self._freed > TRIM_SUM:
                self.trim()

    def trim(self, *, if_idle: bool = False) -> None:
        """Give back freed memory to the system; with `if_idle` only if there is some and no image is decoded now."""
        with self._changed:
            if if_idle and not (self._freed and self.available == self.total):
                return
            self._freed = 0
        with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc keeps it, and has this
            ctypes.CDLL(None).malloc_trim(0)


PIXEL_BUDGET = PixelBudget()


@contextlib.contextmanager
def open_image(index: Index, record: Record) -> Iterator[bytes]:
    """Yield the file of an indexed image, with its pixels reserved until the block ends."""
    from lookalike.data.decoding import image_size

    try:
        data = index.open_bytes(record, limit=LARGE_FILE_BYTES)
    except LookalikeError as error:
        if not isinstance(error.__cause__, FileTooLarge):
            raise
        with PIXEL_BUDGET.take(MAX_PIXELS_PER_IMAGE):
            yield index.open_bytes(record, limit=MAX_FILE_BYTES)
        return
    pixels = math.prod(image_size(data))
    cost = max(pixels, BUDGET_PIXELS) if is_isolated(data, pixels) else decoding_cost(data, pixels)
    with PIXEL_BUDGET.take(cost):
        yield data


def set_deadline(ended: Callable[[], bool]) -> None:
    """Let the scans and statements of this request end after `REQUEST_SECONDS`, or once `ended` is true."""
    start = time.monotonic()
    CANCELLED.set(lambda: ended() or time.monotonic() - start > REQUEST_SECONDS)


def check_deadline() -> None:
    """Raise `Problem` 503 if the request of this thread is to end; called between the steps of scans."""
    if CANCELLED.get()():
        raise Problem(503, "This search takes too long. Use fewer filters, or try again later.", retry_after=30)


def max_threads(threads: int) -> int:
    """Threads of a pool that the limit of file handles allows: each may read the index, with two handles."""
    return min(threads, max(2, max_connections() // 4))


def max_connections() -> int:
    """Connections that the limit of file handles allows; the index and uploads need some of them too."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(MAX_CONNECTIONS, (handles - 64) // 3)) if handles >= 0 else MAX_CONNECTIONS


class WorkerPool:
    """A bounded thread pool for slow work with images; other requests do not wait behind it.

    Args:
        threads: Number of threads.
        capacity: Tasks that may run or wait; further ones are refused with status 503.

    Attributes:
        reserved: Places taken, counted in the event loop.
    """

    def __init__(self, threads: int, capacity: int) -> None:
        self.threads, self.capacity, self.reserved = threads, capacity, 0
        self._pool = ThreadPoolExecutor(max_threads(threads), "lookalike-worker")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the pool; `Problem` 503 if all places are taken."""
        if self.reserved >= self.capacity:
            raise Problem(503, "Busy. Try again in 2 s.", retry_after=2)

        def run() -> T:
            check_deadline()  # it may have waited for longer than its client
            return function(*args, **kwargs)

        self.reserved += 1
        try:
            context = contextvars.copy_context()  # with the request's deadline
            return await asyncio.wrap_future(self._pool.submit(context.run, run))
        finally:
            self.reserved -= 1

    def close(self) -> None:
        """Finish running tasks; those that wait are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
