"""Ctrl-C once stops tidily; twice always ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator

from lookalike.core.errors import Exit

GRACE = 5.0


@contextlib.contextmanager
def two_strikes() -> Iterator[None]:
    """End the process at the second Ctrl-C, even if the main thread never comes back to Python.

    The first raises KeyboardInterrupt as always. A signal's byte is written by the C handler at once,
    so a thread that reads it sees the second one although the main thread is deep in a long operation.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    over = threading.Event()

    def watch() -> None:
        strikes = 0
        while data := ours.recv(16):
            strikes += data.count(signal.SIGINT)
            # A server that counts for itself is given a moment to end well.
            grace = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else GRACE
            if strikes >= 2 and not over.wait(grace):
                os.write(2, b"\nEnded at once.\n")
                os._exit(Exit.STOPPED)

    threading.Thread(target=watch, name="ctrl-c", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        theirs.close()
