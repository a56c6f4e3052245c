"""XBM, XBN and AXBN: SupCon of the batch against a memory of past embeddings, which may be corrected for drift.

The loop passes the joint batch to every process, so the memories of all processes are identical. When the memory
starts, and when rows are corrected: docs/design/memory.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from lookalike.core.progress import say
from lookalike.core.settings import Settings
from lookalike.memory import CrossBatchMemory
from lookalike.memory.cross_batch import MemorySettings
from lookalike.memory.queue import WatchedRows
from lookalike.memory.xbn import sampling_noise
from lookalike.methods.base import Batch, Context, Method

WATCHED = 64  # rows whose original form is kept for measuring drift
CHECK_EVERY, FIRST_CHECK = 10, 20  # steps between two decisions, and the first: learning rates are warm by then
MAX_PATH = 2.0  # `warmup_steps: auto` ends once the steps within the mean age of a row move embeddings by less in all


class XBMMemorySettings(MemorySettings):
    """Settings of the memory of XBM."""

    size: NonNegativeFloat = 1.0
    """Size: up to 1 a fraction of the training images, above 1 a number, at least one batch; 0: no memory."""
    warmup_steps: NonNegativeInt | Literal["auto"] = "auto"
    """Steps before the memory is used; `auto`: until the measured drift is small for the age of its rows, at most half
    of the training."""
    fill: bool = True
    """After the warm-up, fill the memory with encoded random training images."""

    def num_rows(self, images: int, batch: int) -> int:
        """Return the number of rows for a training set of so many labeled images."""
        count = int(self.size * images + 1e-9) if self.size <= 1 else int(self.size)
        return max(count, batch)


class XBNMemorySettings(XBMMemorySettings):
    """Settings of the memory of XBN."""

    drift: Literal["none", "xbn", "axbn", "ema", "shrink"] = "xbn"
    """As for `xbm`, where the default is `none`."""


class AXBNMemorySettings(XBMMemorySettings):
    """Settings of the memory of AXBN."""

    drift: Literal["none", "xbn", "axbn", "ema", "shrink"] = "axbn"
    """As for `xbm`, where the default is `none`."""
    r: NonNegativeFloat | Literal["auto"] = "auto"
    """Observation noise of one embedding, divided by the batch size; `auto` estimates r and q. The paper has 0.01, at
    which the filter does nothing."""


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
    memory: XBMMemorySettings = Field(default_factory=XBMMemorySettings)
    """The memory; `memory.NAME` is short for `method.memory.NAME`."""


class XBNSettings(XBMSettings):
    """Settings of XBN."""

    memory: XBNMemorySettings = Field(default_factory=XBNMemorySettings)
    """The memory; `memory.NAME` is short for `method.memory.NAME`."""


class AXBNSettings(XBMSettings):
    """Settings of AXBN."""

    memory: AXBNMemorySettings = Field(default_factory=AXBNMemorySettings)
    """The memory; `memory.NAME` is short for `method.memory.NAME`."""


class XBM(Method):
    """SupCon against a memory of embeddings as stored; for many classes with few images each.

    References:
        Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    Example:
        >>> la.train(data="photos", method="xbm", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "xbm"
    Settings: ClassVar[type[XBMSettings]] = XBMSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}, "log": {"drift_every_n_steps": 20}}
    settings: XBMSettings

    def __init__(self, settings: XBMSettings, context: Context) -> None:
        super().__init__(settings, context)
        chosen = settings.memory
        # Without a memory, or before it is used, only the batch itself is stored.
        labeled = int((context.labels >= 0).sum())
        rows = chosen.num_rows(labeled, context.batch) if chosen.size else context.batch
        memory_settings = chosen if chosen.size else MemorySettings()
        watch = WATCHED if chosen.size else 0
        self.memory = make_memory(settings, context.dim, rows, settings=memory_settings, watch=watch)
        self.waits = chosen.warmup_steps == "auto" and bool(chosen.size)
        wait = 0 if not chosen.size else context.steps // 2 if self.waits else int(chosen.warmup_steps)
        self.start_step = nn.Buffer(torch.tensor(wait + 1))
        self.batch_only = make_memory(settings, context.dim, context.batch) if wait else None
        head = {id(p) for part in (context.model.head, context.model.norm) for p in part.parameters()}
        frozen = not any(p.requires_grad for p in context.model.parameters() if id(p) not in head)
        self.checks_correction = frozen and self.memory.drift is not None
        self.memory.corrects = not self.checks_correction  # until drift has been measured
        self._noise, self._announced = 0.0, False

    def needs_drift(self) -> bool:
        return self.context.step % CHECK_EVERY == 0 and (self._waiting or self.checks_correction)

    @property
    def _waiting(self) -> bool:
        return self.waits and FIRST_CHECK <= self.context.step < int(self.start_step) - 1

    def on_drift(self, distance: float) -> None:
        """Start the memory once rows would age little; with a frozen backbone, correct rows only if they age."""
        mean_age, step = self.memory.memory_size / (2 * self.context.batch), self.context.step
        moved = distance * mean_age
        age = f"a step moves embeddings by {distance:.2g}, {moved:.2g} over the mean age of {mean_age:.0f} steps"
        if self._waiting and moved < MAX_PATH:
            self.start_step.fill_(step + 1)
            say(f"The memory is used from step {step + 1:,} on: {age}.")
        if self.checks_correction:
            corrects = moved >= self._noise
            if corrects != self.memory.corrects or not self._announced:
                self._announced = True
                what = "are corrected" if corrects else "stay as they are: the backbone is frozen"
                say(f"Stored embeddings {what}; {age}, the noise of a batch's mean {self._noise:.2g}.")
            self.memory.corrects = corrects

    def before_step(self) -> None:
        """Fill the memory with random training images after the warm-up, if requested."""
        chosen, context = self.settings.memory, self.context
        if chosen.fill and chosen.size and context.step == int(self.start_step):
            known = torch.nonzero(context.labels >= 0)[:, 0]
            order = torch.randperm(len(known), generator=context.generator("fill"))[: self.memory.memory_size]
            ids = known[order.to(known.device)]
            self.memory.reset_queue()
            self.memory.fill(context.encode(ids.cpu().numpy()), context.labels[ids], ids)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        z, early = embeddings["z"], self.context.step < int(self.start_step)
        if self.checks_correction and self.context.step % CHECK_EVERY == 0:
            self._noise = (z.shape[1] * sampling_noise(z, batch.labels)[0]) ** 0.5
        memory = self.batch_only if early and self.batch_only is not None else self.memory
        value: Tensor = memory(z, batch.labels, ids=batch.ids)
        if early:
            return value
        self.context.log("memory/rows", self.memory.count)
        if self.memory.settings.drift in ("axbn", "ema", "shrink"):
            report = self.memory.drift_report()
            for name in ("gain", "window", "r", "q") if report.get("auto") else ("gain", "window"):
                self.context.log(f"memory/{name}", report[name])
        return value

    def memory_rows(self, count: int) -> WatchedRows | None:
        watched = WatchedRows(*(part[:count] for part in self.memory.watched_rows()))
        return watched if len(watched.ids) else None


class XBN(XBM):
    """XBM with stored embeddings matched to the moments of the batch.

    References:
        Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning", eq. 6.

    Example:
        >>> la.train(data="photos", method="xbn", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "xbn"
    Settings = XBNSettings


class AXBN(XBM):
    """XBM with stored embeddings matched to filtered moments of the batches.

    References:
        Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning", eq. 18 to 22 and algorithm 1.

    Example:
        >>> la.train(data="photos", method="axbn", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "axbn"
    Settings = AXBNSettings


def make_memory(method: XBMSettings, dim: int, rows: int, **options: Any) -> CrossBatchMemory:
    """Create a memory with the loss and miner of the settings; it is given joint batches and gathers nothing."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner

    chosen, miner = method.miner, None
    if chosen.kind == "pair_margin":
        distance = LpDistance() if chosen.distance == "euclidean" else CosineSimilarity()
        miner = PairMarginMiner(chosen.pos_margin, chosen.neg_margin, distance=distance)
    return CrossBatchMemory(SupConLoss(method.temperature), dim, rows, miner, gather=False, **options)
