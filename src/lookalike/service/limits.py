"""How much one client may ask for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from lookalike.service.problems import Problem

PIXELS = 120_000_000  # decoded at once, by all requests together, at about 4 bytes each: one large picture at a time
SOME = 20_000_000  # what a picture of unknown size is counted as
PATIENCE = 30.0  # seconds
CLIENTS = 10_000  # remembered at once; the longest unseen is forgotten first


@dataclass(frozen=True)
class Limits:
    upload: int = 20_000_000  # bytes of one picture
    document: int = 1_000_000  # bytes of any other body
    hits: int = 600
    examples: int = 20
    rate: float = 0.0  # requests a second that one client may keep up; 0: no limit
    burst: int = 200  # and how many at once: a page of thumbnails


class Buckets:
    """A bucket of tokens for each client: a request takes one, time brings them back."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._guard = threading.Lock()
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float | None = None) -> float:
        """0 if the client may go on, else the seconds after which it may."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        with self._guard:
            level, before = self._level.pop(client, (float(self.burst), now))
            level = min(level + (now - before) * self.rate, self.burst)
            allowed = level >= 1
            self._level[client] = (level - 1 if allowed else level, now)
            while len(self._level) > CLIENTS:
                self._level.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self.rate


class Budget:
    """Pixels that may be decoded at once."""

    def __init__(self, pixels: int = PIXELS) -> None:
        self.left = self.whole = pixels
        self._change = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        wanted = min(pixels, self.whole)
        with self._change:
            if not self._change.wait_for(lambda: self.left >= wanted, PATIENCE):
                raise Problem(503, "Busy with large pictures. Try again in 10 s.", retry_after=10)
            self.left -= wanted
        try:
            yield
        finally:
            with self._change:
                self.left += wanted
                self._change.notify_all()


BUDGET = Budget()
