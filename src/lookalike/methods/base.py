"""The interface of training methods: views, loss, memory and logs, independent of the training loop.

`embed` and `loss` are separate on purpose. `embed` sees the images of one micro-batch of one process; `loss` sees the
embeddings of the joint batch, gathered by the loop from all micro-batches and processes in the order of the sampler. So
every method has the true joint loss under gradient accumulation and in distributed training. See
docs/design/training.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from lookalike.core.run import Run
    from lookalike.data.table import Table
    from lookalike.memory.queue import WatchedRows
    from lookalike.models.embedder import Embedder

PIXELS = "pixels"


@dataclass(frozen=True)
class Batch:
    """Input of a training step; the first dimension of every tensor is the image.

    Args:
        views: One tensor per view: uint8 (n, S, S, 3) for layer `pixels`, else cached outputs of `layer`; empty in
            `loss`.
        layer: The layer that the views are outputs of; `pixels` for images.
        labels: int64 (n,), 0 … classes−1, or −1 without a label.
        ids: int64 (n,): row numbers in the training table. Equal ids are the same image.

    Example:
        >>> features, ids = torch.zeros(4, 8), torch.arange(4)
        >>> batch = Batch((features, features), "stage2", torch.tensor([0, 0, 1, 1]), ids)
        >>> len(batch), len(batch.part(slice(2)))
        (4, 2)
    """

    views: tuple[Tensor, ...]
    layer: str
    labels: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice) -> Batch:
        """Return some rows of the batch."""
        return replace(self, views=tuple(v[rows] for v in self.views), labels=self.labels[rows], ids=self.ids[rows])


def _needs_loop(*arguments: Any) -> Any:
    raise LookalikeError(
        "This method encodes training images: give its `Context` an `encode`, or use `lookalike.train`."
    )


@dataclass
class Context:
    """What the training loop provides to a method; step, epoch and logs change from step to step.

    In a loop of your own the first four values are enough for most methods; those that look back at the training images
    (memories, databases) need `labels`, `table` and `encode` too.

    Args:
        model: The model in training.
        classes: Number of classes.
        steps: Number of steps.
        batch: Images in a joint batch.
        seed: Seed of everything that is drawn.
        device: Device of the model.
        table: The training images, a `Table`; `Batch.ids` are its row numbers.
        labels: int64, a label for every row of `table`.
        encode: Returns unit embeddings in evaluation mode, without gradient, of rows of `table` (None: all) or of
            another table. The work is divided among the processes; the result is the same on each.
        encode_backward: Propagates a gradient of embeddings that `encode` returned to the parameters: the rows are
            embedded again, in blocks, divided among the processes. To be called in `after_backward`.
        step: The current step, from 1.
        epoch: The current epoch, from 0.
        logs: Numbers that the method logged in this step.

    Example:
        >>> kind = la.methods.find("supcon")
        >>> method = kind(kind.Settings(), Context(model, classes=98, steps=100, batch=64))  # doctest: +SKIP
    """

    model: Embedder
    classes: int
    steps: int
    batch: int
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device(CPU))
    table: Any = None
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    encode: Callable[[np.ndarray | Table | None], Tensor] = _needs_loop
    encode_backward: Callable[[np.ndarray, Tensor], None] = _needs_loop
    step: int = 0
    epoch: int = 0
    logs: dict[str, float] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self.model.dim

    def log(self, name: str, value: Tensor | float) -> None:
        """Log a number for this step."""
        self.logs[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def generator(self, *names: object) -> torch.Generator:
        """Return a random generator that depends on seed, step and names only.

        It is the same on all processes, and there is nothing to save for a resume.
        """
        return seeds.torch_rng(self.seed, *names, self.step)

    def forward(self, batch: Batch, view: int = 0) -> Tensor:
        """Return the unit embeddings of one view, with gradient."""
        images = batch.views[view]
        return self.model(images) if batch.layer == PIXELS else self.model.from_layer(batch.layer, images)

    def features(self, batch: Batch, view: int = 0, model: Embedder | None = None) -> Tensor:
        """Return the pooled features of one view, not normalized; of another model (a teacher), if given."""
        images, model = batch.views[view], model or self.model
        return model.pooled(images) if batch.layer == PIXELS else model.pooled_from(batch.layer, images)


class LearningRates(NamedTuple):
    """Learning rates of the parameter groups.

    Args:
        backbone: That of the backbone.
        head: That of the head.
        loss: That of parameters of the loss.

    Example:
        >>> LearningRates(backbone=1e-4, head=1e-3, loss=1e-2).head
        0.001
    """

    backbone: float
    head: float
    loss: float


@dataclass(frozen=True)
class ReportContext:
    """Data for the sections of the report that a method writes, after the last step.

    The method's settings and `state_dict()`, the model in evaluation mode, the training images with their classes, the
    names of the classes, and the augmented view of the settings.
    """

    run: Run
    settings: Any
    model: Embedder
    state: Mapping[str, Tensor]
    table: Table
    labels: np.ndarray
    names: list[str]
    view: Any
    seed: int


class Method(nn.Module, ABC):
    """Base class of training methods.

    What a method owns (proxies, memories, a teacher) are parameters, buffers and submodules, so that `state_dict()`
    holds everything a resumed run needs. A subclass defines at least `name` and `loss`.

    Args:
        settings: An instance of the class's `Settings`.
        context: What the training loop provides.

    Example:
        >>> class Uniformity(Method):
        ...     name = "uniformity"
        ...     def loss(self, embeddings, batch):
        ...         return torch.pdist(embeddings["z"]).square().mul(-2).exp().mean().log()
    """

    name: ClassVar[str] = ""
    Settings: ClassVar[type[Settings]] = Settings
    default_overrides: ClassVar[Mapping[str, Any]] = {}
    """Training settings that suit this method; recipes and users override them."""
    from_scratch_overrides: ClassVar[Mapping[str, Any]] = {}
    """Training settings for random initial weights (`pretrain --from-scratch`)."""
    command: ClassVar[str] = "train"
    """`train`, or `pretrain` for a method that trains a backbone without labels."""
    needs_labels: ClassVar[bool] = True
    head_modules: ClassVar[tuple[str, ...]] = ()
    """Names of submodules that are trained like the model's head."""
    distinct_views: ClassVar[bool] = False
    """Draw different cached views of an image within a step, as far as there are enough."""
    has_report: ClassVar[bool] = False
    """Whether `report_sections` returns sections."""
    revision: ClassVar[int] = 1
    """Raised whenever the same settings give other results; part of the identity of stored experiments."""
    knn_temperature: ClassVar[float] = 0.07
    """Temperature of the k-NN accuracy that is logged during pretraining."""

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__()
        self.settings = settings
        self.context = context

    # ---- before training -------------------------------------------------------------------------

    @classmethod
    def sampled_rows(cls, settings: Any, table: Table | None, labels: np.ndarray) -> np.ndarray | None:
        """Return the rows of the training table that batches are drawn from; None means all."""
        return None

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        """Return the number of views of each image in a step, for the method's settings `own`."""
        return 1

    @classmethod
    def describe_plan(cls, own: Mapping[str, Any], images: int, batch: int) -> dict[str, str]:
        """Describe what the method's settings `own` amount to for so many images, for `--dry-run`."""
        return {}

    def views(self, default: Any) -> Sequence[Any]:
        """Return the views of each image in a step; `default` is the augmented view of the settings."""
        return [default]

    def param_groups(self, lrs: LearningRates) -> list[dict[str, Any]]:
        """Return the parameter groups with their learning rates; the loop leaves out frozen parameters."""
        model = self.context.model
        modules = [model.head, model.norm, *(self.get_submodule(name) for name in self.head_modules)]
        head = [p for module in modules for p in module.parameters()]
        ids = {id(p) for p in head}
        return [
            {"name": "backbone", "params": [p for p in model.parameters() if id(p) not in ids], "lr": lrs.backbone},
            {"name": "head", "params": head, "lr": lrs.head},
            {"name": "loss", "params": [p for p in self.parameters() if id(p) not in ids], "lr": lrs.loss},
        ]

    # ---- a step ----------------------------------------------------------------------------------

    def on_epoch(self) -> None:
        """Called before the first step of every epoch."""

    def before_step(self) -> None:
        """Called before the images of a step are embedded."""

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        """Return named tensors whose first dimension is the image, with or without (a teacher's) gradient."""
        return {"z": self.context.forward(batch)}

    @abstractmethod
    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """Return the scalar loss of the joint batch."""

    def joint_loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """Return `loss`, with `z` passed through the model's norm layer if it has one; called by the loop."""
        if "z" in embeddings:
            embeddings = {**embeddings, "z": self.context.model.apply_norm(embeddings["z"])}
        return self.loss(embeddings, batch)

    def after_backward(self) -> None:
        """Called after the backward pass, before gradients are summed over the processes; may add to the gradient."""

    def before_update(self) -> None:
        """Called when the gradient is known, before the optimizer step."""

    def after_step(self) -> None:
        """Called after the optimizer step."""

    def needs_drift(self) -> bool:
        """Return whether the loop should measure how far this step moves embeddings."""
        return False

    def on_drift(self, distance: float) -> None:
        """Called after a measured step with the mean distance that it moved the embeddings of the batch."""

    def close(self) -> None:
        """Release external resources; called when training ends, for whatever reason."""

    # ---- what is evaluated, saved and reported ---------------------------------------------------

    def teacher_models(self) -> list[Embedder]:
        """Return copies of the model that the method holds (teachers); they follow the model's training mode."""
        return []

    def export_model(self) -> Embedder:
        """Return the network that is evaluated and saved; a teacher may be better than the trained network."""
        return self.context.model

    def extra_models(self) -> dict[str, Embedder]:
        """Return further networks that are evaluated and saved, by name."""
        return {}

    def export_tensors(self) -> dict[str, Tensor]:
        """Return tensors that are saved with the model, such as prototypes."""
        return {}

    def memory_rows(self, count: int) -> WatchedRows | None:
        """Return up to `count` stored embeddings for measuring drift; None without a memory."""
        return None

    @classmethod
    def report_sections(cls, context: ReportContext) -> dict[str, Any]:
        """Return sections of the report that only this method can write, by name."""
        return {}
