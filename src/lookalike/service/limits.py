"""How much one client may ask for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lookalike.service.http_errors import Problem

if TYPE_CHECKING:
    from lookalike.searching import Index
    from lookalike.store import Record

PIXELS = 120_000_000  # decoded at once, by all requests together, at about 4 bytes each: one large image at a time
LARGEST = 100_000_000  # what one image may take of it: those of some pixels need not wait for one of many
LONG = 20_000_000  # bytes of a file that is not even read beside others
PATIENCE = 5.0  # seconds
CLIENTS = 10_000  # remembered at once; the longest unseen is forgotten first


@dataclass(frozen=True)
class Limits:
    upload: int = 20_000_000  # bytes of one image
    document: int = 1_000_000  # bytes of any other body
    hits: int = 600
    examples: int = 20
    rate: float = 0.0  # requests a second that one client may keep up; 0: no limit
    burst: int = 200  # and how many at once


class Buckets:
    """A bucket of tokens for each client: requests take from it, time brings them back."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._guard = threading.Lock()
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, cost: float = 1.0, now: float | None = None) -> float:
        """0 if the client may go on, else the seconds after which it may."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        with self._guard:
            level, before = self._level.pop(client, (float(self.burst), now))
            level = min(level + (now - before) * self.rate, self.burst)
            allowed = level >= cost
            self._level[client] = (level - cost if allowed else level, now)
            while len(self._level) > CLIENTS:
                self._level.popitem(last=False)
        return 0.0 if allowed else (cost - level) / self.rate


def cost(path: str) -> float:
    """What a request takes of a client's rate: a page has hundreds of small images, and some files."""
    if path == "/health":
        return 0.0
    tile = path.startswith("/api/v1/map/") and path.endswith(".jpg")
    return 0.05 if tile or path.startswith(("/static/", "/thumb/", "/query/")) else 1.0


class Budget:
    """Pixels that may be decoded at once."""

    def __init__(self, pixels: int = PIXELS) -> None:
        self.left = self.whole = pixels
        self._change = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        wanted = min(pixels, self.whole, LARGEST)
        with self._change:
            if not self._change.wait_for(lambda: self.left >= wanted, PATIENCE):
                raise Problem(503, "Busy with large images. Try again in 10 s.", retry_after=10)
            self.left -= wanted
        try:
            yield
        finally:
            with self._change:
                self.left += wanted
                self._change.notify_all()


BUDGET = Budget()


@contextlib.contextmanager
def opened(index: Index, record: Record) -> Iterator[bytes]:
    """The file of an indexed image, with room for its pixels until the block ends."""
    from lookalike.data.decoding import pixels_of

    if int(record.payload.get("_length") or record.payload.get("_size") or 0) > LONG:
        with BUDGET.take(LARGEST):
            yield index.open_bytes(record)
        return
    data = index.open_bytes(record)
    with BUDGET.take(pixels_of(data)):
        yield data


P = ParamSpec("P")
T = TypeVar("T")


class Crew:
    """A few threads, and places for those who wait for one; more would wait for longer than people do."""

    def __init__(self, threads: int, places: int) -> None:
        self.threads, self.places, self.taken = threads, places, 0
        self._pool = ThreadPoolExecutor(threads, "lookalike-crew")
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place until the block ends; `Problem` 503 when there is none."""
        with self._guard:
            if self.taken >= self.places:
                raise Problem(503, "Busy. Try again in 2 s.", retry_after=2)
            self.taken += 1
        try:
            yield
        finally:
            with self._guard:
                self.taken -= 1

    async def work(self, do: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """For somebody who has a place."""
        return await asyncio.wrap_future(self._pool.submit(do, *args, **named))

    async def run(self, do: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        with self.place():
            return await self.work(do, *args, **named)

    def close(self) -> None:
        """What is at work ends, what waits does not begin."""
        self._pool.shutdown(wait=True, cancel_futures=True)
