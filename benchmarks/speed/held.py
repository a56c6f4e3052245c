"""How much memory a process has held at most."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def level_peak() -> float:
    """Megabytes held now; where the system can forget the peak, it begins anew from here."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak()


def peak() -> float:
    """Megabytes this process has held at most. Linux's `getrusage` counts what the parent held before this program."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / (1 << 10)
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == "darwin" else 1 << 10)
