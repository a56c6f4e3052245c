"""The adaptation loop, the method by name, and on-target distillation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.adaptation.network import PIXELS, Network
from lookalike.adaptation.objectives import AdaContrast, FineTune, Mcc, Objective, Shot, Tent
from lookalike.adaptation.pool import Receipts
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.t3ar import T3AR
from lookalike.adaptation.view_provider import ViewProvider, make_views
from lookalike.core import distributed
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import derive, seed_everything
from lookalike.data import Table
from lookalike.models import Embedder
from lookalike.training.batchnorm import gather_statistics

OBJECTIVES: dict[str, type[Objective]] = {
    "t3ar": T3AR,
    "finetune": FineTune,
    "tent": Tent,
    "shot": Shot,
    "mcc": Mcc,
    "adacontrast": AdaContrast,
}


class Adapter:
    """The adaptation loop: views, loss, optimizer step, then the update of the bank.

    Args:
        network: The model with its cached layer.
        supply: Provider of the views.
        ids: Content ids of the target images.
        settings: Settings of the adaptation.
        labels: Class of each target image, if they are learned from.
        lists: Retrieved pool images of each target image, −1 for none.
        scores: Similarities of the retrieved images.
        pool_ids: Content ids of the used pool images.
        friends: Target images that are not negatives of each other, for a model without classes.
        source: Views and classes of the source images, for `mcc`.
        recluster: Recompute cluster prototypes after every epoch.
        seed: Random seed.
    """

    def __init__(
        self,
        network: Network,
        supply: ViewProvider,
        ids: Sequence[str],
        settings: AdaptSettings,
        *,
        labels: np.ndarray | None = None,
        lists: np.ndarray | None = None,
        scores: np.ndarray | None = None,
        pool_ids: Sequence[str] = (),
        friends: np.ndarray | None = None,
        source: tuple[ViewProvider, np.ndarray] | None = None,
        recluster: bool = False,
        seed: int = 0,
    ) -> None:
        self.network, self.supply, self.ids, self.settings, self.seed = network, supply, list(ids), settings, seed
        self.labels = None if labels is None else torch.from_numpy(np.asarray(labels, np.int64))
        if lists is None:
            lists = np.full((len(self.ids), 1), -1)
        self.lists = np.asarray(lists, np.int64)
        self.scores = np.full(self.lists.shape, -np.inf) if scores is None else scores
        # One id space: a pool copy of a target image is that image.
        place = {id_: i for i, id_ in enumerate(self.ids)}
        self.pool_numbers = np.array([place.get(id_, len(self.ids) + i) for i, id_ in enumerate(pool_ids)], np.int64)
        self.pool_places = np.full(len(self.ids) + len(pool_ids), -1)
        self.pool_places[self.pool_numbers] = np.arange(len(pool_ids))
        self.friends = None if friends is None else torch.from_numpy(np.asarray(friends, np.int64))
        self.source, self.recluster = source, recluster
        self.receipts = Receipts(len(self.pool_numbers))
        self.step = 0
        self.log: list[dict[str, float]] = []
        self.seen_labels = torch.zeros(max(network.classes, 1), dtype=torch.int64)
        if distributed.world_size() > 1:
            gather_statistics(network.model)
        self.objective = make_objective(self)
        groups = network.groups(settings.lr, settings.head_lr_factor, only=self.objective.learns)
        self.optimizer = _optimizer(groups, settings)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]

    # --- the plan ---

    def order(self, epoch: int) -> np.ndarray:
        """The images of an epoch: shuffled by seed, epoch and id, or in order for a stream."""
        if self.settings.stream:
            return np.arange(len(self.ids))
        return np.argsort(np.array([derive(self.seed, "order", epoch, id_) for id_ in self.ids]), kind="stable")

    def batches(self, epoch: int) -> list[np.ndarray]:
        rows, size = self.order(epoch), self.settings.batch_size
        found = [rows[i : i + size] for i in range(0, len(rows), size)]
        if self.settings.batch_norm in ("target-train", "shared-stats") or self.settings.method == "shot":
            found = [batch for batch in found if len(batch) > 1]  # one image has no statistics, and no diversity
        return found

    @cached_property
    def each(self) -> int:
        """Steps of an epoch."""
        return len(self.batches(0))

    @property
    def epochs(self) -> int:
        if self.settings.stream:
            return 1
        return (
            self.settings.epochs if self.settings.steps is None else math.ceil(self.settings.steps / max(1, self.each))
        )

    @property
    def total(self) -> int:
        whole = self.epochs * self.each
        return whole if self.settings.steps is None else min(whole, self.settings.steps)

    def _plan(self) -> Iterator[tuple[int, bool, np.ndarray]]:
        """(epoch, whether it ends here, rows) of every step from the present one on."""
        number = 0
        for epoch in range(self.epochs):
            batches = self.batches(epoch)
            for place, rows in enumerate(batches):
                if number >= self.total:
                    return
                if number >= self.step:
                    yield epoch, place == len(batches) - 1, rows
                number += 1

    def rate(self) -> float:
        """Factor of the learning rates at this step."""
        done = self.step / max(1, self.total)
        chosen = self.settings
        warm = chosen.warmup_epochs * self.each
        first, last = (value / chosen.lr if chosen.lr else 0.0 for value in (chosen.warmup_start_lr, chosen.min_lr))
        rise = min(1.0, first + (1 - first) * (self.step + 1) / warm) if warm else 1.0
        fall = {
            "cosine": last + (1 - last) * 0.5 * (1 + math.cos(math.pi * done)),
            "inverse": (1 + 10 * done) ** -0.75,
            "steps": (1 + 1e-3 * self.step) ** -0.75,
            "none": 1.0,
        }
        return rise * fall[chosen.lr_schedule]

    # --- running ---

    def run(self, *, until: int | None = None, watch: Callable[[Adapter], None] | None = None) -> None:
        """Take all steps, or those before step `until`; `watch` is called after each."""
        self.objective.begin()
        for epoch, ends, rows in self._plan():
            if until is not None and self.step >= until:
                return
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * self.rate()
            loss, parts = self.objective.loss(rows, epoch)
            if loss.requires_grad:
                self._descend(loss)
            self.objective.after(rows, epoch)
            if ends:
                self.objective.end_of_epoch()
            self.step += 1
            self.log.append({"step": self.step, "epoch": epoch, "loss": float(loss.detach()), **parts})
            if watch is not None:
                watch(self)

    def _descend(self, loss: Tensor) -> None:
        """A step. Every process has the loss of the whole batch, and the gradient of its share of the images."""
        self.optimizer.zero_grad(set_to_none=True)
        (loss / distributed.world_size()).backward()
        for group in self.optimizer.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    distributed.sum_in_place(value.grad)
        self.optimizer.step()

    @property
    def never_labeled(self) -> int:
        """Classes that never got a pseudo-label."""
        return int((self.seen_labels == 0).sum()) if self.network.classes else 0

    # --- a checkpoint ---

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "objective": self.objective.state(),
            "receipts": self.receipts.state(),
            "seen_labels": self.seen_labels,
            "log": list(self.log),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.step, self.log = state["step"], list(state["log"])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.objective.set_state(state["objective"])
        self.receipts.set_state(state["receipts"])
        self.seen_labels = state["seen_labels"]


def _optimizer(groups: list[dict[str, Any]], settings: AdaptSettings) -> torch.optim.Optimizer:
    plain: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, betas=(settings.momentum, 0.999), **plain)
    return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.momentum > 0, **plain)


def predict(network: Network, inputs: Any, *, batch: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Unit features and probabilities of cached activations (or pixels), in blocks."""
    rows, found = [], []
    with torch.no_grad():
        for start in range(0, len(inputs), batch):
            part = np.asarray(inputs[start : start + batch])
            x = torch.from_numpy(part if part.dtype == np.uint8 else part.astype(np.float32))
            features, logits = network(x)
            rows.append(features.numpy())
            found.append(logits.double().softmax(1).numpy())
    return np.concatenate(rows), np.concatenate(found)


def make_objective(adapter: Adapter) -> Objective:
    """The objective of the method in the settings.

    Raises:
        LookalikeError: If the method does not learn, or needs classes that the model lacks.
    """
    method = adapter.settings.method
    if method not in OBJECTIVES:
        raise LookalikeError(f"`{method}` does not learn.")
    if method != "t3ar" and not adapter.network.classes:
        raise LookalikeError(f"`{method}` needs classes: a model with a classifier, --gallery, or clusters.")
    return OBJECTIVES[method](adapter)


def on_target(teacher: Network, learn: Table, settings: AdaptSettings, *, seed: int = 0) -> Embedder:
    """On-target distillation: a student that sees nothing but the target.

    The teacher is adapted by SHOT; a student of another architecture learns from scratch, first by contrast on the
    target, then from the teacher's hard labels, and becomes the next teacher. The authors' code was not found; the
    constants are ours (docs/design/adaptation.md).

    Args:
        teacher: The network to adapt first.
        learn: Target images.
        settings: Settings of the adaptation.
        seed: Random seed.

    Returns:
        The last student.

    References:
        Wang et al., "On-target Adaptation", arXiv 2109.01087.
    """
    if teacher.model.classifier is None:
        raise LookalikeError("`on_target` needs a model with a classifier: its student learns from hard labels.")
    ids = [str(id_) for id_ in learn.column("content_id")]
    views = make_views(teacher.model, teacher.layer, learn, None, views=settings.num_views, seed=seed)
    first = Adapter(teacher, views, ids, settings.model_copy(update={"method": "shot"}), seed=seed)
    first.run()
    labels = _labels(first.objective)
    student = teacher.model
    for turn in range(settings.rounds):
        student = _fresh(settings.student, teacher.model, seed + turn)
        labels = _taught(student, learn, ids, labels, settings, seed + turn)
    student.card["classes"] = teacher.model.card.get("classes", [])
    return student


def _labels(objective: Objective) -> np.ndarray:
    """What the network predicts for every target image."""
    out: np.ndarray = objective.all_centers()[1].argmax(1).numpy()
    return out


def _fresh(name: str, like: Embedder, seed: int) -> Embedder:
    """An untrained network with a head and classes like the teacher's."""
    assert like.classifier is not None
    seed_everything(seed)
    model = Embedder.from_pretrained(name, weights="random", size=like.preprocess.size, device=CPU)
    model.set_random_head(min(like.dim, model.feature_dim), seed)
    model.classifier = nn.Linear(model.dim, like.classifier.out_features)
    return model


def _taught(
    student: Embedder, learn: Table, ids: list[str], labels: np.ndarray, settings: AdaptSettings, seed: int
) -> np.ndarray:
    """Contrast on the target alone, then the teacher's labels; what the student then predicts."""
    views = make_views(student, PIXELS, learn, None, seed=seed)
    plain = settings.model_copy(update={"method": "t3ar", "batch_norm": "target-train"})
    classifier, student.classifier = student.classifier, None  # nothing to vote on: every other image is a negative
    Adapter(Network(student, PIXELS), views, ids, plain, seed=seed).run()
    student.classifier = classifier
    network = Network(student, PIXELS)
    tuned = Adapter(network, views, ids, plain.model_copy(update={"method": "finetune"}), labels=labels, seed=seed)
    tuned.run()
    with torch.no_grad():
        return _labels(tuned.objective)
