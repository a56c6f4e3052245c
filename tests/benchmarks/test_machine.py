from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import machine
from lookalike.core.errors import Exit


def test_a_machine_is_described() -> None:
    result = machine.describe()
    assert result["threads"] == 1  # what the tests ask for
    assert result["cpu"]
    assert result["load"] is None or result["load"] >= 0


def test_our_own_work_is_not_taken_for_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two seconds all processes used three seconds of the processor, and we half a second of it."""
    ticks, own, clock = iter([0, 300]), iter([1.0, 1.5]), iter([10.0, 12.0])
    monkeypatch.setattr(machine, "_busy_ticks", lambda: next(ticks))
    monkeypatch.setattr(machine, "_children_ticks", lambda: 0)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    assert machine.others_use(2.0) == pytest.approx(1.25)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_work_of_our_children_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine._children_ticks()
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 20
        while machine._children_ticks() <= before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert machine._children_ticks() > before
    finally:
        worker.kill()
        worker.wait()


def test_a_busy_machine_is_refused_waited_for_or_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "others_use", lambda seconds: 0.3)
    with pytest.raises(machine.Busy, match=r"Other processes use 0\.30 cores") as caught:
        machine.require_quiet()
    assert caught.value.exit_code == Exit.BUSY == 3
    assert machine.require_quiet(force=True) is False

    uses, messages = iter([2.0, 0.3, 0.25]), []
    monkeypatch.setattr(machine, "others_use", lambda seconds: next(uses))
    assert machine.require_quiet(wait=True, say=messages.append) is True
    assert len(messages) == 2


def test_a_quiet_machine_and_one_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for use in (0.0, 0.25, None):
        monkeypatch.setattr(machine, "others_use", lambda seconds, use=use: use)
        assert machine.require_quiet() is True
