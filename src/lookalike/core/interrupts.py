"""Ctrl-C and SIGTERM: kept from libraries that would swallow them, taken as a request to stop, or enforced."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from lookalike.core.errors import Exit, LookalikeError

T = TypeVar("T")
_GRACE_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised in the main thread like Ctrl-C."""


class Stopped(LookalikeError):
    """Work that was stopped by a signal in an orderly way; the message says how to continue it.

    Args:
        message: The message.
        terminated: Whether the signal was SIGTERM; it decides the exit code.
    """

    def __init__(self, message: str, *, terminated: bool = False) -> None:
        super().__init__(message)
        self.exit_code = Exit.TERMINATED if terminated else Exit.STOPPED


class StopRequest(threading.Event):
    """Set by the first Ctrl-C or SIGTERM; `terminated` says which."""

    terminated = False


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


@contextlib.contextmanager
def _handlers(handle: Callable[[int, Any], None], numbers: tuple[int, ...] = _SIGNALS) -> Iterator[dict[int, Any]]:
    """Install a handler for the block; yields the handlers before it."""
    with signals_restored(numbers) as before:
        for number in numbers:
            signal.signal(number, handle)
        yield before


@contextlib.contextmanager
def signals_restored(numbers: tuple[int, ...] = _ENDING) -> Iterator[dict[int, Any]]:
    """Restore the signal handlers after a block that replaces them; yields them."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield before
    finally:
        for number, handler in before.items() if _in_main_thread() else ():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()  # only it may handle signals


def run_apart(work: Callable[[], T]) -> T:
    """Run work of a C++ library in a thread of its own, so that Ctrl-C and SIGTERM are raised here at once.

    C++ code that calls back into Python takes a KeyboardInterrupt for any other failure and continues without it, or
    keeps the main thread for seconds. Work that is left behind by a signal ends with the process.
    """
    if not _in_main_thread():
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="apart", daemon=True).start()
    return done.result()


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, so that a step can end; the second ends at once."""
    request = StopRequest()
    if not _in_main_thread():
        yield request
        return

    def handle(number: int, frame: Any) -> None:
        request.terminated = number == signal.SIGTERM
        request.set()
        for other, handler in before.items():
            fallback = signal.default_int_handler if other == signal.SIGINT else _terminate
            signal.signal(other, handler if callable(handler) else fallback)

    with _handlers(handle) as before:
        yield request


@contextlib.contextmanager
def command_signals() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM, and end the process at the second signal even if the main thread never returns.

    The first Ctrl-C raises KeyboardInterrupt as usual. The C signal handler writes a byte for each signal at
    once, so a thread that reads these bytes sees the second one while the main thread is in a long operation.
    """
    if not _in_main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    finished = threading.Event()

    def watch() -> None:
        count = 0
        while data := reader.recv(16):
            count += sum(data.count(number) for number in _SIGNALS)
            # A server that counts interrupts itself gets a moment to shut down.
            grace = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else _GRACE_SECONDS
            if count >= 2 and not finished.wait(grace):
                os.write(2, b"\nEnded at once.\n")
                os._exit(Exit.TERMINATED if signal.SIGTERM in data else Exit.STOPPED)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        with _handlers(_terminate, (signal.SIGTERM,)):
            yield
    finally:
        finished.set()
        signal.set_wakeup_fd(before)
        writer.close()
