"""Devices, threads and the processor. Devices are named only here."""

from __future__ import annotations

import contextlib
import functools
import math
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
    """Return how many threads a job may use.

    That is `LOOKALIKE_THREADS`, else `OMP_NUM_THREADS`, else the cores this process may run on, at most the CPU quota
    of its container (`cpu_quota`).
    """
    chosen = os.environ.get("LOOKALIKE_THREADS")
    if chosen:
        if not chosen.isdigit() or int(chosen) < 1:
            raise LookalikeError(f"LOOKALIKE_THREADS is `{chosen}`; it must be a whole number from 1 up.")
        return int(chosen)
    outer = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number for each nested level
    if outer.isdigit() and int(outer) > 0:
        return int(outer)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())))


@functools.cache
def cpu_quota(root: Path = Path("/")) -> float:
    """Return the number of CPUs that the control groups of this process allow; infinity without a limit.

    Args:
        root: Root of the file system, of which `proc` and `sys` are read (cgroup version 1 and 2).
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for name in [controllers, "cpu"] if controllers else [".", "unified"]:
            mount = root / "sys/fs/cgroup" / name
            group = mount / path.lstrip("/")  # inside a container it may not be there; its parents hold the limit
            limits += [_group_quota(place) for place in (group, *group.parents) if place.is_relative_to(mount)]
    return min(limits)


def _group_quota(group: Path) -> float:
    """CPUs of one control group: quota over period."""
    try:
        names = ["cpu.max"] if (group / "cpu.max").exists() else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        quota, period = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def configure_openmp() -> None:
    """Set, before torch is loaded, how its OpenMP threads wait and how many there are, unless the user has.

    By default a waiting thread spins for milliseconds and takes the core from other programs: two jobs on two cores
    are then 3 to 25 times slower instead of 2. Subprocesses inherit the variables.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU: iterations
        os.environ.setdefault("KMP_BLOCKTIME", "1")  # Intel and LLVM: milliseconds
    if cpu_quota() < (os.cpu_count() or 1) and "OMP_NUM_THREADS" not in os.environ:
        with contextlib.suppress(LookalikeError):  # reported by the command that uses it
            os.environ["OMP_NUM_THREADS"] = str(threads())


def cpu_name() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load_average() -> float | None:
    """Return the load average of the last minute, or None where the system does not keep one."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
