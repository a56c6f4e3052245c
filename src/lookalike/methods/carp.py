"""CARP: views of an image are assigned to the same prototype, within random blocks of prototypes.

The loss is in :mod:`lookalike.losses.carp`; the loop passes it the joint batch, so there is one partition and one mean
assignment per step, whatever the processes and micro-batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from lookalike.core import distributed, progress
from lookalike.core.errors import LookalikeError
from lookalike.losses.carp import CARPOptions, CARPOutput, check_blocks, draw_partition, fused_carp
from lookalike.methods._utils import PrototypeHead, cosine_momentum, update_teacher
from lookalike.methods.base import Batch, Context
from lookalike.methods.collapse import HEALTHY, CollapseMonitor, RunSize, effective_rank, feature_spread
from lookalike.methods.multi_crop import GLOBAL_VIEWS, CropMethod, TeacherSettings, images_first
from lookalike.models.embedder import Embedder
from lookalike.models.prototypes import fold_projection

RANK_EVERY = 10
MIN_BLOCK, MAX_BLOCK, MAX_PROTOTYPES = 16, 512, 65_536


class CARPSettings(TeacherSettings, CARPOptions):
    """Settings of CARP."""

    prototypes: PositiveInt | None = None
    """Number of prototypes K; null: about a quarter of the images."""
    block_size: PositiveInt | None = None
    """Prototypes in a block, N_B; must divide K. null: twice the batch, at most 512."""
    projection_dim: PositiveInt = 256
    """Dimension of projections and prototypes."""
    teacher: Literal["ema", "previous", "stopgrad", "siamese"] = "ema"
    """Teacher: a momentum copy, the network one step ago, or the network itself (without or with gradient)."""
    momentum_schedule: Literal["cosine", "constant"] = "cosine"
    """Whether the momentum rises to 1 over the run or stays constant."""
    share_prototypes: bool = False
    """Student and teacher share their prototypes; otherwise the teacher has a momentum copy."""


class CARP(CropMethod):
    """Self-supervised clustering of any folder of images; its prototypes are stored with the model.

    References:
        Silva and Ramírez Rivera, "CARP: Learning Consistent Assignment of Views over Random Partitions", NeurIPS 2023.

    Example:
        >>> la.pretrain(data="photos", method="carp", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "carp"
    head_modules = ("prototype_head",)
    Settings = CARPSettings
    # A pretrained backbone must not be destroyed: it waits for the new layers and is then trained slowly.
    default_overrides: ClassVar = {
        "optimizer": {"kind": "adamw", "lr": 3e-5, "head_lr": 1e-3, "weight_decay": 1e-4},
        "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.1, "freeze_backbone_steps": 50},
    }
    # The paper has 0.6 for a batch of 1,024, which is 0.0375 for 64.
    from_scratch_overrides: ClassVar = {
        "optimizer": {"kind": "lars", "lr": 0.0375, "head_lr": None, "weight_decay": 1e-6},
        "schedule": {"kind": "cosine", "warmup_steps": 0, "min_lr_ratio": 0.1, "freeze_backbone_steps": 0},
    }
    settings: CARPSettings

    def __init__(self, settings: CARPSettings, context: Context) -> None:
        super().__init__(settings, context)
        chosen = choose_blocks(len(context.labels), context.batch, settings.prototypes, settings.block_size)
        self.num_prototypes, self.block_size = chosen.prototypes, chosen.block_size
        progress.say(f"CARP: {chosen}.")
        sizes = (context.model.feature_dim, settings.hidden_dim, settings.projection_dim, self.num_prototypes)
        self.prototype_head = PrototypeHead(*sizes, context.generator("assigner"))
        self.seed = nn.Buffer(torch.tensor(context.seed))
        run_size = RunSize(self.num_prototypes, self.block_size, context.batch, context.steps, settings.teacher)
        self.monitor = CollapseMonitor(run_size)
        self.last_state: int = HEALTHY
        self.has_teacher_copy = settings.teacher in ("ema", "previous")
        if self.has_teacher_copy:
            self.teacher = copy.deepcopy(context.model).requires_grad_(False)
            self.teacher_head = copy.deepcopy(self.prototype_head).requires_grad_(False)

    @classmethod
    def describe_plan(cls, own: Mapping[str, Any], images: int, batch: int) -> dict[str, str]:
        return {"prototypes": str(choose_blocks(images, batch, own["prototypes"], own["block_size"]))}

    # ---- the networks ----------------------------------------------------------------------------

    def teacher_models(self) -> list[Embedder]:
        return [self.teacher] if self.has_teacher_copy else []

    def export_model(self) -> Embedder:
        return self.teacher if self.settings.teacher == "ema" else self.context.model

    def extra_models(self) -> dict[str, Embedder]:
        return {"student": self.context.model} if self.settings.teacher == "ema" else {}

    def export_tensors(self) -> dict[str, Tensor]:
        head = self.teacher_head if self.settings.teacher == "ema" else self.prototype_head
        prototypes = self.prototype_head.prototypes if self.settings.share_prototypes else head.prototypes
        return fold_projection(head.projection, prototypes)

    def before_update(self) -> None:
        """Update the teacher with the parameters that this step's gradient was computed with, as the authors do."""
        if self.has_teacher_copy:
            teacher, student = (self.teacher, self.teacher_head), (self.context.model, self.prototype_head)
            update_teacher(teacher, student, self.momentum)

    @property
    def momentum(self) -> float:
        """Momentum of the teacher at this step."""
        chosen, context = self.settings, self.context
        if chosen.teacher == "previous":
            return 0.0
        if chosen.momentum_schedule == "constant":
            return chosen.momentum
        return cosine_momentum(chosen.momentum, context.step, context.steps)

    # ---- the step --------------------------------------------------------------------------------

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        views = len(batch.views)
        features = self.crops(batch)
        student = self.prototype_head.projection(features)
        if self.has_teacher_copy:
            with torch.no_grad():
                teacher = self.teacher_head.projection(self.crops(batch, self.teacher, GLOBAL_VIEWS))
        else:
            # The same network on the same crops: its outputs are already known.
            teacher = student[: GLOBAL_VIEWS * len(batch)]
            teacher = teacher if self.settings.teacher == "siamese" else teacher.detach()
        return {
            "student": images_first(student, views),
            "teacher": images_first(teacher, GLOBAL_VIEWS),
            "features": features[: len(batch)].detach(),
        }

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        student, teacher = (embeddings[name].transpose(0, 1) for name in ("student", "teacher"))
        prototypes = self.prototype_head.prototypes
        if not self.has_teacher_copy or self.settings.share_prototypes:
            teacher_prototypes = prototypes if self.settings.teacher == "siamese" else prototypes.detach()
        else:
            teacher_prototypes = self.teacher_head.prototypes
        inputs = student, teacher, prototypes, teacher_prototypes, self.partition().to(student.device), self.block_size
        output = fused_carp(*inputs, options=self.settings, gather=False, diagnostics=True)
        self._monitor_collapse(output, embeddings["features"])
        return output.loss

    def partition(self) -> Tensor:
        """Return the partition of this step; it depends on seed and step only, and is the same on every process."""
        drawn = draw_partition(self.settings.partition, self.num_prototypes, int(self.seed), self.context.step)
        shared = distributed.broadcast(drawn.to(self.context.device)).cpu()
        assert torch.equal(drawn, shared), "processes have drawn different partitions"
        return shared

    # ---- monitoring ------------------------------------------------------------------------------

    def _monitor_collapse(self, output: CARPOutput, features: Tensor) -> None:
        context, diagnostics = self.context, output.diagnostics
        assert diagnostics is not None
        consistency, balance = output.consistency.item(), output.balance.item()
        if self.settings.pair_reduction == "sum":
            consistency /= GLOBAL_VIEWS * (GLOBAL_VIEWS + self.settings.local_crops - 1)  # the monitor expects the mean
        readings = self.monitor.update(context.step, consistency, balance, diagnostics)
        context.log("consistency", output.consistency)
        context.log("balance", output.balance)
        context.log("momentum", self.momentum if self.has_teacher_copy else 0.0)
        for name, value in readings.items():
            context.log(f"guard/{name}", value)
        context.log("guard/spread", feature_spread(features))
        if context.step % RANK_EVERY == 0:
            context.log("guard/rank", effective_rank(features))
        state = int(readings["state"])
        if state not in (HEALTHY, self.last_state):
            progress.warn(self.monitor.message(state, readings["clusters"], consistency, context.step))
        self.last_state = state


class Blocks(NamedTuple):
    """Number of prototypes (K), block size (N_B), and the reason for them."""

    prototypes: int
    block_size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.prototypes:,} prototypes in blocks of {self.block_size:,} ({self.reason})"


def choose_blocks(images: int, batch: int, prototypes: int | None = None, block_size: int | None = None) -> Blocks:
    """Choose K and N_B from the number of images and the batch size, unless they are given.

    N_B is the largest power of two up to twice the batch, within 16 … 512; K is a power of two near a quarter of the
    images, at most 65,536 and at least four blocks, for which the block shrinks first. The paper has N_B = 512 for a
    batch of 256 and K = 65,536 for 1.3 million images.

    Example:
        >>> choose_blocks(images=10_000, batch=64)[:2]
        (2048, 128)
    """
    if prototypes is not None and block_size is not None:
        check_blocks(prototypes, block_size)
        return Blocks(prototypes, block_size, "as requested")
    largest = min(max(_power_of_two_below(2 * batch), MIN_BLOCK), MAX_BLOCK)
    if prototypes is not None:
        check_blocks(prototypes, 2)
        size = _largest_divisor(prototypes, largest)
        return Blocks(prototypes, size, f"for a batch of {batch:,}")
    target = min(2 ** round(math.log2(max(images / 4, 1))), MAX_PROTOTYPES)
    if block_size is None:
        block_size = max(min(largest, target // 4), MIN_BLOCK)
        if block_size > images // 2:  # very few images
            block_size = max(_power_of_two_below(images // 2), 2)
    count = max(target - target % block_size, 4 * block_size)
    if count > images:
        count = max(images - images % block_size, block_size)
    check_blocks(count, block_size)
    return Blocks(count, block_size, f"for {images:,} images and a batch of {batch:,}")


def _power_of_two_below(count: int) -> int:
    """Largest power of two that is at most `count`."""
    return 1 << (max(count, 1).bit_length() - 1)


def _largest_divisor(prototypes: int, limit: int) -> int:
    """Largest block size up to `limit` that divides the prototypes, a power of two if possible."""
    divisors = [size for size in range(2, min(limit, prototypes) + 1) if prototypes % size == 0]
    if not divisors:
        raise LookalikeError(f"{prototypes} prototypes cannot be divided into blocks; use a number with divisors.")
    powers = [size for size in divisors if size >= MIN_BLOCK and size.bit_count() == 1]
    return max(powers or divisors)
