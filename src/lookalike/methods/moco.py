"""MoCo: two views of an image are matched among the keys of earlier images; with XBN the keys are corrected.

The queue may be a memory that is matched to the new keys: appendix B of Ajanthan et al. (XBN).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lookalike.core.settings import Settings
from lookalike.memory import CrossBatchMemory
from lookalike.memory.xbn import DriftSettings
from lookalike.methods._utils import linear, update_teacher
from lookalike.methods.base import Batch, Context, LearningRates, Method


class QueueSettings(DriftSettings):
    """Settings of the queue of keys."""

    size: PositiveInt = 4096
    """Number of keys in the queue."""


class MoCoSettings(Settings):
    """Settings of MoCo."""

    temperature: PositiveFloat = 0.1
    """Temperature τ of NT-Xent."""
    projection_dim: PositiveInt = 128
    """Dimension of queries and keys; the projection is dropped after training."""
    momentum: float = Field(default=0.99, ge=0.0, le=1.0)
    """Momentum of the key encoder."""
    normalize: bool = True
    """Normalize keys before they are stored, so that moments are those of the vectors that are compared."""
    memory: QueueSettings = Field(default_factory=QueueSettings)
    """The queue; `memory.NAME` is short for `method.memory.NAME`."""


class MoCo(Method):
    """Momentum contrast: keys come from a momentum copy of the network; two views of an image are a positive pair.

    References:
        He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020, eq. 1 and 2.

    Example:
        >>> la.pretrain(data="photos", method="moco", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "moco"
    command = "pretrain"
    needs_labels = False
    Settings = MoCoSettings
    default_overrides: ClassVar = {
        "optimizer": {"kind": "sgd", "lr": 3e-3, "head_lr": None, "loss_lr": None, "weight_decay": 1e-4},
        "schedule": {"min_lr_ratio": 0.0, "freeze_backbone_steps": 0},
    }
    from_scratch_overrides: ClassVar = {"optimizer": {"lr": 0.03, "weight_decay": 5e-4}}
    knn_temperature = 0.1  # as in the notebook used by the AXBN paper
    settings: MoCoSettings

    def __init__(self, settings: MoCoSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.projection = linear(context.model.feature_dim, settings.projection_dim, context.generator("projection"))
        self.key_model = copy.deepcopy(context.model).requires_grad_(False)
        self.key_projection = copy.deepcopy(self.projection).requires_grad_(False)
        from pytorch_metric_learning.losses import SupConLoss

        chosen = settings.memory
        # With one positive per query SupCon is NT-Xent, and has the faster kernel.
        loss = SupConLoss(settings.temperature)
        self.memory = CrossBatchMemory(loss, settings.projection_dim, chosen.size, gather=False, settings=chosen)

    def teacher_models(self) -> list[Any]:
        return [self.key_model]

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        return 2

    def views(self, default: Any) -> Sequence[Any]:
        return [default] * self.views_per_image({})

    def param_groups(self, lrs: LearningRates) -> list[dict[str, Any]]:
        model = self.context.model
        return [{"name": "network", "params": [*model.parameters(), *self.parameters()], "lr": lrs.backbone}]

    def before_step(self) -> None:
        """Update the key encoder before the keys are computed; only its parameters, as in the paper (eq. 2)."""
        teacher, student = (self.key_model, self.key_projection), (self.context.model, self.projection)
        update_teacher(teacher, student, self.settings.momentum)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        query = self.projection(self.context.features(batch, 0))
        with torch.no_grad():
            # Shuffled, so that batch-norm over a part of the batch cannot leak the pair (section 3.3).
            order = torch.randperm(len(batch), generator=self.context.generator("keys")).to(query.device)
            shuffled = Batch((batch.views[1][order],), batch.layer, batch.labels, batch.ids)
            key = self.key_projection(self.context.features(shuffled, 0, self.key_model))[order.argsort()]
        if self.settings.normalize:
            query, key = (nn.functional.normalize(rows.float(), dim=1) for rows in (query, key))
        return {"query": query, "key": key}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        query, key = embeddings["query"], embeddings["key"]
        count = len(query)
        # Every image of every step is its own class: its key is the positive, all other keys are negatives.
        labels = (self.context.step - 1) * count + torch.arange(count, device=query.device)
        enqueued = torch.arange(2 * count, device=query.device) >= count
        return self.memory(torch.cat([query, key]), torch.cat([labels, labels]), enqueue_mask=enqueued)
