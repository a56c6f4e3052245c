"""Drift rules of the memory: which moments stored embeddings are matched to (XBN, AXBN, EMA).

Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning". XBN matches mean and
standard deviation of the stored embeddings to those of the batch (eq. 6, `xbn_update`); AXBN filters the batch's
moments first (eq. 18 to 22 and algorithm 1, `MomentFilter`). `queue.py` applies the match as one affine map. Statistics
are in float64 and in main memory: a gain of 0.9998 rounds to 1 in half precision. See docs/design/memory.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, choose

RULES = ("xbn", "axbn", "ema")
INTERVAL_MODES = ("gain", "filter", "noise")
AUTO_STEPS = 16
"""Batches that `r="auto"` observes before it filters."""
AUTO_WINDOW = 1000
"""Batches over which it averages from then on; q is a small difference of large numbers."""
MIN_STD = 1e-6
"""A dimension whose standard deviation is smaller is shifted but not scaled."""


class Moments(NamedTuple):
    """Mean and standard deviation per dimension, (d,) each."""

    mean: Tensor
    std: Tensor


def as_float64(x: Tensor) -> Tensor:
    """Return `x` as float64 in main memory, without gradient."""
    return x.detach().to(CPU, torch.float64)


def compute_moments(embeddings: Tensor, correction: int = 0) -> Moments:
    """Compute the moments of at least two embeddings (n, d); `correction` 1 divides the variance by n − 1.

    Example:
        >>> compute_moments(torch.tensor([[1.0], [3.0]])).std.item()
        1.0
    """
    rows = as_float64(embeddings)
    mean = rows.mean(0)
    variance = (rows - mean).square_().sum(0) / max(len(rows) - correction, 1)
    return Moments(mean, variance.sqrt())


def std_from_squares(mean: Tensor, mean_square: Tensor, count: int, correction: int) -> Tensor:
    """Return the standard deviation from E[x] and E[x²]."""
    return ((mean_square - mean * mean).clamp_min(0.0) * (count / max(count - correction, 1))).sqrt()


def xbn_update(stored: Tensor, target: Moments) -> Tensor:
    """Match the moments of stored embeddings (n, d) to a target: the reference form of XBN.

    z ← (z − μ_R) ∘ (σ̂/σ_R) + μ̂. The memory applies it as one affine map in O(d); see :mod:`lookalike.memory.queue`.

    References:
        Ajanthan et al., eq. 6.

    Example:
        >>> batch, stored = torch.randn(8, 3).double(), torch.randn(100, 3).double() * 5 + 1
        >>> moments = compute_moments(xbn_update(stored, compute_moments(batch)))
        >>> torch.allclose(moments.mean, batch.mean(0))
        True
    """
    mean, std = compute_moments(stored)
    flat = (std < MIN_STD) | (target.std < MIN_STD)
    return (stored - mean) * torch.where(flat, 1.0, target.std / std) + target.mean


def class_balance_factor(labels: Tensor, correlation: float) -> float:
    """Return E[s]/σ of a batch with several images per class: √(1 − (1 + (k−1)ρ)/B).

    Class-balanced batches understate the spread. For classes of different sizes, k is the mean size of the class that
    an image of the batch belongs to.

    Args:
        labels: Labels of the batch.
        correlation: Correlation ρ of embeddings of one class.

    Returns:
        The factor, at most 1.
    """
    size = len(labels)
    together = float(torch.unique(labels, return_counts=True)[1].double().square().sum()) / size
    return max(1.0 - (1.0 + (together - 1.0) * correlation) / size, MIN_STD) ** 0.5


class MomentFilter(nn.Module):
    """Scalar Kalman filter over the moments of batches; with a fixed gain it is EMA, with gain 1 XBN.

    Args:
        dim: Dimension of the embeddings.
        gain: Fixed gain, or None for the Kalman filter.
        q: Process noise: how far the model moves in a step.
        r: Observation noise of one embedding, divided by the batch size, or ``"auto"`` to estimate r and q.
        p0: Initial uncertainty.
        interval: Steps between two updates.
        interval_mode: What happens every `interval` steps: ``"gain"`` (the gain is updated), ``"filter"`` (the whole
            filter moves) or ``"noise"`` (process noise enters).

    References:
        Ajanthan et al., eq. 18 to 22 and algorithm 1; R = r/B as in section 3.2.1.

    Example:
        >>> rule = MomentFilter(3, q=1.0, r=0.01)
        >>> target = rule(compute_moments(torch.randn(8, 3)), 8)
        >>> target.mean.shape
        torch.Size([3])
    """

    mean: Tensor
    std: Tensor
    previous_mean: Tensor
    previous_difference: Tensor

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
            raise LookalikeError(f"`r` is `{r}`; it must be a number that is not negative, or `auto`.")
        if min(q, p0) < 0 or (not isinstance(r, str) and r < 0):
            raise LookalikeError("`q`, `r` and `p0` are variances and must not be negative.")
        if interval < 1:
            raise LookalikeError(f"`interval` is {interval}; it must be at least 1 step.")
        choose(interval_mode, INTERVAL_MODES, "an interval mode")
        self.fixed_gain, self.q, self.r, self.p0 = gain, q, r, p0
        self.interval, self.interval_mode = interval, interval_mode
        for name in ("mean", "std", "previous_mean", "previous_difference"):
            self.register_buffer(name, torch.zeros(dim, dtype=torch.float64, device=CPU))
        self.reset()

    def reset(self) -> None:
        self.p, self.gain, self.count, self.gain_sum = self.p0, 1.0, 0, 0.0
        self.gamma0 = self.gamma1 = self.observation_noise = self.process_noise = 0.0
        for buffer in self.buffers():
            buffer.zero_()

    def forward(self, batch: Moments, size: int) -> Moments:
        """Return the target after observing the moments of a batch of `size` embeddings."""
        self._estimate_noise(batch.mean)
        fresh = self.count % self.interval == 0
        if self.fixed_gain is not None:
            self.gain = self.fixed_gain
        elif fresh or self.interval_mode == "noise":
            self._update_gain(size, fresh)
        if self.count == 0:
            self.mean.copy_(batch.mean)
            self.std.copy_(batch.std)
        elif fresh or self.interval_mode != "filter":
            # lerp is exact at gain 1, so that r = 0 is XBN to the bit.
            self.mean.lerp_(batch.mean, self.gain)
            self.std.lerp_(batch.std, self.gain)
        self.count += 1
        self.gain_sum += self.gain
        return Moments(self.mean, self.std)

    def _update_gain(self, size: int, fresh: bool) -> None:
        if self.r == "auto":
            q, noise = self.process_noise, self.observation_noise
        else:
            q, noise = self.q, float(self.r) / size
        prior = self.p + (q if fresh or self.interval_mode != "noise" else 0.0)
        self.gain = 1.0 if noise == 0.0 else prior / (prior + noise)
        self.p = (1.0 - self.gain) * prior

    def _estimate_noise(self, mean: Tensor) -> None:
        """Estimate R = −γ₁ and q = γ₀ + 2γ₁ from the differences of successive batch means."""
        if self.r != "auto" or self.fixed_gain is not None:
            return
        if self.count > 0:
            difference = mean - self.previous_mean
            weight = 1.0 / min(self.count, AUTO_WINDOW)
            self.gamma0 += weight * (float(difference.square().mean()) - self.gamma0)
            if self.count > 1:
                weight = 1.0 / min(self.count - 1, AUTO_WINDOW)
                self.gamma1 += weight * (float((difference * self.previous_difference).mean()) - self.gamma1)
            self.previous_difference.copy_(difference)
            if self.count >= AUTO_STEPS:
                self.observation_noise = max(-self.gamma1, 0.0)
                self.process_noise = max(self.gamma0 + 2.0 * self.gamma1, 0.0)
            if self.count == AUTO_STEPS:
                self.p = self.observation_noise  # so far the target is the last batch, with its uncertainty
        self.previous_mean.copy_(mean)

    def report(self) -> dict[str, Any]:
        """Report gain and noise; `window`: a plain mean over that many batches has the noise of the target."""
        average = self.gain_sum / self.count if self.count else 1.0
        report: dict[str, Any] = {
            "gain": self.gain,
            "mean_gain": average,
            "window": (2.0 - average) / average if average > 0 else math.inf,
            "steps": self.count,
        }
        if self.fixed_gain is None:
            auto = self.r == "auto"
            report |= {
                "q": self.process_noise if auto else self.q,
                "r": self.observation_noise if auto else self.r,
                "auto": auto,
                "interval": self.interval,
                "interval_mode": self.interval_mode,
            }
        return report

    def get_extra_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name])

    def _apply(self, fn: Any, recurse: bool = True) -> MomentFilter:
        """Keep statistics in main memory in float64, whatever the model is moved or cast to."""
        return self


_STATE = ("p", "gain", "count", "gain_sum", "gamma0", "gamma1", "observation_noise", "process_noise")


class CustomRule(nn.Module):
    """A drift rule of the user.

    Args:
        module: Called as ``module(moments of the stored rows or None, batch)``; returns (scale, shift) for all
            stored embeddings.
    """

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


def make_drift_rule(
    rule: str | nn.Module | None, dim: int, *, beta: float, **filter_settings: Any
) -> MomentFilter | CustomRule | None:
    """Create the drift rule of that name; a module of the user is wrapped in `CustomRule`."""
    if rule is None or rule == "none":
        return None
    if isinstance(rule, nn.Module):
        return CustomRule(rule)
    choose(rule, (*RULES, "none"), "a drift rule")
    if rule == "xbn":
        return MomentFilter(dim, gain=1.0)
    if rule == "ema":
        if not 0.0 <= beta < 1.0:
            raise LookalikeError(f"`beta` is {beta}; it must be in [0, 1); 0 is XBN.")
        return MomentFilter(dim, gain=1.0 - beta)
    return MomentFilter(dim, **filter_settings)
