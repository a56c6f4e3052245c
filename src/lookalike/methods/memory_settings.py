"""Settings of a memory, shared by the methods that have one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from lookalike.core.settings import Settings


class DriftSettings(Settings):
    """How stored rows are kept up to date with a model that moves on."""

    drift: Literal["none", "xbn", "axbn", "ema"] = "none"
    """`xbn` matches mean and spread of the memory to the present batch, `axbn` to a Kalman filter's estimate of them,
    `ema` to a moving average; `none` leaves the rows as they were stored."""
    r: NonNegativeFloat | Literal["auto"] = 0.01
    """`axbn`: noise of one embedding, divided by the batch size; `auto` estimates r and q from the run."""
    q: PositiveFloat = 1.0
    """`axbn`: how far the model moves in one step. Only r/q counts: at the paper's 0.01 the filter does nothing."""
    p0: PositiveFloat = 1.0
    """`axbn`: uncertainty at the start."""
    interval: PositiveInt = 1
    """`axbn`: steps between two updates of the gain; the paper has 10 or 100."""
    interval_mode: Literal["gain", "filter", "noise"] = "gain"
    """`axbn`: what happens every `interval` steps: the gain is computed anew, the whole filter moves, or the process
    noise q enters (between, the estimate averages the batches)."""
    beta: float = Field(default=0.1, ge=0.0, lt=1.0)
    """`ema`: weight of the past."""
    debias: float | None = Field(default=None, ge=0.0, le=1.0)
    """Correlation ρ of a class's embeddings: the batch's spread, which class-balanced batches understate, is divided
    by √(1 − (1 + (k − 1)ρ)/B); null: it is taken as it is."""
    renorm: Literal["loss", "store", "none"] = "loss"
    """Adapted rows leave the sphere: bring them to length one inside the loss, when they are stored, or never."""

    def rule(self) -> dict[str, Any]:
        """The keyword arguments of `CrossBatchMemory`."""
        names = ("r", "q", "p0", "interval", "interval_mode", "beta", "debias", "renorm")
        return {"drift": None if self.drift == "none" else self.drift, **{name: getattr(self, name) for name in names}}


class MemorySettings(DriftSettings):
    drift: Literal["none", "xbn", "axbn", "ema"] = "xbn"
    """`xbn` matches mean and spread of the memory to the present batch, `axbn` to a Kalman filter's estimate of them,
    `ema` to a moving average; `none` leaves the rows as they were stored (XBM)."""
    size: NonNegativeFloat = 1.0
    """Rows: up to 1 a share of the training images, above 1 a number, at least one batch; 0: no memory."""
    batch_loss: bool = False
    """XBM*: add the loss inside the batch."""
    weight: PositiveFloat = 1.0
    """XBM*: weight of the loss against the memory."""
    warmup: int = Field(default=0, ge=0)
    """Steps without the memory before it is used."""
    fill: bool = False
    """After the warm-up, fill the memory at once by encoding random training images."""

    def rows(self, images: int, batch: int) -> int:
        """Rows for a training set of so many images."""
        count = int(self.size * images + 1e-9) if self.size <= 1 else int(self.size)
        return max(count, batch)
