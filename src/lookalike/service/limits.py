"""How much one client may ask for."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

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
