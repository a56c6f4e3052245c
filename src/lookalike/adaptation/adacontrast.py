"""AdaContrast (Chen et al., CVPR 2022): a momentum network and two memories.

Written anew from a description of its public code. What that code does by mistake is done with `compat` only: labels of
the queue are exchanged before the loss, the queue begins with random vectors, an image's own older keys are negatives,
and a slot of the bank belongs to whoever comes next instead of to its image (decision 0250).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lookalike.adaptation.contrast import Asking, Columns, contrastive
from lookalike.adaptation.objective import Objective, Parts
from lookalike.core.seeds import torch_rng
from lookalike.losses import adaptation

if TYPE_CHECKING:
    from lookalike.adaptation.adapter import Adapter


class AdaContrast(Objective):
    """Refined labels from a bank of all target images; contrast against a queue of strong keys."""

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

    def loss(self, rows: np.ndarray, epoch: int) -> Parts:
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
            q, key, Asking(own, labels, none, none < 0), [columns], tau=a.settings.contrast.temperature
        )
        self.kept = (key, labels)
        ce, div = cross_entropy(z, labels), adaptation.diversity(z)
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
