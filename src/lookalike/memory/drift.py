"""Which moments the memory is moved to: those of the batch (XBN), or a filtered form of them (AXBN, EMA).

Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning": eq. 6 moves, algorithm 1 filters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, choose
from lookalike.memory.moments import Moments

RULES = ("xbn", "axbn", "ema")
MODES = ("gain", "filter", "noise")
AUTO_STEPS = 16
"""Batches that `r="auto"` looks at before it filters."""
AUTO_WINDOW = 1000
"""Batches over which it averages from then on; q is a small difference of large numbers."""


class Filter(nn.Module):
    """A scalar Kalman filter over the batches' moments; with `gain` fixed it is EMA, with gain 1 XBN."""

    mean: Tensor
    std: Tensor
    last: Tensor
    step_before: Tensor

    def __init__(
        self,
        dim: int,
        *,
        gain: float | None = None,
        q: float = 1.0,
        r: float | str = 0.01,
        p0: float = 1.0,
        interval: int = 1,
        interval_mode: str = "gain",
    ) -> None:
        super().__init__()
        if isinstance(r, str) and r != "auto":
            raise LookalikeError(f"`r` is `{r}`; it must be a number from 0 up, or `auto`.")
        if min(q, p0) < 0 or (not isinstance(r, str) and r < 0):
            raise LookalikeError("`q`, `r` and `p0` are variances: they must be 0 or more.")
        if interval < 1:
            raise LookalikeError(f"`interval` is {interval}; it counts steps, from 1 up.")
        choose(interval_mode, MODES, "a reading of the interval")
        self.fixed, self.q, self.r, self.p0 = gain, q, r, p0
        self.interval, self.mode = interval, interval_mode
        for name in ("mean", "std", "last", "step_before"):
            self.register_buffer(name, torch.zeros(dim, dtype=torch.float64, device=CPU))
        self.reset()

    def reset(self) -> None:
        self.p, self.gain, self.count, self.gains = self.p0, 1.0, 0, 0.0
        self.gamma0 = self.gamma1 = self.noise = self.motion = 0.0
        for buffer in self.buffers():
            buffer.zero_()

    def forward(self, batch: Moments, size: int) -> Moments:
        """The target after a batch of `size` rows has been seen."""
        self._learn(batch.mean)
        fresh = self.count % self.interval == 0
        if self.fixed is not None:
            self.gain = self.fixed
        elif fresh or self.mode == "noise":
            self._gain(size, fresh)
        if self.count == 0:
            self.mean.copy_(batch.mean)
            self.std.copy_(batch.std)
        elif fresh or self.mode != "filter":
            # lerp is exact at gain 1, so that r = 0 is XBN to the bit.
            self.mean.lerp_(batch.mean, self.gain)
            self.std.lerp_(batch.std, self.gain)
        self.count += 1
        self.gains += self.gain
        return Moments(self.mean, self.std)

    def _gain(self, size: int, fresh: bool) -> None:
        if self.r == "auto":
            q, noise = self.motion, self.noise
        else:
            q, noise = self.q, float(self.r) / size
        prior = self.p + (q if fresh or self.mode != "noise" else 0.0)
        self.gain = 1.0 if noise == 0.0 else prior / (prior + noise)
        self.p = (1.0 - self.gain) * prior

    def _learn(self, mean: Tensor) -> None:
        """Noise and motion from the differences of successive batch means: R = −γ₁, q = γ₀ + 2γ₁."""
        if self.r != "auto" or self.fixed is not None:
            return
        if self.count > 0:
            difference = mean - self.last
            share = 1.0 / min(self.count, AUTO_WINDOW)
            self.gamma0 += share * (float(difference.square().mean()) - self.gamma0)
            if self.count > 1:
                share = 1.0 / min(self.count - 1, AUTO_WINDOW)
                self.gamma1 += share * (float((difference * self.step_before).mean()) - self.gamma1)
            self.step_before.copy_(difference)
            if self.count >= AUTO_STEPS:
                self.noise = max(-self.gamma1, 0.0)
                self.motion = max(self.gamma0 + 2.0 * self.gamma1, 0.0)
            if self.count == AUTO_STEPS:
                self.p = self.noise  # so far the target is the last batch, and as uncertain
        self.last.copy_(mean)

    def report(self) -> dict[str, Any]:
        """What the filter did. `window`: a plain mean over that many batches is as free of noise as the target."""
        average = self.gains / self.count if self.count else 1.0
        report: dict[str, Any] = {
            "gain": self.gain,
            "mean_gain": average,
            "window": (2.0 - average) / average if average > 0 else math.inf,
            "steps": self.count,
        }
        if self.fixed is None:
            auto = self.r == "auto"
            report |= {
                "q": self.motion if auto else self.q,
                "r": self.noise if auto else self.r,
                "auto": auto,
                "interval": self.interval,
                "interval_mode": self.mode,
            }
        return report

    def get_extra_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NUMBERS}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, state[name])

    def _apply(self, fn: Any, recurse: bool = True) -> Filter:
        """Statistics stay in main memory in float64, whatever the model is moved or cast to."""
        return self


_NUMBERS = ("p", "gain", "count", "gains", "gamma0", "gamma1", "noise", "motion")


class Hook(nn.Module):
    """A rule of the user's: `module(moments of the rows or None, batch) -> (scale, shift)` for every stored row."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def reset(self) -> None:
        reset = getattr(self.module, "reset", None)
        if callable(reset):
            reset()

    def forward(self, rows: Moments | None, batch: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.module(rows, batch)
        return scale, shift

    def report(self) -> dict[str, Any]:
        report = getattr(self.module, "report", None)
        return dict(report()) if callable(report) else {}


def make(rule: str | nn.Module | None, dim: int, *, beta: float, **filter_settings: Any) -> Filter | Hook | None:
    """The rule of that name; a module is taken as it is."""
    if rule is None or rule == "none":
        return None
    if isinstance(rule, nn.Module):
        return Hook(rule)
    choose(rule, (*RULES, "none"), "a drift rule")
    if rule == "xbn":
        return Filter(dim, gain=1.0)
    if rule == "ema":
        if not 0.0 <= beta < 1.0:
            raise LookalikeError(f"`beta` is {beta}; it must lie from 0 (XBN) to below 1.")
        return Filter(dim, gain=1.0 - beta)
    return Filter(dim, **filter_settings)
