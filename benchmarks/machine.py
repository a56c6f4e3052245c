"""Describe the machine a benchmark runs on, and check that nothing else uses it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from lookalike.core.device import cpu_name, load_average, threads
from lookalike.core.errors import Exit, LookalikeError

QUIET = 0.25  # cores that other processes may use while we measure


class Busy(LookalikeError):
    exit_code = Exit.BUSY


def describe() -> dict[str, Any]:
    return {"load": load_average(), "threads": threads(), "cpu": cpu_name()}


def _busy_ticks() -> int | None:
    """Ticks that all processes together have used; None where /proc does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, soft, *_ = map(int, fields)
    return user + nice + system + irq + soft


def _children_ticks() -> int:
    """Ticks that the running children of this process have used, as the workers of a data loader."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) * (int(fields[1]) == os.getpid())
    return total


def spent_elsewhere() -> float | None:
    """Processor seconds of all processes but this one and its children; None where it cannot be told."""
    ticks = _busy_ticks()
    return None if ticks is None else (ticks - _children_ticks()) / os.sysconf("SC_CLK_TCK") - time.process_time()


def others_use(seconds: float = 5.0) -> float | None:
    """Cores in use by processes other than this one, over some seconds; None where it cannot be told."""
    first, start = spent_elsewhere(), time.monotonic()
    if first is None:
        return None
    time.sleep(seconds)
    passed = time.monotonic() - start
    second = spent_elsewhere()
    return None if second is None else max(0.0, (second - first) / passed)


def require_quiet(*, wait: bool = False, force: bool = False, seconds: float = 5.0, say: Any = None) -> bool:
    """True if the machine is quiet. Busy: wait for quiet, or go on marked (`force`), or refuse with exit code 3."""
    while True:
        used = others_use(seconds)
        if used is None or used <= QUIET:
            return True
        if force:
            return False
        if not wait:
            raise Busy(
                f"Other processes use {used:.2f} cores; figures would mean nothing. "
                "--wait waits for quiet, --force prints them with every bar not ok."
            )
        if say:
            say(f"Waiting for quiet: other processes use {used:.2f} cores.")
