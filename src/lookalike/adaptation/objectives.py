"""The methods by name: T3AR and its baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lookalike.adaptation.adacontrast import AdaContrast
from lookalike.adaptation.objective import Objective, Parts
from lookalike.adaptation.t3ar import T3AR
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.losses import adaptation

if TYPE_CHECKING:
    from lookalike.adaptation.adapter import Adapter


class FineTune(Objective):
    """Cross entropy of true labels, as a baseline of the labeled case; with mixup, of two images at once."""

    def loss(self, rows: np.ndarray, epoch: int) -> Parts:
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
    """Mean entropy, by scales and shifts of the norm layers alone."""

    learns = "norms"

    def loss(self, rows: np.ndarray, epoch: int) -> Parts:
        _, z, _ = self.forward(self.a.supply.center, rows)
        return adaptation.entropy(z), {}


class Shot(Objective):
    """Information and centroid pseudo-labels; the classifier stays."""

    learns = "features"
    found: Tensor | None = None

    def loss(self, rows: np.ndarray, epoch: int) -> Parts:
        each = max(1, self.a.total // 15)
        if self.found is None or self.a.step % each == 0:
            self.found = adaptation.shot_labels(*self.all_centers())
        _, z, _ = self.forward(lambda r: self.a.supply.weak(r, epoch), rows)
        labels = self.found[torch.from_numpy(rows)]
        weight = 0.0 if self.a.settings.late_labels and self.a.step < each else 0.3
        return weight * cross_entropy(z, labels) + adaptation.information(z), {}

    def state(self) -> dict[str, Any]:
        return {"found": self.found}

    def set_state(self, state: dict[str, Any]) -> None:
        self.found = state["found"]


class Mcc(Objective):
    """Minimum class confusion beside the source's own labels: it needs the source images, the others do not."""

    def loss(self, rows: np.ndarray, epoch: int) -> Parts:
        if self.a.source is None:
            raise LookalikeError("`mcc` needs the labeled images the model was trained on: give them with --source.")
        supply, labels = self.a.source
        order = numpy_rng(self.a.seed, "source", epoch).permutation(len(labels))
        picked = order[(self.a.step * len(rows) + np.arange(len(rows))) % len(labels)]
        _, source, _ = self.forward(lambda r: supply.weak(r, epoch), picked)
        _, target, _ = self.forward(lambda r: self.a.supply.weak(r, epoch), rows)
        loss = cross_entropy(source, torch.from_numpy(labels[picked]))
        return loss + adaptation.confusion(target, self.a.settings.confusion_temperature), {}


KINDS: dict[str, type[Objective]] = {
    "t3ar": T3AR,
    "finetune": FineTune,
    "tent": Tent,
    "shot": Shot,
    "mcc": Mcc,
    "adacontrast": AdaContrast,
}


def make(adapter: Adapter) -> Objective:
    method = adapter.settings.method
    if method not in KINDS:
        raise LookalikeError(f"`{method}` does not learn.")
    if method != "t3ar" and not adapter.network.classes:
        raise LookalikeError(f"`{method}` needs classes: a model with a classifier, --gallery, or clusters.")
    return KINDS[method](adapter)
