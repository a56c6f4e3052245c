"""XBM, XBN and AXBN: the batch is compared with a memory of earlier embeddings, with or without drift correction.

Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; Ajanthan et al., "Adaptive Cross Batch
Normalization for Metric Learning" (XBN, AXBN). The loop passes the joint batch to every process, so the memories of all
processes are identical.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from lookalike.core.settings import Settings
from lookalike.memory import CrossBatchMemory
from lookalike.methods.base import Batch, Context, MemoryRows, Method

WATCHED = 64  # rows whose original form is kept for measuring drift


class DriftSettings(Settings):
    """Drift correction of stored embeddings; see :class:`lookalike.memory.CrossBatchMemory`."""

    drift: Literal["none", "xbn", "axbn", "ema"] = "none"
    """`xbn` matches mean and standard deviation of the memory to the batch, `axbn` to a Kalman filter's estimate of
    them, `ema` to a moving average; `none` leaves the embeddings as stored."""
    r: NonNegativeFloat | Literal["auto"] = 0.01
    """`axbn`: observation noise of one embedding, divided by the batch size; `auto` estimates r and q."""
    q: PositiveFloat = 1.0
    """`axbn`: process noise of one step. Only r/q matters: at the paper's 0.01 the filter does nothing."""
    p0: PositiveFloat = 1.0
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
    renorm: Literal["loss", "store", "none"] = "loss"
    """Corrected embeddings leave the sphere: normalize them in the loss, in the store, or never."""

    def memory_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `CrossBatchMemory`."""
        names = ("r", "q", "p0", "interval", "interval_mode", "beta", "debias", "renorm")
        return {"drift": None if self.drift == "none" else self.drift, **{name: getattr(self, name) for name in names}}


class MemorySettings(DriftSettings):
    """Settings of the cross-batch memory."""

    drift: Literal["none", "xbn", "axbn", "ema"] = "xbn"
    """`xbn` matches mean and standard deviation of the memory to the batch, `axbn` to a Kalman filter's estimate of
    them, `ema` to a moving average; `none` leaves the embeddings as stored (XBM)."""
    size: NonNegativeFloat = 1.0
    """Size: up to 1 a fraction of the training images, above 1 a number, at least one batch; 0: no memory."""
    batch_loss: bool = False
    """XBM*: add the loss within the batch."""
    weight: PositiveFloat = 1.0
    """XBM*: weight of the loss against the memory."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps before the memory is used."""
    fill: bool = False
    """After the warm-up, fill the memory with encoded random training images."""

    def num_rows(self, images: int, batch: int) -> int:
        """Return the number of rows for a training set of so many images."""
        count = int(self.size * images + 1e-9) if self.size <= 1 else int(self.size)
        return max(count, batch)


class MinerSettings(Settings):
    """Settings of the pair miner."""

    kind: Literal["pair_margin", "none"] = "pair_margin"
    """Which pairs count: those beyond the margins, or all."""
    pos_margin: PositiveFloat = 0.2
    """Positives count beyond this distance (or below this cosine)."""
    neg_margin: PositiveFloat = 0.8
    """Negatives count within this distance (or above this cosine)."""
    distance: Literal["euclidean", "cosine"] = "euclidean"
    """Distance of the margins; Euclidean, of unit vectors, is the default of the library and of the paper."""


class XBMSettings(Settings):
    """Settings of XBM."""

    temperature: PositiveFloat = 0.1
    """Temperature τ of SupCon."""
    miner: MinerSettings = Field(default_factory=MinerSettings)
    """Which pairs count."""
    memory: MemorySettings = Field(default_factory=MemorySettings)
    """The memory; `memory.NAME` is short for `method.memory.NAME`."""


class XBM(Method):
    """SupCon against a cross-batch memory; for many classes with few images each.

    Args:
        settings: Settings of the method.
        context: What the training loop provides.
    """

    name = "xbm"
    Settings = XBMSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}, "log": {"drift_every_n_steps": 20}}
    settings: XBMSettings

    def __init__(self, settings: XBMSettings, context: Context) -> None:
        super().__init__(settings, context)
        chosen = settings.memory
        # Without a memory, or before it is used, only the batch itself is stored.
        rows = chosen.num_rows(len(context.labels), context.batch) if chosen.size else context.batch
        options: dict[str, Any] = {}
        if chosen.size:
            options = chosen.memory_options()
            options |= {"batch_loss": chosen.batch_loss, "memory_weight": chosen.weight, "watch": WATCHED}
        self.memory = make_memory(settings, context.dim, rows, **options)
        self.batch_only = make_memory(settings, context.dim, context.batch) if chosen.warmup_steps else None

    def before_step(self) -> None:
        """Fill the memory with random training images after the warm-up, if requested."""
        chosen, context = self.settings.memory, self.context
        if chosen.fill and chosen.size and context.step == chosen.warmup_steps + 1:
            known = torch.nonzero(context.labels >= 0)[:, 0]
            order = torch.randperm(len(known), generator=context.generator("fill"))[: self.memory.memory_size]
            ids = known[order.to(known.device)]
            self.memory.reset_queue()
            self.memory.fill(context.encode(ids.cpu().numpy()), context.labels[ids], ids)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        early = self.batch_only is not None and self.context.step <= self.settings.memory.warmup_steps
        memory = self.batch_only if early and self.batch_only is not None else self.memory
        value: Tensor = memory(embeddings["z"], batch.labels, ids=batch.ids)
        if not early:
            self._log()
        return value

    def _log(self) -> None:
        """Log the number of rows and the state of the filter, for the report."""
        self.context.log("memory/rows", self.memory.count)
        if self.settings.memory.drift in ("axbn", "ema") and self.settings.memory.size:
            report = self.memory.drift_report()
            for name in ("gain", "window"):
                self.context.log(f"memory/{name}", report[name])
            if report.get("auto"):
                self.context.log("memory/r", report["r"])
                self.context.log("memory/q", report["q"])

    def memory_rows(self, count: int) -> MemoryRows | None:
        watched = self.memory.watched_rows()
        if not len(watched.ids):
            return None
        return MemoryRows(watched.ids[:count], watched.adapted[:count], watched.enqueued[:count])


def make_memory(settings: XBMSettings, dim: int, rows: int, **options: Any) -> CrossBatchMemory:
    """Create a memory with the loss and miner of the settings; it is given joint batches and gathers nothing."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner

    chosen, miner = settings.miner, None
    if chosen.kind == "pair_margin":
        distance = LpDistance() if chosen.distance == "euclidean" else CosineSimilarity()
        miner = PairMarginMiner(chosen.pos_margin, chosen.neg_margin, distance=distance)
    return CrossBatchMemory(SupConLoss(settings.temperature), dim, rows, miner, gather=False, **options)
