from __future__ import annotations

import signal
import threading

import pytest

from lookalike.core.errors import Exit
from lookalike.core.interrupts import Stopped, Terminated, command_signals, defer_interrupt, stop_on_interrupt


def test_a_ctrl_c_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_raised_although_the_block_failed_otherwise() -> None:
    with pytest.raises(KeyboardInterrupt), defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("what a library makes of it")


def test_without_one_nothing_changes() -> None:
    with defer_interrupt():
        pass
    with pytest.raises(ZeroDivisionError), defer_interrupt():
        1 / 0  # noqa: B018


def test_other_threads_and_other_handlers_are_left_alone() -> None:
    seen = []

    def elsewhere() -> None:
        with defer_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

    def mine(*_: object) -> None:
        seen.append(None)

    before = signal.signal(signal.SIGINT, mine)
    try:
        with defer_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen[1:] == [None]


def test_sigterm_is_raised_like_ctrl_c_and_held_back_like_it() -> None:
    done = []
    with command_signals(), pytest.raises(Terminated), defer_interrupt():
        signal.raise_signal(signal.SIGTERM)
        done.append("the rest of the block")
    with command_signals(), pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    assert done and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
