"""Interleaved timing (disturbed rounds are repeated) and peak memory from a chosen moment on."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
from tests import helpers

from benchmarks import machine
from benchmarks.speed.measuring import interleaved, ratio


def test_every_job_runs_once_a_round_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: None)
    order: list[str] = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_round_beside_other_processes_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])  # the first of the rounds is disturbed
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: next(spent))
    calls = itertools.count()
    times = interleaved({"a": lambda: next(calls)}, 2)
    assert len(times["a"]) == 2
    assert next(calls) == 1 + 1 + 2


def test_a_machine_that_is_never_quiet_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = itertools.count()
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: float(next(spent)))
    calls = itertools.count()
    times = interleaved({"a": lambda: next(calls)}, 3)
    assert len(times["a"]) == 3
    assert next(calls) == 1 + 3 + 3


def test_ratios_are_taken_within_a_round() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 1.0]) == 3.0


MANY = 64  # megabytes
NEARLY = 0.9 * MANY  # the system counts in steps
START = """
import numpy as np
from benchmarks.speed.measuring import peak_memory, reset_peak_memory
def fill(): np.ones(64 << 20, dtype=np.uint8)
"""


def grown(code: str) -> float:
    """What some code prints, in a new process: in an old one the system takes memory back meanwhile."""
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_what_was_let_go_still_counts() -> None:
    assert NEARLY < grown("before = reset_peak_memory(); fill(); print(peak_memory() - before)") < 2 * MANY


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be forgotten here")
def test_a_peak_before_the_work_does_not_hide_that_of_the_work() -> None:
    assert grown("fill(); before = reset_peak_memory(); fill(); print(peak_memory() - before)") > NEARLY
