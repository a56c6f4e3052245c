"""Devices, threads and the processor. Devices are named only here."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike.core.errors import LookalikeError, choose

if TYPE_CHECKING:
    import torch

KINDS = ("auto", "cpu", "cuda", "mps", "xpu")
CPU = "cpu"


def available() -> list[str]:
    """Return the kinds of device this machine has, best first; the CPU is always last."""
    import torch

    kinds = [kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()]
    if torch.backends.mps.is_available():
        kinds.append("mps")
    return [*kinds, CPU]


def resolve(name: str | torch.device = "auto") -> torch.device:
    """Return the torch device of a name; `auto` is the best one available.

    Raises:
        LookalikeError: There is no such device. A missing one is never replaced silently.
    """
    import torch

    if isinstance(name, torch.device):
        return name
    kind, _, number = name.partition(":")
    if kind == "gpu":
        raise LookalikeError("`gpu` is not a device: say which kind (cuda, mps or xpu), or leave it to `auto`.")
    choose(kind, KINDS, "a device")
    have = available()
    if kind == "auto":
        return torch.device(have[0])
    if kind not in have:
        raise LookalikeError(f"This machine has no device `{kind}` that torch can use: there is {', '.join(have)}.")
    return torch.device(f"{kind}:{number}" if number else kind)


def threads() -> int:
    """Return how many threads a job may use: `LOOKALIKE_THREADS`, or the cores available to this process."""
    chosen = os.environ.get("LOOKALIKE_THREADS")
    if chosen:
        if not chosen.isdigit() or int(chosen) < 1:
            raise LookalikeError(f"LOOKALIKE_THREADS is `{chosen}`; it must be a whole number from 1 up.")
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Return the load average of the last minute, or None where the system does not keep one."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
