"""What a client sends, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.files import human_bytes
from lookalike.service.errors import problem

PATIENCE = 30.0  # seconds of silence
SLOWEST = 20_000  # bytes a second that do not use it up
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Body:
    """A `receive` with limits; `refusal` is what the client is told once it went beyond one.

    Only the time spent waiting for the client counts, not what we do in between.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.limit, self.read, self.whole = limit, 0, False
        self.refusal: JSONResponse | None = None
        self._receive, self._patience = receive, PATIENCE

    async def __call__(self) -> MutableMapping[str, Any]:
        if self.whole:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            self.refusal = problem(408, "The rest of this request did not come in time.")
            self.refusal.headers["Connection"] = "close"
            raise HTTPException(408) from None
        size = len(message.get("body", b""))
        self._patience = min(PATIENCE, self._patience - (clock() - start) + size / SLOWEST)
        self.read += size
        self.whole = not message.get("more_body", False)
        if self.read > self.limit:
            self.refusal = problem(413, too_large(None, self.limit))
            raise HTTPException(413)
        return message

    async def listen(self, most: int) -> None:
        """To the end, if it is near."""
        while not self.whole and self.read < most and self.refusal is None:
            try:
                await self()
            except HTTPException:
                return


def too_large(size: int | None, limit: int) -> str:
    what = f"This request has {human_bytes(size)}" if size else "This request is too large"
    return f"{what}; the limit here is {human_bytes(limit)}."
