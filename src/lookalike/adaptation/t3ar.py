"""T3AR: pseudo-labels by votes, contrast against the bank and the retrieved images, and diversity."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lookalike.adaptation import target_classes
from lookalike.adaptation.bank import Bank, votes
from lookalike.adaptation.contrast import Columns, ContrastQueries, contrastive
from lookalike.adaptation.objectives import LossTerms, Objective
from lookalike.losses import adaptation

if TYPE_CHECKING:
    from lookalike.adaptation.adapter import Adapter


class T3AR(Objective):
    """Pseudo-labels by votes, contrast against the bank and the retrieved images, and diversity."""

    bank: Bank
    mean: Tensor | None = None

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        net, chosen = adapter.network, adapter.settings
        self.bank = Bank(chosen.bank.size, net.dim, max(net.classes, 1), len(adapter.ids))
        self.kept: tuple[Any, ...] = ()
        self.started = False

    def begin(self) -> None:
        if not self.started:
            features, logits = self.all_centers()
            order = torch.from_numpy(self.a.order(-1)[: self.bank.size].copy())
            self.bank.push_target(features[order], order, logits[order])
            self.started = True

    def _pool(self, rows: np.ndarray, seen: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, Columns] | None:
        """The retrieved images of this batch, each once; without gradient, without a trace in the statistics."""
        used = np.unique(self.a.lists[rows])
        used = used[used >= 0]
        if self.a.settings.contrast.pool_set == "none" or not len(used):
            return None
        shared = self.a.settings.batch_norm == "shared-stats"
        around = self.a.network.borrowed_statistics(seen) if shared else contextlib.nullcontext()
        with torch.no_grad(), around:
            features, logits = self.passed(self.a.supply.pool, used)
        self.a.receipts.load(used)
        numbers = torch.from_numpy(self.a.pool_numbers[used])
        return used, Columns(features, numbers, logits.argmax(1), pool=True)

    def asking(self, rows: np.ndarray, labels: Tensor) -> ContrastQueries:
        lists, chosen = self.a.lists[rows], self.a.settings.contrast
        numbers = np.where(lists >= 0, self.a.pool_numbers[lists] if len(self.a.pool_numbers) else -1, -1)
        barred = np.zeros(lists.shape, bool)
        if chosen.exclusion == "score":
            barred = self.a.scores[rows] >= chosen.exclusion_score
        elif chosen.exclusion == "rank":
            barred[:, : chosen.exclusion_rank] = True
        friends = None if self.a.friends is None else self.a.friends[rows]
        return ContrastQueries(
            torch.from_numpy(rows), labels, torch.from_numpy(numbers), torch.from_numpy(barred), friends
        )

    def loss(self, rows: np.ndarray, epoch: int) -> LossTerms:
        a, chosen = self.a, self.a.settings
        own = torch.from_numpy(rows)
        q, z, seen = self.forward(lambda r: a.supply.strong(r, epoch), rows)
        learn_weak = chosen.cls_view == "weak"
        with contextlib.nullcontext() if learn_weak else torch.no_grad():
            weak, zw = self.passed(lambda r: a.supply.weak(r, epoch), rows)
        key = weak.detach()
        if chosen.contrast.positive_key == "strong":
            with torch.no_grad():
                key = self.passed(lambda r: a.supply.strong(r, epoch, second=True), rows)[0]
        pool = self._pool(rows, seen)
        if a.labels is not None:
            labels = a.labels[own]
        elif a.network.classes:
            labels = votes(
                weak.detach(),
                own,
                self.bank,
                zw.detach(),
                refine=chosen.labels.refine,
                k=chosen.labels.k,
                dedupe=chosen.labels.dedupe,
                self_vote=chosen.labels.self_vote,
                of_logits=chosen.bank.mean_of == "logits",
            ).argmax(1)
        else:
            labels = torch.zeros(len(rows), dtype=torch.int64)
        a.seen_labels += torch.bincount(labels, minlength=len(a.seen_labels))
        con = self._contrast(q, key, self.asking(rows, labels), pool)
        parts = {"contrast": float(con.detach())}
        total = chosen.weights.contrast * con
        if a.network.classes:
            ce = cross_entropy(zw if learn_weak else z, labels)
            parts["labels"] = float(ce.detach())
            total = total + chosen.weights.labels * ce
            if a.labels is None and chosen.diversity_scope != "off":
                div = adaptation.diversity_loss(z, self.mean if chosen.diversity_scope == "ema" else None)
                parts["diversity"] = float(div.detach())
                total = total + chosen.weights.diversity * div
                now = z.detach().softmax(1).mean(0)
                self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        features, logits = (q, z) if chosen.bank.view == "strong" else (weak, zw)
        self.kept = (features.detach(), logits.detach(), labels, pool)
        return total, parts

    def _contrast(
        self, q: Tensor, key: Tensor, asking: ContrastQueries, pool: tuple[np.ndarray, Columns] | None
    ) -> Tensor:
        chosen = self.a.settings.contrast
        columns = self.bank.columns(self.a.labels, enqueued=self.a.settings.bank.label == "enqueued")
        if pool is not None and chosen.pool_current:
            columns.append(pool[1])
        loss, counts = contrastive(
            q,
            key,
            asking,
            columns,
            tau=chosen.temperature,
            pool_set=chosen.pool_set,
            by_class=chosen.exclude_class and self.a.network.classes > 0,
            pseudo=chosen.exclusion == "pseudo" and self.a.network.classes > 0,
        )
        for part, times in zip((part for part in columns if part.pool), counts, strict=True):
            self.a.receipts.count(self.a.pool_places[part.ids.numpy()], times.numpy())
        return loss.mean()

    def after(self, rows: np.ndarray, epoch: int) -> None:
        features, logits, labels, pool = self.kept
        if self.a.settings.reforward:
            with torch.no_grad():
                supply, strong = self.a.supply, self.a.settings.bank.view == "strong"
                view = supply.strong if strong else supply.weak
                features, logits = self.passed(lambda r: view(r, epoch), rows)
        self.bank.push_target(features, torch.from_numpy(rows), logits, labels)
        if pool is not None:
            self.bank.push_pool(pool[1].rows, pool[1].ids, pool[1].labels)
        held = np.isin(self.a.pool_numbers, self.bank.pool.read("ids").numpy())
        self.a.receipts.held(np.flatnonzero(held), self.a.step + 1)
        self.kept = ()

    def end_of_epoch(self) -> None:
        self.bank.recount()
        net = self.a.network
        if self.a.recluster and net.prototypes is not None:
            held = self.bank.counts > 0
            rows = torch.zeros(len(held), net.dim).index_add_(
                0, self.bank.target.read("ids"), self.bank.target.read("rows")
            )
            net.prototypes.copy_(
                torch.from_numpy(target_classes.recluster(rows[held].numpy(), net.prototypes.numpy(), self.a.seed))
            )

    def state(self) -> dict[str, Any]:
        return {"bank": self.bank.state(), "mean": self.mean, "started": self.started}

    def set_state(self, state: dict[str, Any]) -> None:
        self.bank.set_state(state["bank"])
        self.mean, self.started = state["mean"], state["started"]
