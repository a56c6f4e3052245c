"""How benchmarks measure: interleaved timing, peak memory, and benchmarks of several parts."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed import Bar, BenchContext
from lookalike.core.errors import LookalikeError

FRACTION, TICKS = 0.05, 0.03
"""A round counts if other processes took at most this fraction of it, and some clock ticks they are counted by."""

Measured = tuple[dict[str, Any], list[Bar]]
Part = tuple[Callable[[], Measured], list[Bar]]
"""The function that measures it, and its bars as long as nothing is measured."""


def interleaved(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every job in every round, in turns, so that a change of the machine's speed hits all of them.

    One round before them warms everything up. Rounds in which other processes took time are repeated, at most as many
    as were requested.

    Args:
        jobs: The jobs.
        rounds: Number of rounds.

    Returns:
        Seconds by job.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    _round(jobs)
    spare = rounds
    while rounds:
        before = machine.spent_elsewhere()
        seconds = _round(jobs)
        after = machine.spent_elsewhere()
        if spare and before is not None and after is not None and after - before > FRACTION * sum(seconds) + TICKS:
            spare -= 1
            continue
        for name, value in zip(jobs, seconds, strict=True):
            times[name].append(value)
        rounds -= 1
    return times


def _round(jobs: Mapping[str, Callable[[], object]]) -> list[float]:
    seconds = []
    for job in jobs.values():
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    return seconds


def interleaved_rates(jobs: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Items per second of every job in every round; a job returns its number of items. One round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            count = job()
            if number:
                rates[name].append(count / (time.perf_counter() - start))
    return rates


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def rounded(values: list[float]) -> dict[str, Any]:
    """Median and all rounds."""
    return {"median": round(statistics.median(values), 1), "rounds": [round(value, 1) for value in values]}


def reset_peak_memory() -> float:
    """Megabytes in use now; where the system allows it, the peak starts again from here."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak_memory()


def peak_memory() -> float:
    """Peak memory of this process in megabytes. Linux's `getrusage` also counts what the parent used before."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / (1 << 10)
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run_parts(context: BenchContext, parts: Mapping[str, Part]) -> Measured:
    """Figures and bars of all parts, stored after each; a failed part gives its reason and bars that do not hold."""
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for name, (measure, unmeasured) in parts.items():
        try:
            figures[name], measured = measure()
        except Exception as error:
            reason = str(error) if isinstance(error, LookalikeError) else traceback.format_exc()
            context.say(f"{name} failed: {reason}")
            figures[name], measured = {"failed": f"{type(error).__name__}: {error}"}, unmeasured
        bars += measured
        context.keep(figures, bars)
    return figures, bars
