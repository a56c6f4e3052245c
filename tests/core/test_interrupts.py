from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from lookalike.core.errors import Exit
from lookalike.core.interrupts import Stopped, Terminated, command_signals, run_apart, stop_on_interrupt


def strike(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)  # as the terminal does: it reaches the main thread


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=str
)
def test_a_signal_does_not_wait_for_work_of_a_library(number: signal.Signals, kind: type[BaseException]) -> None:
    left = threading.Event()

    def work() -> None:
        strike(number)
        left.wait(30)  # a library that does not look at signals

    start = time.monotonic()
    with command_signals(), pytest.raises(kind):
        run_apart(work)
    assert time.monotonic() - start < 5
    left.set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_a_signal_nothing_changes() -> None:
    assert run_apart(threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        run_apart(lambda: 1 // 0)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(run_apart(threading.current_thread)))
    thread.start()
    thread.join()
    assert seen == [thread], "only the main thread gets signals"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    with stop_on_interrupt() as request:
        assert not request.is_set()
        signal.raise_signal(number)
        assert request.is_set() and request.terminated == (number == signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert Stopped("Stopped.", terminated=request.terminated).exit_code == (
        Exit.TERMINATED if number == signal.SIGTERM else Exit.STOPPED
    )
