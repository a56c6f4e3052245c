"""Ctrl-C: the first one lets a step end well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lookalike.core.errors import Exit, LookalikeError


class Stopped(LookalikeError):
    """Ctrl-C: nothing is lost."""

    exit_code = Exit.STOPPED


@contextmanager
def interrupt() -> Iterator[threading.Event]:
    """Set on the first Ctrl-C, so that a step can end well; the second one ends at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may ask for signals
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
