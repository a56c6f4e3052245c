"""XBM and its kin: the batch is compared with a memory of earlier embeddings, kept up to date or not.

Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; Ajanthan et al., "Adaptive Cross Batch
Normalization for Metric Learning" (XBN, AXBN). The loop hands every process the joint batch, so the memories of all
processes are the same to the bit.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from lookalike.core.settings import Settings
from lookalike.memory import CrossBatchMemory
from lookalike.methods.base import Batch, Context, MemoryRows, Method
from lookalike.methods.memory_settings import MemorySettings

WATCHED = 64  # rows whose first form is kept for the drift meter


class MinerSettings(Settings):
    kind: Literal["pair_margin", "none"] = "pair_margin"
    """Which pairs count: hard enough ones, or all."""
    positive: PositiveFloat = 0.2
    """Positives count beyond this distance (or below this cosine)."""
    negative: PositiveFloat = 0.8
    """Negatives count within this distance (or above this cosine)."""
    distance: Literal["euclidean", "cosine"] = "euclidean"
    """What the two are measured in; Euclidean, of unit vectors, is the library's default and the paper's."""


class XBMSettings(Settings):
    temperature: PositiveFloat = 0.1
    """τ of SupCon."""
    miner: MinerSettings = Field(default_factory=MinerSettings)
    """Which pairs count."""
    memory: MemorySettings = Field(default_factory=MemorySettings)
    """What is remembered; `memory.NAME` is short for `method.memory.NAME`."""


class XBM(Method):
    """Many classes with few images each: far more negatives than a batch holds, at the price of a small product."""

    name = "xbm"
    Settings = XBMSettings
    default_overrides: ClassVar = {"optimizer": {"lr": 1e-4}, "log": {"drift_every_n_steps": 20}}
    settings: XBMSettings

    def __init__(self, settings: XBMSettings, context: Context) -> None:
        super().__init__(settings, context)
        chosen = settings.memory
        # Without a memory, or before it is used, nothing but the batch itself is remembered.
        rows = chosen.rows(len(context.labels), context.batch) if chosen.size else context.batch
        rule: dict[str, Any] = {}
        if chosen.size:
            rule = {**chosen.rule(), "batch_loss": chosen.batch_loss, "memory_weight": chosen.weight, "watch": WATCHED}
        self.memory = make_memory(settings, context.dim, rows, **rule)
        self.alone = make_memory(settings, context.dim, context.batch) if chosen.warmup else None

    def before_step(self) -> None:
        """After the warm-up the memory may start full: random training images, embedded as the model is now."""
        chosen, context = self.settings.memory, self.context
        if chosen.fill and chosen.size and context.step == chosen.warmup + 1:
            known = torch.nonzero(context.labels >= 0)[:, 0]
            order = torch.randperm(len(known), generator=context.generator("fill"))[: self.memory.memory_size]
            ids = known[order.to(known.device)]
            self.memory.reset_queue()
            self.memory.fill(context.encode(ids.cpu().numpy()), context.labels[ids], ids)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        early = self.alone is not None and self.context.step <= self.settings.memory.warmup
        memory = self.alone if early and self.alone is not None else self.memory
        value: Tensor = memory(embeddings["z"], batch.labels, ids=batch.ids)
        if not early:
            self._log()
        return value

    def _log(self) -> None:
        """How full the memory is, and what its filter did: the report's line is made from this."""
        self.context.log("memory/rows", self.memory.count)
        if self.settings.memory.drift in ("axbn", "ema") and self.settings.memory.size:
            told = self.memory.drift_report()
            for name in ("gain", "window"):
                self.context.log(f"memory/{name}", told[name])
            if told.get("auto"):
                self.context.log("memory/r", told["r"])
                self.context.log("memory/q", told["q"])

    def memory_rows(self, count: int) -> MemoryRows | None:
        found = self.memory.watched_rows()
        if not len(found.ids):
            return None
        return MemoryRows(found.ids[:count], found.adapted[:count], found.enqueued[:count])


def make_memory(settings: XBMSettings, dim: int, rows: int, **rule: Any) -> CrossBatchMemory:
    """A memory with the settings' loss and miner. It is given the joint batch, so it gathers nothing itself."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner

    chosen, miner = settings.miner, None
    if chosen.kind == "pair_margin":
        distance = LpDistance() if chosen.distance == "euclidean" else CosineSimilarity()
        miner = PairMarginMiner(chosen.positive, chosen.negative, distance=distance)
    return CrossBatchMemory(SupConLoss(settings.temperature), dim, rows, miner, gather=False, **rule)
