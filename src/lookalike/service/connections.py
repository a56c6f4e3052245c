"""The server's connections: how many there may be, how long they may be silent, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 30.0  # seconds for the head of a request, from the first byte or the beginning of the connection
CONNECTIONS = 500  # a process has about a thousand files and sockets in all
ENDING = 5  # seconds for the requests that are being answered when the server is to end; Docker waits for ten


class Connection(H11Protocol):
    """uvicorn's, but nobody keeps it who does not ask."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._heard()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD, self.timeout_keep_alive_handler)

    def _heard(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """uvicorn's, but it does not send itself the signal again that ended it: to whoever counts Ctrl-Cs
    (cli/interrupt.py) that was a second one, and the process ended before anything was tidied up."""

    struck: int | None = None

    def __init__(self, app: Any, *, ending: int = ENDING) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=ending,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.struck = sig
        super().handle_exit(sig, frame)
