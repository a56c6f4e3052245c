"""CARP: an image's views choose the same prototype, in blocks drawn anew at every step.

Silva and Ramírez Rivera, "CARP: Consistent Assignment of Views over Random Partitions", NeurIPS 2023. The loss is
`losses/carp.py`; the loop hands it the joint batch, so there is one partition and one p̄ a step whatever the processes
and micro-batches.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from lookalike.core import distributed
from lookalike.core.progress import say, warn
from lookalike.losses.carp import CARPOptions, CARPOutput, draw_partition, fused_carp
from lookalike.methods.assigner import Assigner
from lookalike.methods.base import Batch, Context, LearningRates
from lookalike.methods.choosing import choose_blocks
from lookalike.methods.collapse import HEALTHY, Guard, Sizes, effective_rank, spread
from lookalike.methods.crops import GLOBAL, CropMethod, TaughtSettings, follow, images_first, rising
from lookalike.models.embedder import Embedder
from lookalike.models.prototypes import fold_projection

RANK_EVERY = 10


class CARPSettings(TaughtSettings):
    prototypes: PositiveInt | None = None
    """K; null: about a quarter of the images."""
    block: PositiveInt | None = None
    """N_B, prototypes in a block; null: twice the batch, at most 512. Must divide K."""
    dim: PositiveInt = 256
    """Numbers that images and prototypes are compared by."""
    pairs: Literal["mean", "sum"] = "mean"
    """Terms of view pairs: their mean (authors' code), or their sum (equation 3), which halves the balance's weight."""
    mean_over: Literal["both", "student"] = "both"
    """Whose assignments should be balanced: student and teacher together, or the student's alone."""
    weight: NonNegativeFloat = 1.0
    """λ of the balance; with one block (N_B = K) it is λ_e of equation 2."""
    partition: Literal["random", "fixed", "constant"] = "random"
    """Blocks drawn anew at every step, drawn once, or the prototypes in their order."""
    teacher: Literal["ema", "previous", "stopgrad", "siamese"] = "ema"
    """Who gives the targets: a slow copy, the network one step ago, the network itself without gradient, or with."""
    momentum_schedule: Literal["cosine", "constant"] = "cosine"
    """η rises to 1 over the run, or stays."""
    share_prototypes: bool = False
    """Student and teacher compare with the same prototypes; otherwise the teacher's follow slowly too."""


class CARP(CropMethod):
    """Any folder of unlabeled images; the prototypes it learns are kept and browsed by."""

    name = "carp"
    Settings = CARPSettings
    # A trained backbone must not be wrecked: it waits for the new layers and then moves slowly.
    default_overrides: ClassVar = {
        "optimizer": {"kind": "adamw", "lr": 3e-5, "head_lr": 1e-3, "weight_decay": 1e-4},
        "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.1, "freeze_backbone_steps": 50},
    }
    # The paper's: 0.6 for a batch of 1,024, which is 0.0375 for 64.
    from_scratch_overrides: ClassVar = {
        "optimizer": {"kind": "lars", "lr": 0.0375, "head_lr": None, "weight_decay": 1e-6},
        "schedule": {"kind": "cosine", "warmup_steps": 0, "min_lr_ratio": 0.1, "freeze_backbone_steps": 0},
    }
    settings: CARPSettings
    seed: Tensor

    def __init__(self, settings: CARPSettings, context: Context) -> None:
        super().__init__(settings, context)
        chosen = choose_blocks(len(context.labels), context.batch, settings.prototypes, settings.block)
        self.count, self.block = chosen.prototypes, chosen.block
        if distributed.is_main():
            say(f"CARP: {chosen}.")
        wide = context.model.feature_dim
        generator = context.generator("assigner")
        self.assigner = Assigner(wide, settings.hidden, settings.dim, self.count, generator)
        self.register_buffer("seed", torch.tensor(context.seed))
        self.options = CARPOptions(settings.pairs, settings.mean_over, settings.weight)
        self.guard = Guard(Sizes(self.count, self.block, context.batch, context.steps, settings.teacher))
        self.warned: int = HEALTHY
        self.follows = settings.teacher in ("ema", "previous")
        if self.follows:
            self.teacher = copy.deepcopy(context.model).requires_grad_(False)
            self.teacher_assigner = copy.deepcopy(self.assigner).requires_grad_(False)

    @classmethod
    def describe_plan(cls, own: Mapping[str, Any], images: int, batch: int) -> dict[str, str]:
        return {"prototypes": str(choose_blocks(images, batch, own["prototypes"], own["block"]))}

    # ---- the networks ----------------------------------------------------------------------------

    def teacher_models(self) -> list[Embedder]:
        return [self.teacher] if self.follows else []

    def export_model(self) -> Embedder:
        return self.teacher if self.settings.teacher == "ema" else self.context.model

    def extra_models(self) -> dict[str, Embedder]:
        return {"student": self.context.model} if self.settings.teacher == "ema" else {}

    def export_tensors(self) -> dict[str, Tensor]:
        own = self.teacher_assigner if self.settings.teacher == "ema" else self.assigner
        prototypes = self.assigner.prototypes if self.settings.share_prototypes else own.prototypes
        return fold_projection(own.projection, prototypes)

    def param_groups(self, lrs: LearningRates, head_modules: Any = ()) -> list[dict[str, Any]]:
        return super().param_groups(lrs, [*head_modules, self.assigner])

    def before_update(self) -> None:
        """ξ takes in the θ that this step's gradient was computed with (the paper's formula and the authors' order)."""
        if self.follows:
            following, moving = (self.teacher, self.teacher_assigner), (self.context.model, self.assigner)
            follow(following, moving, self.momentum)

    @property
    def momentum(self) -> float:
        chosen, context = self.settings, self.context
        if chosen.teacher == "previous":
            return 0.0
        if chosen.momentum_schedule == "constant":
            return chosen.momentum
        return rising(chosen.momentum, context.step, context.steps)

    # ---- the step --------------------------------------------------------------------------------

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        views = len(batch.views)
        features = self.crops(batch)
        student = self.assigner.projection(features)
        if self.follows:
            with torch.no_grad():
                teacher = self.teacher_assigner.projection(self.crops(batch, self.teacher, GLOBAL))
        else:
            # The same network on the same crops: its outputs are there already.
            teacher = student[: GLOBAL * len(batch)]
            teacher = teacher if self.settings.teacher == "siamese" else teacher.detach()
        return {
            "student": images_first(student, views),
            "teacher": images_first(teacher, GLOBAL),
            "features": features[: len(batch)].detach(),
        }

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        student, teacher = (embeddings[name].transpose(0, 1) for name in ("student", "teacher"))
        own = self.assigner.prototypes
        if not self.follows or self.settings.share_prototypes:
            others = own if self.settings.teacher == "siamese" else own.detach()
        else:
            others = self.teacher_assigner.prototypes
        order = self.partition().to(student.device)
        found = fused_carp(
            student, teacher, own, others, order, self.block, options=self.options, gather=False, diagnostics=True
        )
        self._watch(found, embeddings["features"])
        return found.loss

    def partition(self) -> Tensor:
        """That of this step: of seed and step alone, so it is known to every process and after a resume."""
        drawn = draw_partition(self.settings.partition, self.count, int(self.seed), self.context.step)
        shared = distributed.broadcast(drawn.to(self.context.device)).cpu()
        assert torch.equal(drawn, shared), "processes have drawn different partitions"
        return shared

    # ---- the guard -------------------------------------------------------------------------------

    def _watch(self, found: CARPOutput, features: Tensor) -> None:
        context, told = self.context, found.diagnostics
        assert told is not None
        consistency, balance = found.consistency.item(), found.balance.item()
        if self.settings.pairs == "sum":
            consistency /= GLOBAL * (GLOBAL + self.settings.local - 1)  # back to the mean that the extremes are of
        values = (consistency, balance, told.information.item(), told.max_balance.item(), told.max_fraction.item())
        readings = self.guard.read(context.step, *values, told.assignments)
        context.log("consistency", found.consistency)
        context.log("balance", found.balance)
        context.log("momentum", self.momentum if self.follows else 0.0)
        for name, value in readings.items():
            context.log(f"guard/{name}", value)
        context.log("guard/spread", spread(features))
        if context.step % RANK_EVERY == 0:
            context.log("guard/rank", effective_rank(features))
        state = int(readings["state"])
        if state not in (HEALTHY, self.warned) and distributed.is_main():
            warn(self.guard.sentence(state, readings["clusters"], consistency, context.step))
        self.warned = state
