"""Ctrl-C: held back inside libraries that would swallow it, taken as a request to stop, or enforced."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from lookalike.core.errors import Exit, LookalikeError

_GRACE_SECONDS = 5.0


class Stopped(LookalikeError):
    """Work that was stopped by Ctrl-C in an orderly way; the message says how to continue it."""

    exit_code = Exit.STOPPED


@contextlib.contextmanager
def defer_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block and raise it there, however the block ended.

    C++ code that calls back into Python takes a KeyboardInterrupt for any other failure and continues without
    it. Does nothing outside the main thread, or where another handler of SIGINT is installed.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not ours:
        yield
        return
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted.is_set():
            raise KeyboardInterrupt


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets, so that a training step can end; the second ends at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may handle signals
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before if callable(before) else signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def exit_on_second_interrupt() -> Iterator[None]:
    """End the process at the second Ctrl-C, even if the main thread never returns to Python.

    The first one raises KeyboardInterrupt as usual. The C signal handler writes a byte for each signal at
    once, so a thread that reads these bytes sees the second one while the main thread is in a long operation.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    finished = threading.Event()

    def watch() -> None:
        count = 0
        while data := reader.recv(16):
            count += data.count(signal.SIGINT)
            # A server that counts interrupts itself gets a moment to shut down.
            grace = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else _GRACE_SECONDS
            if count >= 2 and not finished.wait(grace):
                os.write(2, b"\nEnded at once.\n")
                os._exit(Exit.STOPPED)

    threading.Thread(target=watch, name="ctrl-c", daemon=True).start()
    try:
        yield
    finally:
        finished.set()
        signal.set_wakeup_fd(before)
        writer.close()
