"""Methods of adaptation for the training loop: the base class, and TENT, SHOT, MCC, AdaContrast and fine-tuning."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lookalike.adaptation.bank import Ring
from lookalike.adaptation.contrast import Columns, ContrastQueries, contrastive
from lookalike.adaptation.target_classes import TEMPERATURE
from lookalike.adaptation.task import norm_layers, upper_part
from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.losses import adaptation
from lookalike.methods._utils import update_teacher
from lookalike.methods.base import PIXELS, Batch, Context, LearningRates, Method
from lookalike.training.batchnorm import layers

if TYPE_CHECKING:
    from lookalike.adaptation.settings import AdaptSettings
    from lookalike.adaptation.task import AdaptTask
    from lookalike.models import Embedder


PSEUDO_LABELINGS = 15
"""How often SHOT computes its pseudo-labels in a run, about."""


@contextlib.contextmanager
def running_statistics(model: nn.Module) -> Iterator[None]:
    """Batch-norm layers use their running statistics inside, and leave them as they are."""
    moving = nn.ModuleList(layer for layer in layers(model) if layer.training).eval()
    try:
        yield
    finally:
        moving.train()


class AdaptMethod(Method):
    """Base class of the methods of `adapt`.

    `embed` returns the rows of each kind of view before the model's norm layer; `loss` sees them for the joint batch
    and calls `outputs` for features and logits. The network is on its device; what is made of its outputs (banks,
    pseudo-labels, losses) is little work on the CPU. Everything that a resumed run needs is in `state_dict()`.

    Args:
        settings: Settings of the adaptation.
        context: What the training loop provides.
        task: What the adaptation learns from.
    """

    command = "adapt"
    needs_labels = False
    needs_classes: ClassVar[bool] = True
    learns: ClassVar[str] = "all"
    """`all`, all but the classifier (`features`), or scales and shifts of norm layers (`norms`)."""
    kinds: Sequence[str] = ("weak",)
    """Views of an image in a step: `weak`, `strong`, `second` (strong) or `center`."""
    learned: Sequence[str] = ("weak",)
    """Views that gradients flow through; the others are embedded with the running statistics."""
    key_kinds: Sequence[str] = ()
    """Views that the key model embeds, if there is one."""
    settings: AdaptSettings
    prototypes: Tensor | None

    def __init__(self, settings: AdaptSettings, context: Context, task: AdaptTask) -> None:
        super().__init__(settings, context)
        self.task = task
        if self.needs_classes and not task.classes:
            raise LookalikeError(
                f"`{settings.method}` needs classes: a model with a classifier, --gallery, or clusters."
            )
        known = task.prototypes
        self.register_buffer("prototypes", None if known is None else torch.from_numpy(np.array(known, np.float32)))
        self.true_labels = None if task.true_labels is None else torch.from_numpy(task.labels)
        self.key_model: Embedder | None = None
        self.seen_labels = torch.zeros(max(task.classes, 1), dtype=torch.int64)
        """How often each class was a pseudo-label."""

    @property
    def model(self) -> Embedder:
        return self.context.model

    def param_groups(self, lrs: LearningRates, head_modules: Sequence[nn.Module] = ()) -> list[dict[str, Any]]:
        model, layer = self.model, self.task.layer
        head: list[nn.Module] = [model.head, model.norm]
        if model.classifier is not None and self.learns == "all":
            head.append(model.classifier)
        slow = list(upper_part(model, layer).parameters())
        fast = [value for part in head for value in part.parameters()]
        if self.learns == "norms":
            norms = norm_layers(model, layer)
            # TENT's are those of the backbone; where none of them runs here, that of the head is what is left.
            chosen = [norm for norm in norms if isinstance(norm, nn.BatchNorm2d)] or norms
            slow, fast = [value for norm in chosen for value in norm.parameters()], []
        if not slow and not fast:
            lacks = "no batch-norm layer runs here" if self.learns == "norms" else "it has no head"
            raise LookalikeError(f"Nothing of this model can learn here: {lacks}; choose another `layer`.")
        model.requires_grad_(False)
        for value in (*slow, *fast):
            value.requires_grad_(True)
        return [
            {"name": "backbone", "params": slow, "lr": lrs.backbone},
            {"name": "head", "params": fast, "lr": lrs.head},
        ]

    # ---- forward passes --------------------------------------------------------------------------

    def rows_of(self, images: Tensor, *, learning: bool = False, model: Embedder | None = None) -> Tensor:
        """Rows before the norm layer, with gradient and the statistics the settings ask for, or without both."""
        model, layer = model or self.model, self.task.layer
        with contextlib.nullcontext() if learning else running_statistics(model), torch.set_grad_enabled(learning):
            images = images.to(model.device)
            return model(images) if layer == PIXELS else model.from_layer(layer, images)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        out = {}
        for kind, images in zip(self.kinds, batch.views, strict=True):
            model = self.key_model if kind in self.key_kinds else None
            out[kind] = self.rows_of(images, learning=kind in self.learned, model=model)
        return out

    def outputs(self, rows: Tensor, *, learning: bool = False, model: Embedder | None = None) -> tuple[Tensor, Tensor]:
        """Unit features and logits of rows that `rows_of` returned, on the CPU."""
        model = model or self.model
        with contextlib.nullcontext() if learning else running_statistics(model), torch.set_grad_enabled(learning):
            features = model.apply_norm(rows)
            return features.cpu(), self.logits(features, model).cpu()

    def logits(self, features: Tensor, model: Embedder | None = None) -> Tensor:
        if self.prototypes is not None:
            return features @ self.prototypes.T / TEMPERATURE
        classifier = (model or self.model).classifier
        return features.new_zeros(len(features), 1) if classifier is None else classifier(features)

    @torch.no_grad()
    def all_outputs(self) -> tuple[Tensor, Tensor]:
        """Features and logits of every target image at the center crop, as the finished model sees it."""
        features = self.context.encode(None)
        return features.cpu(), self.logits(features).cpu()

    def add_key_model(self) -> None:
        """Make a momentum copy of the model, whose keys the contrast uses."""
        self.key_model = copy.deepcopy(self.model).requires_grad_(False)

    def teacher_models(self) -> list[Embedder]:
        return [] if self.key_model is None else [self.key_model]

    def update_key_model(self) -> None:
        if self.key_model is not None:
            update_teacher((self.key_model,), (self.model,), self.settings.key_momentum)

    def joint_loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        return self.loss(embeddings, replace(batch, labels=batch.labels.cpu(), ids=batch.ids.cpu()))

    def weighted(self, parts: dict[str, Tensor]) -> Tensor:
        """The terms of the loss by the weights of the settings; each is logged."""
        for name, value in parts.items():
            self.context.log(name, value)
        return torch.stack([getattr(self.settings.weights, name) * value for name, value in parts.items()]).sum()

    def count_labels(self, labels: Tensor) -> None:
        self.seen_labels += torch.bincount(labels, minlength=len(self.seen_labels))

    @property
    def never_labeled(self) -> int:
        """Classes that never got a pseudo-label."""
        return int((self.seen_labels == 0).sum()) if self.task.classes else 0

    # ---- state -----------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """What the method keeps between steps, beside parameters and buffers."""
        return {}

    def set_own_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def get_extra_state(self) -> dict[str, Any]:
        receipts = self.task.receipts.state()
        return {"seen_labels": self.seen_labels, "receipts": receipts, "own": self.own_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.seen_labels = state["seen_labels"]
        self.task.receipts.set_state(state["receipts"])
        self.set_own_state(state["own"])


class FineTune(AdaptMethod):
    """Cross entropy of the true labels, the baseline with labels; optionally with mixup of views.

    References:
        Mixup: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Example:
        >>> la.adapt(model="classifier", target="photos", method="finetune", labeled=True)  # doctest: +SKIP
    """

    name = "finetune"

    def __init__(self, settings: AdaptSettings, context: Context, task: AdaptTask) -> None:
        super().__init__(settings, context, task)
        if self.true_labels is None:
            raise LookalikeError("`finetune` needs labels: give --labeled, or take a method that needs none.")
        self.kinds = self.learned = (settings.cls_view,)

    def _mixing(self) -> tuple[float, np.random.Generator]:
        """Weight of the images themselves in this step, and a generator for those they are mixed with."""
        rng, alpha = numpy_rng(self.context.seed, "mixup", self.context.step), self.settings.mixup
        return float(rng.beta(alpha, alpha)), rng

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        if not self.settings.mixup:
            return super().embed(batch)
        images = batch.views[0]
        weight, rng = self._mixing()
        order = torch.from_numpy(rng.permutation(len(images)))
        mixed = weight * images.float() + (1 - weight) * images[order].float()
        images = mixed if images.is_floating_point() else mixed.round().to(images.dtype)
        return {self.kinds[0]: self.rows_of(images, learning=True), "mixed with": batch.ids[order]}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        assert self.true_labels is not None
        labels, smoothing = self.true_labels[batch.ids], self.settings.label_smoothing
        logits = self.outputs(embeddings[self.kinds[0]], learning=True)[1]
        loss = cross_entropy(logits, labels, label_smoothing=smoothing)
        if not self.settings.mixup:
            return loss
        others, weight = self.true_labels[embeddings["mixed with"].cpu()], self._mixing()[0]
        return weight * loss + (1 - weight) * cross_entropy(logits, others, label_smoothing=smoothing)


class Tent(AdaptMethod):
    """TENT: mean entropy of the predictions, minimized by scales and shifts of the norm layers alone.

    References:
        Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.

    Example:
        >>> la.adapt(model="classifier", target="photos", method="tent")  # doctest: +SKIP
    """

    name = "tent"
    learns = "norms"
    kinds = learned = ("center",)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        return adaptation.entropy_loss(self.outputs(embeddings["center"], learning=True)[1])


class Shot(AdaptMethod):
    """SHOT: information maximization and centroid pseudo-labels; the classifier is frozen.

    References:
        Liang et al., "Do We Really Need to Access the Source Data?", ICML 2020.

    Example:
        >>> la.adapt(model="classifier", target="photos", method="shot")  # doctest: +SKIP
    """

    name = "shot"
    learns = "features"
    pseudo_labels: Tensor | None = None

    @property
    def interval(self) -> int:
        """Steps between two computations of the pseudo-labels."""
        return max(1, self.context.steps // PSEUDO_LABELINGS)

    def before_step(self) -> None:
        if self.pseudo_labels is None or (self.context.step - 1) % self.interval == 0:
            self.pseudo_labels = adaptation.shot_pseudo_labels(*self.all_outputs())

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        assert self.pseudo_labels is not None
        labels, logits = self.pseudo_labels[batch.ids], self.outputs(embeddings["weak"], learning=True)[1]
        self.count_labels(labels)
        weight = 0.0 if self.settings.late_labels and self.context.step <= self.interval else 0.3
        return weight * cross_entropy(logits, labels) + adaptation.information_maximization_loss(logits)

    def own_state(self) -> dict[str, Any]:
        return {"pseudo_labels": self.pseudo_labels}


class Mcc(AdaptMethod):
    """Minimum class confusion, together with the labels of the source images, which it needs.

    References:
        Jin et al., "Minimum Class Confusion for Versatile Domain Adaptation", ECCV 2020.

    Example:
        >>> la.adapt(model="classifier", target="photos", method="mcc", source="old-photos")  # doctest: +SKIP
    """

    name = "mcc"

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        if self.task.labeled_source is None:
            raise LookalikeError("`mcc` needs the labeled images the model was trained on: give them with --source.")
        if distributed.world_size() > 1:
            raise LookalikeError("`mcc` embeds source images within its loss; it works in one process only.")
        views, known = self.task.labeled_source
        order = numpy_rng(self.context.seed, "source", self.context.epoch).permutation(len(known))
        rows = order[((self.context.step - 1) * len(batch) + np.arange(len(batch))) % len(known)]
        images = views(rows, self.context.step)
        source = self.outputs(self.rows_of(images, learning=True), learning=True)[1]
        target = self.outputs(embeddings["weak"], learning=True)[1]
        loss = cross_entropy(source, torch.from_numpy(known[rows]))
        return loss + adaptation.class_confusion_loss(target, self.settings.confusion_temperature)


class AdaContrast(AdaptMethod):
    """AdaContrast: a momentum network, labels refined from a bank, contrast against a queue of strong keys.

    Written from a description of its public code, without its mistakes (docs/design/adaptation.md).

    References:
        Chen et al., "Contrastive Test-Time Adaptation", CVPR 2022.

    Example:
        >>> la.adapt(model="classifier", target="photos", method="adacontrast")  # doctest: +SKIP
    """

    name = "adacontrast"
    kinds = ("weak", "strong", "second")
    learned = ("strong",)
    key_kinds = ("second",)

    def __init__(self, settings: AdaptSettings, context: Context, task: AdaptTask) -> None:
        super().__init__(settings, context, task)
        self.add_key_model()
        self.queue = Ring(settings.bank.size or 16_384, context.dim, 0, torch.float32)
        self.rows, self.probabilities = torch.zeros(0), torch.zeros(0)
        self._enqueue: tuple[Tensor, ...] = ()

    def before_step(self) -> None:
        if not len(self.rows):
            self.rows, logits = self.all_outputs()
            self.probabilities = logits.softmax(1)
        self.update_key_model()

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        return {**super().embed(batch), "weak key": self.rows_of(batch.views[0], model=self.key_model)}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        weak = self.outputs(embeddings["weak"])[0]
        near = torch_top_k(weak, self.rows, min(self.settings.labels.k, len(self.rows)))[1]
        labels = self.probabilities[near].mean(1).argmax(1)
        self.count_labels(labels)
        key = self.outputs(embeddings["second"], model=self.key_model)[0]
        query, logits = self.outputs(embeddings["strong"], learning=True)
        none = torch.full((len(batch), 1), -1)
        columns = Columns(self.queue.read("rows"), self.queue.read("ids"), self.queue.read("labels"), pool=False)
        queries = ContrastQueries(batch.ids, labels, none, none < 0)
        contrast, _ = contrastive(query, key, queries, [columns], tau=self.settings.contrast.temperature)
        self._enqueue = (key, labels, batch.ids, embeddings["weak key"].detach())
        parts = {"labels": cross_entropy(logits, labels), "contrast": contrast.mean()}
        return self.weighted({**parts, "diversity": adaptation.diversity_loss(logits)})

    def after_step(self) -> None:
        key, labels, ids, weak = self._enqueue
        self.queue.push(key, ids, key[:, :0], labels)
        features, logits = self.outputs(weak, model=self.key_model)
        self.rows[ids], self.probabilities[ids] = features, logits.softmax(1)
        self._enqueue = ()

    def own_state(self) -> dict[str, Any]:
        return {"queue": {**vars(self.queue)}, "rows": self.rows, "probabilities": self.probabilities}

    def set_own_state(self, state: dict[str, Any]) -> None:
        vars(self.queue).update(state["queue"])
        self.rows, self.probabilities = state["rows"], state["probabilities"]


def find(name: str) -> type[AdaptMethod]:
    """The class of a method.

    Raises:
        LookalikeError: If the method does not learn.
    """
    from lookalike.adaptation.t3ar import T3AR

    known: dict[str, type[AdaptMethod]] = {kind.name: kind for kind in (T3AR, FineTune, Tent, Shot, Mcc, AdaContrast)}
    if name not in known:
        raise LookalikeError(f"`{name}` does not learn.")
    return known[name]
