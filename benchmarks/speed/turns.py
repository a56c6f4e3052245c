"""Several jobs measured in turns, so that a change of the machine's speed hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks import machine

SHARE, TICKS = 0.05, 0.03
"""A round counts if other processes took at most this share of it, and some ticks of the clock they are counted by."""


def in_turns(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every job in every round; one round before them warms everything up.

    Rounds in which other processes took time are made again, at most as many as were asked for.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    _round(jobs)
    spare = rounds
    while rounds:
        before = machine.spent_elsewhere()
        taken = _round(jobs)
        after = machine.spent_elsewhere()
        if spare and before is not None and after is not None and after - before > SHARE * sum(taken) + TICKS:
            spare -= 1
            continue
        for name, seconds in zip(jobs, taken, strict=True):
            times[name].append(seconds)
        rounds -= 1
    return times


def _round(jobs: Mapping[str, Callable[[], object]]) -> list[float]:
    taken = []
    for job in jobs.values():
        start = time.perf_counter()
        job()
        taken.append(time.perf_counter() - start)
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
