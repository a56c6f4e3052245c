"""Drift rules of the memory: which moments stored embeddings are matched to (XBN, AXBN, EMA, shrunk moments).

Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning". XBN matches mean and
standard deviation of the stored embeddings to those of the batch (eq. 6, `xbn_update`); AXBN filters the batch's
moments first (eq. 18 to 22 and algorithm 1, `MomentFilter`); `ShrunkMoments` is ours. `queue.py` applies the match as
one affine map. Statistics are in float64 and in main memory: a gain of 0.9998 rounds to 1 in half precision. See
docs/design/memory.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from lookalike.core.device import CPU
from lookalike.core.settings import Settings

AUTO_STEPS = 16  # batches that `r="auto"` observes before it filters
AUTO_WINDOW = 1000  # batches over which it averages from then on; q is a small difference of large numbers
SHRINK_WINDOW = 16  # batches over which `shrink` averages distance and noise
MIN_STD = 1e-6  # a dimension whose standard deviation is smaller is shifted but not scaled


class DriftSettings(Settings):
    """Drift correction of stored embeddings, the one place where its settings are defined."""

    drift: Literal["none", "xbn", "axbn", "ema", "shrink"] = "none"
    """`xbn` matches mean and standard deviation of the memory to the batch, `axbn` to a Kalman filter's estimate of
    them, `ema` to a moving average, `shrink` to the batch's shrunk towards the memory's own, the more the less has
    drifted; `none` leaves the embeddings as stored."""
    r: NonNegativeFloat | Literal["auto"] = 0.01
    """`axbn`: observation noise of one embedding, divided by the batch size; `auto` estimates r and q."""
    q: NonNegativeFloat = 1.0
    """`axbn`: process noise of one step. Only r/q matters: at the paper's 0.01 the filter does nothing."""
    p0: NonNegativeFloat = 1.0
    """`axbn`: initial uncertainty."""
    interval: PositiveInt = 1
    """`axbn`: steps between two updates; the paper uses 10 or 100."""
    interval_mode: Literal["gain", "filter", "noise"] = "gain"
    """`axbn`: what happens every `interval` steps: the gain is updated, the whole filter moves, or the process noise q
    enters (in between, the estimate averages the batches)."""
    beta: float = Field(default=0.1, ge=0.0, lt=1.0)
    """`ema`: weight of the past."""
    debias: float | None = Field(default=None, ge=0.0, le=1.0)
    """Correlation ρ of embeddings of one class. The standard deviation, which class-balanced batches understate, is
    divided by √(1 − (1 + (k − 1)ρ)/B); null: no correction."""
    correction: Literal[0, 1] = 0
    """1 divides variances by n − 1, 0 by n."""
    renorm: Literal["loss", "store", "none"] = "loss"
    """Corrected embeddings leave the sphere: normalize them in the loss, in the store, or never."""


class Moments(NamedTuple):
    """Moments of embeddings, by dimension.

    Args:
        mean: Mean, ``(d,)``.
        std: Standard deviation, ``(d,)``.

    References:
        Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning", eq. 6: the moments that are matched.

    Example:
        >>> Moments(torch.zeros(2), torch.ones(2)).std
        tensor([1., 1.])
    """

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
    """Return stored embeddings with the moments of a target, in float64: the reference form of XBN.

    z ← (z − μ_R) ∘ (σ̂/σ_R) + μ̂. The memory applies it as one affine map in O(d); see :mod:`lookalike.memory.queue`.

    Args:
        stored: Stored embeddings.
        target: Moments to match.

    Shape:
        - stored and output: ``(n, d)``.

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

    Class-balanced batches understate the spread. ρ is the correlation of embeddings of one class; for classes of
    different sizes, k is the mean size of the class that an image of the batch belongs to.
    """
    size = len(labels)
    together = float(torch.unique(labels, return_counts=True)[1].double().square().sum()) / size
    return max(1.0 - (1.0 + (together - 1.0) * correlation) / size, MIN_STD) ** 0.5


def sampling_noise(rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the variances of a batch's mean and standard deviation that drawing other classes would cause.

    Means over the dimensions of the jackknife over classes: images of a class are alike, so a batch of P classes says
    little more about the moments than P images do. With one class the images take the place of the classes.

    Example:
        >>> mean, std = sampling_noise(torch.tensor([[0.0], [0.0], [2.0], [2.0]]), torch.tensor([0, 0, 1, 1]))
        >>> round(mean, 6), round(std, 6)
        (1.0, 0.0)
    """
    rows = as_float64(rows)
    place = torch.unique(labels.to(rows.device), return_inverse=True)[1]
    place = place if int(place.max()) else torch.arange(len(rows))
    counts = torch.bincount(place).double()[:, None]
    sums, squares = (rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, place, x) for x in (rows, rows.square()))
    left = len(rows) - counts  # without one class at a time
    mean = (sums.sum(0) - sums) / left
    std = ((squares.sum(0) - squares) / left - mean.square()).clamp_min(0.0).sqrt()
    noise = [float((x - x.mean(0)).square().sum(0).mean()) * (len(x) - 1) / len(x) for x in (mean, std)]
    return noise[0], noise[1]


class _Rule(nn.Module):
    """What all rules share: the gain, its mean over the steps, and statistics in main memory in float64."""

    scalars: tuple[str, ...] = ()
    gain: float
    count: int
    gain_sum: float

    def reset(self) -> None:
        """Forget all batches."""
        for name in self.scalars:
            setattr(self, name, 0 if name == "count" else 0.0)
        self.gain = 1.0
        for buffer in self.buffers():
            buffer.zero_()

    def report(self) -> dict[str, Any]:
        """Report the gain; `window`: a plain mean over that many batches has the noise of the target."""
        average = self.gain_sum / self.count if self.count else 1.0
        window = (2.0 - average) / average if average > 0 else math.inf
        return {"gain": self.gain, "mean_gain": average, "window": window, "steps": self.count}

    def get_extra_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.scalars}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in self.scalars:
            setattr(self, name, state[name])

    def _apply(self, fn: Any, recurse: bool = True) -> _Rule:
        return self


class MomentFilter(_Rule):
    """Scalar Kalman filter over the moments of batches; with a fixed gain it is EMA, with gain 1 XBN.

    Args:
        dim: Dimension of the embeddings.
        settings: The settings of `xbn`, `ema` or `axbn`.

    Shape:
        - moments of the batch and the target: ``(dim,)`` each.

    References:
        Ajanthan et al., eq. 18 to 22 and algorithm 1; R = r/B as in section 3.2.1.

    Example:
        >>> rule = MomentFilter(3, DriftSettings(drift="axbn"))
        >>> target = rule(compute_moments(torch.randn(8, 3)), 8)
        >>> target.mean.shape
        torch.Size([3])
    """

    scalars = ("p", "gain", "count", "gain_sum", "gamma0", "gamma1", "observation_noise", "process_noise")
    p: float
    gamma0: float
    gamma1: float
    observation_noise: float
    process_noise: float
    mean: Tensor
    std: Tensor
    previous_mean: Tensor
    previous_difference: Tensor

    def __init__(self, dim: int, settings: DriftSettings) -> None:
        super().__init__()
        self.settings = settings
        self.fixed_gain = {"xbn": 1.0, "ema": 1.0 - settings.beta}.get(settings.drift)
        for name in ("mean", "std", "previous_mean", "previous_difference"):
            self.register_buffer(name, torch.zeros(dim, dtype=torch.float64, device=CPU))
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.p = self.settings.p0

    def forward(self, batch: Moments, size: int) -> Moments:
        """Return the target after observing the moments of a batch of `size` embeddings."""
        self._estimate_noise(batch.mean)
        mode = self.settings.interval_mode
        fresh = self.count % self.settings.interval == 0
        if self.fixed_gain is not None:
            self.gain = self.fixed_gain
        elif fresh or mode == "noise":
            self._update_gain(size, fresh)
        if self.count == 0:
            self.mean.copy_(batch.mean)
            self.std.copy_(batch.std)
        elif fresh or mode != "filter" or self.fixed_gain is not None:
            # lerp is exact at gain 1, so that r = 0 is XBN to the bit.
            self.mean.lerp_(batch.mean, self.gain)
            self.std.lerp_(batch.std, self.gain)
        self.count += 1
        self.gain_sum += self.gain
        return Moments(self.mean, self.std)

    def _update_gain(self, size: int, fresh: bool) -> None:
        s = self.settings
        q, noise = (self.process_noise, self.observation_noise) if s.r == "auto" else (s.q, float(s.r) / size)
        prior = self.p + (q if fresh or s.interval_mode != "noise" else 0.0)
        self.gain = 1.0 if noise == 0.0 else prior / (prior + noise)
        self.p = (1.0 - self.gain) * prior

    def _estimate_noise(self, mean: Tensor) -> None:
        """Estimate R = −γ₁ and q = γ₀ + 2γ₁ from the differences of successive batch means."""
        if self.settings.r != "auto" or self.fixed_gain is not None:
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
        s = self.settings
        if self.fixed_gain is not None:
            return super().report()
        auto = s.r == "auto"
        q, r = (self.process_noise, self.observation_noise) if auto else (s.q, s.r)
        noise = {"q": q, "r": r, "auto": auto, "interval": s.interval, "interval_mode": s.interval_mode}
        return super().report() | noise


class ShrunkMoments(_Rule):
    """The batch's moments, shrunk towards the memory's own: (1 − g)·memory + g·batch, g = max(0, 1 − noise/distance).

    `distance` is the mean squared distance of batch and memory over the dimensions, `noise` the part of it that the
    choice of the batch alone explains (:func:`sampling_noise`), both averaged over about 16 batches: a positive-part
    James–Stein estimate, with a gain of its own for mean and standard deviation. Where much has drifted it is XBN;
    where nothing has, rows stay as stored.

    Shape:
        - moments of batch and memory, and the target: ``(d,)`` each.

    References:
        Ours (docs/design/memory.md); Ajanthan et al., eq. 6, is the case g = 1.

    Example:
        >>> rule = ShrunkMoments()
        >>> stored, batch = compute_moments(torch.zeros(2, 3)), compute_moments(torch.ones(2, 3))
        >>> rule(batch, stored, noise=(0.25, 0.0)).mean.tolist()
        [0.75, 0.75, 0.75]
    """

    scalars = ("gain", "count", "gain_sum", "std_gain", "distance", "noise", "std_distance", "std_noise")
    std_gain: float

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def forward(self, batch: Moments, stored: Moments, noise: tuple[float, float]) -> Moments:
        """Return the target for the moments of a batch, those of the memory, and their sampling noise."""
        self.count += 1
        pairs = zip(("", "std_"), stored, batch, noise, strict=True)
        target = Moments(*(self._shrink(kind, old, new, variance) for kind, old, new, variance in pairs))
        self.gain_sum += self.gain
        return target

    def _shrink(self, kind: str, old: Tensor, new: Tensor, variance: float) -> Tensor:
        weight = 1.0 / min(self.count, SHRINK_WINDOW)
        for name, value in (("distance", float((new - old).square().mean())), ("noise", variance)):
            before = getattr(self, kind + name)
            setattr(self, kind + name, before + weight * (value - before))
        distance, expected = getattr(self, f"{kind}distance"), getattr(self, f"{kind}noise")
        gain = max(0.0, 1.0 - expected / distance) if distance > 0 else 0.0
        setattr(self, f"{kind}gain", gain)
        return torch.lerp(old, new, gain)


class CustomRule(nn.Module):
    """A drift rule of the user.

    Args:
        module: Called with the moments of the stored rows (None if there are none) and the batch; returns
            (scale, shift), which are applied to the stored rows.

    Shape:
        - batch: ``(n, d)``; scale and shift: ``(d,)``.

    References:
        Ajanthan et al., eq. 6, has scale σ̂/σ_R and shift μ̂ − scale·μ_R.

    Example:
        >>> class Halve(torch.nn.Module):
        ...     def forward(self, stored, batch):
        ...         return torch.full((3,), 0.5), torch.zeros(3)
        >>> CustomRule(Halve())(None, torch.ones(2, 3))[0]
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def reset(self) -> None:
        getattr(self.module, "reset", lambda: None)()

    def forward(self, rows: Moments | None, batch: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.module(rows, batch)
        return scale, shift

    def report(self) -> dict[str, Any]:
        return dict(getattr(self.module, "report", dict)())
