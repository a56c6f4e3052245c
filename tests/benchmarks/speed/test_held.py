"""The most memory a process has held, from a chosen moment on."""

from __future__ import annotations

import os

import numpy as np
import pytest

from benchmarks.speed.held import level_peak, peak

MANY = 64  # megabytes
NEARLY = 0.9 * MANY  # the system counts in steps


def fill() -> None:
    np.ones(MANY << 20, dtype=np.uint8)


def test_what_was_let_go_still_counts() -> None:
    before = level_peak()
    fill()
    assert NEARLY < peak() - before < 2 * MANY


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be forgotten here")
def test_a_peak_before_the_work_does_not_hide_that_of_the_work() -> None:
    fill()
    before = level_peak()
    fill()
    assert peak() - before > NEARLY
