"""Ctrl-C inside libraries that would swallow it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A Ctrl-C waits for the end of the block and is raised there, whatever the block ended with.

    C++ that calls back into Python takes a KeyboardInterrupt for any other failure, and goes on without it.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not ours:
        yield
        return
    struck = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: struck.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if struck.is_set():
            raise KeyboardInterrupt
