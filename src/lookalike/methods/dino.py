"""DINO: the student's distribution over many outputs matches that of a momentum teacher, centered and sharpened.

The loss is lightly's; the head is CARP's with normalized projections.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lookalike.methods._utils import PrototypeHead, cosine_momentum, import_lightly, update_teacher
from lookalike.methods.base import Batch, Context
from lookalike.methods.multi_crop import GLOBAL_VIEWS, CropMethod, TeacherSettings, images_first
from lookalike.models.embedder import Embedder


class DINOSettings(TeacherSettings):
    """Settings of DINO."""

    output_dim: PositiveInt = 4096
    """Dimension of the output distribution; the paper has 65,536."""
    bottleneck_dim: PositiveInt = 256
    """Dimension before the last layer."""
    student_temperature: PositiveFloat = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: PositiveFloat = 0.04
    """Temperature of the teacher's softmax; lower, which sharpens it."""
    momentum: float = Field(default=0.996, ge=0.0, le=1.0)
    """Initial momentum η of the teacher; it rises to 1 over the run along a cosine."""


class DINO(CropMethod):
    """DINO, a self-supervised baseline with CARP's teacher and head, balanced by centering instead of partitions.

    References:
        Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021.

    Example:
        >>> la.pretrain(data="photos", method="dino", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "dino"
    head_modules = ("head",)
    Settings = DINOSettings
    default_overrides: ClassVar = {
        "optimizer": {"kind": "adamw", "lr": 3e-5, "head_lr": 5e-4, "weight_decay": 1e-4},
        "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.0, "freeze_backbone_steps": 50},
    }
    from_scratch_overrides: ClassVar = {
        "optimizer": {"lr": 5e-4, "head_lr": None, "weight_decay": 0.04},
        "schedule": {"warmup_steps": 100, "freeze_backbone_steps": 0},
    }
    settings: DINOSettings

    def __init__(self, settings: DINOSettings, context: Context) -> None:
        super().__init__(settings, context)
        sizes = (context.model.feature_dim, settings.hidden_dim, settings.bottleneck_dim, settings.output_dim)
        self.head = PrototypeHead(*sizes, context.generator("assigner"))
        self.teacher = copy.deepcopy(context.model).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.criterion = import_lightly("loss", "DINOLoss", self.name)(
            settings.output_dim, teacher_temp=settings.teacher_temperature, student_temp=settings.student_temperature
        )

    def teacher_models(self) -> list[Embedder]:
        return [self.teacher]

    def export_model(self) -> Embedder:
        return self.teacher

    def extra_models(self) -> dict[str, Embedder]:
        return {"student": self.context.model}

    def before_update(self) -> None:
        momentum = cosine_momentum(self.settings.momentum, self.context.step, self.context.steps)
        update_teacher((self.teacher, self.teacher_head), (self.context.model, self.head), momentum)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        student = images_first(self._outputs(self.head, self.crops(batch)), len(batch.views))
        with torch.no_grad():
            teacher = self._outputs(self.teacher_head, self.crops(batch, self.teacher, GLOBAL_VIEWS))
        return {"student": student, "teacher": images_first(teacher, GLOBAL_VIEWS)}

    @staticmethod
    def _outputs(head: PrototypeHead, features: Tensor) -> Tensor:
        normalize = nn.functional.normalize
        return normalize(head.projection(features), dim=1) @ normalize(head.prototypes, dim=1).t()

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        teacher, student = (list(embeddings[name].unbind(1)) for name in ("teacher", "student"))
        return self.criterion(teacher, student)
