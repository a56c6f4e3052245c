"""Objectives of adaptation: the base class, and the baselines TENT, SHOT, MCC, AdaContrast and fine-tuning."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lookalike.adaptation.contrast import Columns, ContrastQueries, contrastive
from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng, torch_rng
from lookalike.losses import adaptation

if TYPE_CHECKING:
    from lookalike.adaptation.adapter import Adapter
    from lookalike.adaptation.network import Network

LossTerms = tuple[Tensor, dict[str, float]]
View = Callable[[np.ndarray], Tensor]


class Objective(ABC):
    """What a step learns from: the loss, and the forward passes shared among processes.

    Args:
        adapter: The loop with the network, the images and the settings.
    """

    learns = "all"

    def __init__(self, adapter: Adapter) -> None:
        self.a = adapter

    def begin(self) -> None:  # noqa: B027 - most have nothing to do
        """Before the first step of this process; must do nothing where a state was set."""

    @abstractmethod
    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms: ...

    def after(self, rows: np.ndarray, epoch: int) -> None:  # noqa: B027 - most have nothing to do
        """The step is done."""

    def end_of_epoch(self) -> None:  # noqa: B027 - most have nothing to do
        """Every image was seen once more."""

    def state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to do
        """Go on from what `state` gave."""

    def passed(self, view: View, rows: np.ndarray, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits of images under a view.

        Each of several processes computes its part and receives all of them, so the result is the same as with one
        process.
        """
        shared = len(rows) >= distributed.world_size()
        mine = rows[distributed.rank_slice(len(rows))] if shared else rows
        features, logits = (network or self.a.network)(view(mine))
        if not shared:
            return features, logits
        return distributed.all_gather(features, gradient=True), distributed.all_gather(logits, gradient=True)

    def forward(self, view: View, rows: np.ndarray) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """With gradient, and with the statistics the settings ask for."""
        with self.a.network.learning_statistics(self.a.settings.batch_norm) as seen:
            features, logits = self.passed(view, rows)
        return features, logits, seen

    def all_centers(self) -> tuple[Tensor, Tensor]:
        """Features and logits of every target image as the finished model would see it."""
        count = np.arange(len(self.a.ids))
        with torch.no_grad():
            parts = [self.passed(self.a.supply.center, part) for part in np.split(count, count[256::256])]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


class FineTune(Objective):
    """Cross entropy of the true labels, the baseline with labels; optionally with mixup."""

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        a = self.a
        if a.labels is None:
            raise LookalikeError("`finetune` needs labels: give --labeled, or take a method that needs none.")
        view = a.supply.weak if a.settings.cls_view == "weak" else a.supply.strong
        smooth = a.settings.label_smoothing
        if not a.settings.mixup:
            _, z, _ = self.forward(lambda r: view(r, epoch), rows)
            return cross_entropy(z, a.labels[torch.from_numpy(rows)], label_smoothing=smooth), {}
        rng = numpy_rng(a.seed, "mixup", a.step)
        share = float(rng.beta(a.settings.mixup, a.settings.mixup))
        pairs = np.stack([rows, rng.permutation(rows)], 1)

        def mixed(part: np.ndarray) -> Tensor:
            one, other = (view(part[:, side], epoch) for side in (0, 1))
            both = share * one.float() + (1 - share) * other.float()
            return both if one.is_floating_point() else both.round().to(one.dtype)

        _, z, _ = self.forward(mixed, pairs)
        both = (a.labels[torch.from_numpy(pairs[:, side])] for side in (0, 1))
        first, second = (cross_entropy(z, labels, label_smoothing=smooth) for labels in both)
        return share * first + (1 - share) * second, {}


class Tent(Objective):
    """TENT: mean entropy of the predictions, minimized by scales and shifts of the norm layers alone."""

    learns = "norms"

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        _, z, _ = self.forward(self.a.supply.center, rows)
        return adaptation.entropy_loss(z), {}


class Shot(Objective):
    """SHOT: information maximization and centroid pseudo-labels; the classifier is frozen."""

    learns = "features"
    found: Tensor | None = None

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        each = max(1, self.a.total // 15)
        if self.found is None or self.a.step % each == 0:
            self.found = adaptation.shot_pseudo_labels(*self.all_centers())
        _, z, _ = self.forward(lambda r: self.a.supply.weak(r, epoch), rows)
        labels = self.found[torch.from_numpy(rows)]
        weight = 0.0 if self.a.settings.late_labels and self.a.step < each else 0.3
        return weight * cross_entropy(z, labels) + adaptation.information_maximization_loss(z), {}

    def state(self) -> dict[str, Any]:
        return {"found": self.found}

    def set_state(self, state: dict[str, Any]) -> None:
        self.found = state["found"]


class Mcc(Objective):
    """Minimum class confusion, together with the labels of the source images, which it needs."""

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        if self.a.source is None:
            raise LookalikeError("`mcc` needs the labeled images the model was trained on: give them with --source.")
        supply, labels = self.a.source
        order = numpy_rng(self.a.seed, "source", epoch).permutation(len(labels))
        picked = order[(self.a.step * len(rows) + np.arange(len(rows))) % len(labels)]
        _, source, _ = self.forward(lambda r: supply.weak(r, epoch), picked)
        _, target, _ = self.forward(lambda r: self.a.supply.weak(r, epoch), rows)
        loss = cross_entropy(source, torch.from_numpy(labels[picked]))
        return loss + adaptation.class_confusion_loss(target, self.a.settings.confusion_temperature), {}


class AdaContrast(Objective):
    """AdaContrast: a momentum network, labels refined from a bank, contrast against a queue of strong keys.

    Written from a description of its public code. With `compat` its mistakes are reproduced: labels of the queue are
    exchanged before the loss, the queue starts with random vectors, older keys of the image itself are negatives, and a
    slot of the bank belongs to the next image instead of its own (docs/design/adaptation.md).

    References:
        Chen et al., "Contrastive Test-Time Adaptation", CVPR 2022.
    """

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        net, size = adapter.network, adapter.settings.bank.size
        self.slow = copy.deepcopy(net)
        self.queue = torch.zeros(size, net.dim)
        self.queue_labels, self.queue_ids = torch.zeros(size, dtype=torch.int64), torch.full((size,), -1)
        self.place, self.filled = 0, 0
        if adapter.settings.compat:
            generator = torch_rng(adapter.seed, "queue")
            self.queue = normalize(torch.randn(size, net.dim, generator=generator), dim=1)
            self.queue_labels = torch.randint(0, max(net.classes, 1), (size,), generator=generator)
            self.filled = size
        self.rows, self.probabilities = torch.zeros(0), torch.zeros(0)
        self.bank_place = 0
        self.kept: tuple[Tensor, Tensor] | None = None

    def begin(self) -> None:
        if not len(self.rows):
            features, logits = self.all_centers()
            count = np.arange(len(self.a.ids))
            order = torch.from_numpy((self.a.order(-1) if self.a.settings.compat else count).copy())
            self.rows, self.probabilities = features[order], logits[order].softmax(1)

    def refined(self, weak: Tensor) -> Tensor:
        near = (weak @ self.rows.T).topk(min(self.a.settings.labels.k, len(self.rows)), dim=1).indices
        return self.probabilities[near].mean(1).argmax(1)

    def _turn(self, count: int) -> Tensor:
        return (self.place + torch.arange(count)) % len(self.queue)

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        a = self.a
        with torch.no_grad():
            labels = self.refined(self.passed(lambda r: a.supply.weak(r, epoch), rows)[0])
            for slow, fast in zip(self.slow.parameters(), a.network.parameters(), strict=True):
                slow.lerp_(fast, 1 - a.settings.key_momentum)
            key = self.passed(lambda r: a.supply.strong(r, epoch, second=True), rows, self.slow)[0]
        a.seen_labels += torch.bincount(labels, minlength=len(a.seen_labels))
        q, z, _ = self.forward(lambda r: a.supply.strong(r, epoch), rows)
        known = self.queue_labels
        if a.settings.compat:
            known = known.clone()
            known[self._turn(len(rows))[-len(known) :]] = labels[-len(known) :]
        own, none = torch.from_numpy(rows), torch.full((len(rows), 1), -1)
        there = slice(0, self.filled)
        columns = Columns(self.queue[there], self.queue_ids[there], known[there], pool=False)
        con, _ = contrastive(
            q, key, ContrastQueries(own, labels, none, none < 0), [columns], tau=a.settings.contrast.temperature
        )
        self.kept = (key, labels)
        ce, div = cross_entropy(z, labels), adaptation.diversity_loss(z)
        weights = a.settings.weights
        total = weights.labels * ce + weights.contrast * con.mean() + weights.diversity * div
        return total, {"contrast": float(con.detach().mean()), "labels": float(ce.detach())}

    def after(self, rows: np.ndarray, epoch: int) -> None:
        assert self.kept is not None
        size, own = len(self.queue), torch.from_numpy(rows)
        key, labels = (values[-size:] for values in self.kept)
        place = self._turn(len(key))
        self.queue[place], self.queue_labels[place] = key, labels
        if not self.a.settings.compat:
            self.queue_ids[place] = own[-size:]
        self.place, self.filled = (self.place + len(key)) % size, min(size, self.filled + len(key))
        with torch.no_grad():
            features, logits = self.passed(lambda r: self.a.supply.weak(r, epoch), rows, self.slow)
        by_turn = (self.bank_place + torch.arange(len(rows))) % len(self.rows)
        turn = by_turn if self.a.settings.compat else own
        self.rows[turn], self.probabilities[turn] = features, logits.softmax(1)
        self.bank_place = (self.bank_place + len(rows)) % len(self.rows)
        self.kept = None

    def state(self) -> dict[str, Any]:
        names = ("queue", "queue_labels", "queue_ids", "place", "filled", "rows", "probabilities", "bank_place")
        return {"slow": self.slow.state_dict(), **{name: getattr(self, name) for name in names}}

    def set_state(self, state: dict[str, Any]) -> None:
        self.slow.load_state_dict(state["slow"])
        for name, value in state.items():
            if name != "slow":
                setattr(self, name, value)
