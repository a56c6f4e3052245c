"""Learning rates as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from lookalike.training.settings import ScheduleSettings


def factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """What the rates are multiplied by at `step` (1 … steps)."""
    if step <= schedule.warmup:
        return step / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    past = step - schedule.warmup - 1
    if schedule.kind == "step":
        return schedule.factor ** (past // schedule.every)
    share = past / max(1, steps - schedule.warmup)
    return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * share))
