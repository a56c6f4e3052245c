"""`Method`: which views, which loss, which memory, and what is logged. The loop knows nothing of it.

`embed` and `loss` are apart on purpose. `embed` sees the images of one process's micro-batch;
`loss` sees the embeddings of the whole joint batch, gathered by the loop from all micro-batches and all
processes in the order of the sampler. So every method has the true joint loss under accumulation and
under several processes, and never has to know that there are any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lookalike.core import distributed, seeds
from lookalike.core.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from lookalike.core.run import Run
    from lookalike.data.table import Table
    from lookalike.models.embedder import Embedder

PIXELS = "pixels"


@dataclass(frozen=True)
class Batch:
    """What a step works on, images first in every tensor."""

    views: tuple[Tensor, ...]
    """One a view: uint8 (n, S, S, 3) for layer `pixels`, else the cached outputs of `layer`. Empty in `loss`."""
    layer: str
    labels: Tensor
    """int64 (n,), 0 … classes−1; −1 where there is none."""
    ids: Tensor
    """int64 (n,): row numbers in the training table. Equal ids are the same image."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice) -> Batch:
        return replace(self, views=tuple(v[rows] for v in self.views), labels=self.labels[rows], ids=self.ids[rows])


@dataclass
class Context:
    """What a method may ask the loop for. Step, epoch and logs change from step to step."""

    model: Embedder
    classes: int
    seed: int
    device: torch.device
    steps: int
    batch: int
    """Images in a joint batch."""
    table: Table
    """The training images; `Batch.ids` are its row numbers."""
    labels: Tensor
    """int64, a label for every row of `table`."""
    encode: Callable[[np.ndarray | Table | None], Tensor]
    """Unit embeddings, without gradient, in evaluation mode, of rows of `table` (None: all) or of another
    table; shared out over the processes and the same on each."""
    encode_backward: Callable[[np.ndarray, Tensor], None]
    """Sends the gradient of the embeddings that `encode` gave for rows of `table` on to the parameters: the rows are
    embedded once more, in blocks; every process takes its share. To be called in `after_backward`."""
    step: int = 0
    epoch: int = 0
    logs: dict[str, float] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return distributed.rank()

    @property
    def dim(self) -> int:
        return self.model.dim

    def log(self, name: str, value: Tensor | float) -> None:
        """A number for the log of this step."""
        self.logs[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def generator(self, *names: object) -> torch.Generator:
        """A stream of random numbers that depends on seed, step and name only: equal on all processes, and
        nothing to save for a resume."""
        return seeds.torch_rng(self.seed, *names, self.step)

    def forward(self, batch: Batch, view: int = 0) -> Tensor:
        """Unit embeddings of one view, with gradient."""
        images = batch.views[view]
        return self.model(images) if batch.layer == PIXELS else self.model.from_layer(batch.layer, images)

    def features(self, batch: Batch, view: int = 0, model: Embedder | None = None) -> Tensor:
        """Pooled features of one view, as they are before they are brought to length one; of a teacher, if given."""
        images, model = batch.views[view], model or self.model
        return model.pooled(images) if batch.layer == PIXELS else model.pooled_from(batch.layer, images)


@dataclass(frozen=True)
class MemoryRows:
    """Rows of a memory: whose they are, as they are read now, and as they were put in."""

    ids: Tensor
    adapted: Tensor
    original: Tensor


@dataclass(frozen=True)
class LearningRates:
    """Learning lrs by what is trained."""

    backbone: float
    head: float
    loss: float


@dataclass(frozen=True)
class ReportContext:
    """What a method's own part of the report is made from, after the last step."""

    run: Run
    settings: Any
    """The method's own."""
    model: Embedder
    """With the weights of the last step, in evaluation mode."""
    state: Mapping[str, Tensor]
    """The method's `state_dict()`."""
    table: Table
    """The training images."""
    labels: np.ndarray
    """A class number for every row of it, as the method saw them."""
    names: list[str]
    """Of those classes."""
    view: Any
    """The view the settings ask for."""
    seed: int


class Method(nn.Module, ABC):
    """Base of all methods. What it owns (proxies, memories, a teacher) are parameters, buffers and submodules,
    so that `state_dict()` holds everything a resumed run needs."""

    name: ClassVar[str] = ""
    Settings: ClassVar[type[Settings]] = Settings
    default_overrides: ClassVar[Mapping[str, Any]] = {}
    """Training settings that suit this method; a recipe or the user may say otherwise."""
    command: ClassVar[str] = "train"
    """`train`, or `pretrain` for one that makes a backbone out of images without labels."""
    needs_labels: ClassVar[bool] = True
    distinct_views: ClassVar[bool] = False
    """Cached views of one image in one step are different ones, while there are enough of them."""
    has_report: ClassVar[bool] = False
    """Whether `sections` has something to show."""
    from_scratch_overrides: ClassVar[Mapping[str, Any]] = {}
    """Training settings that suit it from random weights (`pretrain --from-scratch`)."""
    knn_temperature: ClassVar[float] = 0.07
    """Of the k-NN accuracy that is followed while pretraining."""

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__()
        self.settings = settings
        self.context = context

    @classmethod
    def sampled_rows(cls, settings: Any, table: Table | None, labels: np.ndarray) -> np.ndarray | None:
        """The rows of the training table that batches are drawn from; None: all."""
        return None

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        """How many views of each image a step embeds, with these settings of the method."""
        return 1

    @classmethod
    def describe_plan(cls, own: Mapping[str, Any], images: int, batch: int) -> dict[str, str]:
        """What these settings of the method come to with so many training images, for `--dry-run`."""
        return {}

    @classmethod
    def report_sections(cls, told: ReportContext) -> dict[str, Any]:
        """Sections of the report that only this method can write, by name."""
        return {}

    def teacher_models(self) -> list[Embedder]:
        """Copies of the model that the method holds (a teacher); they are in the model's mode, layer by layer."""
        return []

    def export_model(self) -> Embedder:
        """The network that is evaluated and that the run ends with; a teacher may be better than what is trained."""
        return self.context.model

    def extra_models(self) -> dict[str, Embedder]:
        """Networks of the same shape that are evaluated and saved beside it, by name."""
        return {}

    def export_tensors(self) -> dict[str, Tensor]:
        """What else the finished model should carry (`models/prototypes.py`)."""
        return {}

    def close(self) -> None:
        """Let go of what lies outside of the process; called when the steps end, whatever ends them."""

    def views(self, default: Any) -> Sequence[Any]:
        """The views each image is seen in at every step; `default` is the one the settings ask for."""
        return [default]

    def param_groups(self, lrs: LearningRates, head_modules: Sequence[nn.Module] = ()) -> list[dict[str, Any]]:
        """What is trained and at which rate (`lr`); frozen parameters are left out by the loop.

        A method with heads of its own names them as `head_modules`.
        """
        model = self.context.model
        head = [*model.head.parameters(), *model.norm.parameters()]
        known = {id(p) for p in head}
        rest = [p for p in model.parameters() if id(p) not in known]
        own = [p for module in head_modules for p in module.parameters()]
        known = {id(p) for p in own}
        return [
            {"name": "backbone", "params": rest, "lr": lrs.backbone},
            {"name": "head", "params": [*head, *own], "lr": lrs.head},
            {"name": "loss", "params": [p for p in self.parameters() if id(p) not in known], "lr": lrs.loss},
        ]

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        """Tensors with the images first. Those that need a gradient carry it; others (a teacher's) do not."""
        return {"z": self.context.forward(batch)}

    @abstractmethod
    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """The joint loss of the joint batch, a scalar."""

    def joint_loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """What the loop calls: `loss`, with `z` behind the model's norm layer if it has one."""
        if "z" in embeddings:
            embeddings = {**embeddings, "z": self.context.model.apply_norm(embeddings["z"])}
        return self.loss(embeddings, batch)

    def memory_rows(self, count: int) -> MemoryRows | None:
        """Up to `count` rows of a memory, for the drift meter; None without one."""
        return None

    def before_step(self) -> None:
        """Before the images of a step are embedded."""

    def after_backward(self) -> None:
        """After the loss was sent back, before the gradients of all processes are summed: a further part of the
        gradient, each process its share."""

    def before_update(self) -> None:
        """When the gradient is known, before the optimizer moves anything."""

    def after_step(self) -> None:
        """After the optimizer's step: enqueue, move a teacher."""

    def on_epoch(self) -> None:
        """Before the first step of every epoch."""


class LossMethod(Method):
    """A method that is one loss on one view."""

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__(settings, context)
        self.criterion = self.make_loss()

    @abstractmethod
    def make_loss(self) -> nn.Module:
        """Called with the embeddings and the labels."""

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        value: Tensor = self.criterion(embeddings["z"], batch.labels)
        return value
