"""T3AR: pseudo-labels by votes, contrast against keys and retrieved images, and diversity."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lookalike.adaptation import target_classes
from lookalike.adaptation.bank import Bank, votes
from lookalike.adaptation.contrast import Columns, ContrastQueries, contrastive
from lookalike.adaptation.methods import AdaptMethod
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.task import AdaptTask
from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.losses import adaptation
from lookalike.methods.base import Batch, Context

BANK_STEPS = (5, 21)
"""Fewest and most steps in which the bank turns over, as the paper's banks do."""


def bank_size(settings: AdaptSettings, steps: int, batch: int) -> int:
    """Entries of the bank: those of a quarter of the run, within `BANK_STEPS`."""
    if settings.bank.size is not None:
        return settings.bank.size
    turnover = min(max(steps // 4, BANK_STEPS[0]), BANK_STEPS[1])
    return turnover * batch * (1 + settings.num_neighbors)


class T3AR(AdaptMethod):
    """T3AR: pseudo-labels by votes, contrast against keys and the retrieved images, and diversity.

    With labels, cross entropy and contrast alone; without classes, contrast alone. The equations are rebuilt from the
    supplement (docs/design/adaptation.md); `contrast.keys` has the readings of its memory bank.

    Args:
        settings: Settings of the adaptation.
        context: What the training loop provides.
        task: What the adaptation learns from.

    References:
        Zancato et al., "Train/Test-Time Adaptation with Retrieval", CVPR 2023.

    Example:
        >>> la.adapt(model="runs/birds", target="photos", pool=["archive"], method="t3ar")  # doctest: +SKIP
    """

    name = "t3ar"
    needs_classes = False
    mean: Tensor | None = None
    """Mean prediction of recent batches."""

    def __init__(self, settings: AdaptSettings, context: Context, task: AdaptTask) -> None:
        super().__init__(settings, context, task)
        strong_key = settings.contrast.positive_key == "strong"
        self.kinds = ("weak", "strong", "second") if strong_key else ("weak", "strong")
        self.learned = ("weak", "strong") if settings.cls_view == "weak" else ("strong",)
        if settings.contrast.keys == "momentum":
            if settings.cls_view == "weak":
                raise LookalikeError("With `contrast.keys: momentum` only strong views are classified; set `cls_view`.")
            self.add_key_model()
            self.key_kinds = ("weak", "second")
        size = bank_size(settings, context.steps, context.batch)
        fraction = settings.num_neighbors / (1 + settings.num_neighbors) if task.pool is not None else 0.0
        if task.pool is None and settings.bank.size is None:
            size //= 1 + settings.num_neighbors  # as many target entries as beside a pool
        self.bank = Bank(size, context.dim, max(task.classes, 1), len(task.ids), pool_fraction=fraction)
        self.pool_places = np.full(len(task.ids) + len(task.pool_ids), -1)
        self.pool_places[task.pool_numbers] = np.arange(len(task.pool_ids))
        self.friends = None if task.friends is None else torch.from_numpy(np.asarray(task.friends, np.int64))
        self.started = False
        self._enqueue: tuple[Any, ...] = ()

    def before_step(self) -> None:
        if not self.started:
            features, logits = self.all_outputs()
            order = numpy_rng(self.context.seed, "bank").permutation(len(features))[: len(self.bank.target.ids)]
            rows = torch.from_numpy(order)
            self.bank.push_target(features[rows], rows, logits[rows])
            self.started = True
        self.update_key_model()

    def on_epoch(self) -> None:
        self.bank.recount()
        if self.context.epoch and self.task.recluster and self.prototypes is not None:
            held = self.bank.counts > 0
            rows = torch.zeros(len(held), self.context.dim)
            rows.index_add_(0, self.bank.target.read("ids"), self.bank.target.read("rows"))
            old = self.prototypes.cpu().numpy()
            new = target_classes.recluster(rows[held].numpy(), old, self.context.seed)
            self.prototypes.copy_(torch.from_numpy(new))

    # ---- a step ----------------------------------------------------------------------------------

    def _retrieved(self, ids: np.ndarray) -> Columns | None:
        """The retrieved images of the batch, each once; without gradient, without a trace in the statistics."""
        assert self.task.neighbors is not None
        used = np.unique(self.task.neighbors[ids])
        used = used[used >= 0]
        if self.settings.contrast.pool_set == "none" or self.task.pool is None or not len(used):
            return None
        divided = len(used) >= distributed.world_size()
        rows = self.rows_of(
            self.task.pool(used[distributed.rank_slice(len(used))] if divided else used), model=self.key_model
        )
        features, logits = self.outputs(distributed.all_gather(rows) if divided else rows, model=self.key_model)
        self.task.receipts.load(used, self.context.step)
        return Columns(features, torch.from_numpy(self.task.pool_numbers[used]), logits.argmax(1), pool=True)

    def queries(self, ids: np.ndarray, labels: Tensor) -> ContrastQueries:
        """What the contrast must know of the images of a batch."""
        assert self.task.neighbors is not None and self.task.scores is not None
        lists, chosen, numbers = self.task.neighbors[ids], self.settings.contrast, self.task.pool_numbers
        numbers = np.where(lists >= 0, numbers[lists] if len(numbers) else -1, -1)
        barred = np.zeros(lists.shape, bool)
        if chosen.exclusion == "score":
            barred = self.task.scores[ids] >= chosen.exclusion_score
        elif chosen.exclusion == "rank":
            barred[:, : chosen.exclusion_rank] = True
        friends = None if self.friends is None else self.friends[ids]
        return ContrastQueries(
            torch.from_numpy(ids), labels, torch.from_numpy(numbers), torch.from_numpy(barred), friends
        )

    def _labels(self, weak: Tensor, ids: Tensor, logits: Tensor) -> Tensor:
        if self.true_labels is not None:
            return self.true_labels[ids]
        if not self.task.classes:
            return torch.zeros(len(ids), dtype=torch.int64)
        of_logits = self.settings.bank.mean_of == "logits"
        return votes(weak, ids, self.bank, logits, of_logits=of_logits, **dict(self.settings.labels)).argmax(1)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        chosen, ids = self.settings, batch.ids.numpy()
        query, logits = self.outputs(embeddings["strong"], learning=True)
        classify_weak = "weak" in self.learned
        weak, weak_logits = self.outputs(embeddings["weak"], learning=classify_weak, model=self.key_model)
        key = weak.detach()
        if "second" in embeddings:
            key = self.outputs(embeddings["second"], model=self.key_model)[0]
        pool = self._retrieved(ids)
        labels = self._labels(weak.detach(), batch.ids, weak_logits.detach())
        self.count_labels(labels)
        parts = {"contrast": self._contrast(query, key, self.queries(ids, labels), pool)}
        if self.task.classes:
            parts["labels"] = cross_entropy(weak_logits if classify_weak else logits, labels)
            if self.true_labels is None and chosen.diversity_scope != "off":
                mean = self.mean if chosen.diversity_scope == "ema" else None
                parts["diversity"] = adaptation.diversity_loss(logits, mean)
                now = logits.detach().softmax(1).mean(0)
                self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        features, stored_logits = (query, logits) if chosen.bank.view == "strong" else (weak, weak_logits)
        self._enqueue = (features.detach(), stored_logits.detach(), labels, batch.ids, pool)
        return self.weighted(parts)

    def _contrast(self, query: Tensor, key: Tensor, queries: ContrastQueries, pool: Columns | None) -> Tensor:
        chosen, columns = self.settings.contrast, []
        if chosen.keys == "xbn":
            self.bank.match_moments(key, None if pool is None else pool.rows)
        if chosen.keys != "batch":
            columns = self.bank.columns(self.true_labels, enqueued=self.settings.bank.label == "enqueued")
        if chosen.keys != "bank":
            columns.append(Columns(key, queries.ids, queries.labels, pool=False))
        if pool is not None and chosen.pool_current:
            columns.append(pool)
        by_class = chosen.exclude_class and self.task.classes > 0
        pseudo = chosen.exclusion == "pseudo" and self.task.classes > 0
        how: dict[str, Any] = {"tau": chosen.temperature, "pool_set": chosen.pool_set}
        loss, counts = contrastive(query, key, queries, columns, by_class=by_class, pseudo=pseudo, **how)
        for part, times in zip((part for part in columns if part.pool), counts, strict=True):
            self.task.receipts.count(self.pool_places[part.ids.numpy()], times.numpy())
        return loss.mean()

    def after_step(self) -> None:
        features, logits, labels, ids, pool = self._enqueue
        self.bank.push_target(features, ids, logits, labels)
        if pool is not None:
            self.bank.push_pool(pool.rows, pool.ids, pool.labels)
        self._enqueue = ()

    def own_state(self) -> dict[str, Any]:
        return {"bank": self.bank.state(), "mean": self.mean, "started": self.started}

    def set_own_state(self, state: dict[str, Any]) -> None:
        self.bank.set_state(state["bank"])
        self.mean, self.started = state["mean"], state["started"]
