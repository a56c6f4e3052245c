"""Threads of their own for work with images, which takes long: nothing else waits behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from lookalike.service.errors import Problem

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
