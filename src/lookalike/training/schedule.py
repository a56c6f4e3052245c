"""Learning rates as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from lookalike.training.settings import ScheduleSettings


def factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """What the rates are multiplied by at `step` (1 … steps)."""
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    past = step - schedule.warmup_steps - 1
    if schedule.kind == "step":
        return schedule.gamma ** (past // schedule.step_size)
    share = past / max(1, steps - schedule.warmup_steps)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * share))
