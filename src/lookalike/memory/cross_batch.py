"""`CrossBatchMemory`: the batch is compared with the rows of past batches, kept up to date (XBM, XBN, AXBN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core import processes
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.losses.mined_supcon import References, count_negatives, equal_pairs, join, mined_supcon
from lookalike.memory import drift as rules
from lookalike.memory import pairs
from lookalike.memory.joint import Joint, alone, gathered, gathered_tuple
from lookalike.memory.moments import Moments, moments, understatement
from lookalike.memory.rows import Rows, Stale

FORMAT = 1
RENORM = ("loss", "store", "none")


class CrossBatchMemory(nn.Module):
    """A memory of embeddings around any loss and miner of pytorch-metric-learning; a drop-in for its class.

    One step: adapt the stored rows to the batch's moments (`drift`), enqueue the batch, take the loss of the
    batch against all filled rows but its own. Rows and moments are constants: no gradient goes through them.

        >>> memory = CrossBatchMemory(SupConLoss(0.1), 512, 29775, miner=PairMarginMiner(), drift="xbn")
        >>> memory(embeddings, labels, ids=ids).backward()   # (n, 512), (n,), (n,) → scalar
    """

    def __init__(
        self,
        loss: Any,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Any = None,
        *,
        drift: str | nn.Module | None = None,
        q: float = 1.0,
        r: float | str = 0.01,
        p0: float = 1.0,
        interval: int = 1,
        interval_mode: str = "gain",
        beta: float = 0.1,
        debias: float | None = None,
        correction: int = 0,
        renorm: str = "loss",
        batch_loss: bool = False,
        memory_weight: float = 1.0,
        gather: bool | None = None,
        watch: int = 0,
        compat: str | None = None,
    ) -> None:
        super().__init__()
        if memory_size < 1 or embedding_size < 1:
            raise LookalikeError(f"A memory of {memory_size} rows of {embedding_size} numbers holds nothing.")
        choose(renorm, RENORM, "a way to normalise rows")
        if correction not in (0, 1):
            raise LookalikeError(f"`correction` is {correction}; it is 0 (divide by n) or 1 (by n − 1).")
        if compat is not None:
            choose(compat, ["pml"], "a library to be compatible with")
            if drift not in (None, "none"):
                raise LookalikeError('compat="pml" repeats a library that has no drift rule: leave one of the two out.')
            self.check_loss_support(type(loss).__name__)
        self.loss, self.miner = loss, miner
        self.embedding_size, self.memory_size = embedding_size, memory_size
        self.compat, self.renorm, self.gather = compat, renorm, gather
        self.debias, self.correction = debias, correction
        self.batch_loss, self.memory_weight = batch_loss, memory_weight
        self.drift = rules.make(
            drift, embedding_size, beta=beta, q=q, r=r, p0=p0, interval=interval, interval_mode=interval_mode
        )
        self.settings = {
            "drift": drift if drift is None or isinstance(drift, str) else type(drift).__name__,
            **({"q": q, "r": r, "p0": p0, "interval": interval, "interval_mode": interval_mode}),
            **({"beta": beta, "debias": debias, "correction": correction, "renorm": renorm}),
        }
        self.queue = Rows(
            memory_size, embedding_size, tracked=self.drift is not None, correction=correction, watch=watch
        )
        self.curr_batch_idx = torch.zeros(0, dtype=torch.int64)
        self._warned = False
        self.register_load_state_dict_pre_hook(_from_pml)

    # ---- one step --------------------------------------------------------------------------------

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: pairs.Tuple | None = None,
        enqueue_mask: Tensor | None = None,
        *,
        ids: Tensor | None = None,
    ) -> Tensor:
        """`embeddings` (n, d), `labels` (n,) integers, `ids` (n,) integers that name pictures; a scalar.

        With `enqueue_mask` its rows are stored and the others are compared with the memory; otherwise all
        rows are both. `indices_tuple` holds further pairs or triplets, as positions in this batch.
        """
        if indices_tuple is not None and enqueue_mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive")
        self._check(embeddings, labels, enqueue_mask, ids)
        device = embeddings.device
        labels = labels.to(device)
        ids = None if ids is None else ids.to(device)
        if self.queue.base.device != device:
            self.queue.to(device)
        mask = None if enqueue_mask is None else enqueue_mask.to(device=device, dtype=torch.bool)
        make = gathered if self._gathers() else alone
        joint = make(embeddings, labels, ids, mask)
        self._finite(joint.embeddings)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            slots = self._remember(joint)
        value = self._memory_loss(joint, slots, indices_tuple)
        if self.batch_loss:
            value = self._batch_loss(joint) + self.memory_weight * value
        return value

    def _remember(self, joint: Joint) -> Tensor | None:
        """Adapt, then enqueue. The row of every picture of the joint batch, None with a mask."""
        rows, labels, ids = joint.embeddings.detach(), joint.labels, joint.ids
        if joint.mask is not None:
            rows, labels = rows[joint.mask], labels[joint.mask]
            ids = None if ids is None else ids[joint.mask]
        self._adapt(rows, labels)
        if self.compat is not None and self.queue.base.dtype != rows.dtype:
            self.queue.base = self.queue.base.to(rows.dtype)
        slots = self._enqueue(rows, labels, ids)
        self.queue.step += 1
        return slots if joint.mask is None else None

    def _adapt(self, rows: Tensor, labels: Tensor) -> None:
        if self.drift is None or len(rows) < 2:
            return
        rows = rows.float()
        if isinstance(self.drift, rules.Hook):
            stored = self.queue.moments()
            answer = self.drift(stored, rows)
            if stored is not None:
                self.queue.move_by(*answer)
        else:
            self.queue.move_to(self.drift(self._batch_moments(rows, labels), len(rows)))
        if self.renorm == "store":
            self.queue.normalise()

    def _batch_moments(self, rows: Tensor, labels: Tensor) -> Moments:
        if self.debias is None or self.debias is False:
            return moments(rows, self.correction)
        mean, std = moments(rows)
        return Moments(mean, std / understatement(labels, float(self.debias)))

    def _enqueue(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        if len(rows) > self.memory_size and not self._warned:
            self._warned = True
            warn(f"{len(rows)} rows are more than the memory of {self.memory_size} holds; the last ones are kept.")
        self.curr_batch_idx = (
            torch.arange(self.queue.pointer, self.queue.pointer + len(rows), device=rows.device) % self.memory_size
        )
        self.queue.settle()
        return self.queue.write(rows.float() if self.compat is None else rows, labels, ids)

    # ---- the loss --------------------------------------------------------------------------------

    def _memory_loss(self, joint: Joint, slots: Tensor | None, given: pairs.Tuple | None) -> Tensor:
        queue, mask = self.queue, joint.mask
        embeddings, labels, ids = joint.embeddings, joint.labels, joint.ids
        if queue.count == 0:
            return embeddings.sum() * 0
        settings = self._fast() if given is None and embeddings.dtype != torch.float64 else None
        chosen = torch.ones_like(labels, dtype=torch.bool) if mask is None else ~mask
        if settings is not None and joint.parts > 1:  # the kernel needs this process's own queries only
            away = torch.ones_like(chosen)
            away[joint.mine] = False
            chosen &= ~away
        whole = bool(chosen.all())
        if not whole:
            embeddings, labels = embeddings[chosen], labels[chosen]
            ids = None if ids is None else ids[chosen]
            slots = None if slots is None else slots[chosen]
        if settings is not None:
            return self._fused(settings, embeddings, labels, ids, slots, joint.parts)
        if len(embeddings) == 0:
            return joint.embeddings.sum() * 0
        rows = queue.read(slice(0, queue.count)).to(embeddings.dtype)
        row_labels = queue.labels[: queue.count]
        if given is not None and joint.parts > 1:
            given = gathered_tuple(tuple(given), joint)
        found = self._tuple(embeddings, labels, rows, row_labels, given, slots, ids)
        return joint.share(self.loss(embeddings, labels, found, rows, row_labels))

    def _fast(self) -> pairs.Fast | None:
        if self.queue.base.dtype != torch.float32:
            return None
        return pairs.fast(self.loss, self.miner)

    def _fused(
        self,
        settings: pairs.Fast,
        embeddings: Tensor,
        labels: Tensor,
        ids: Tensor | None,
        slots: Tensor | None,
        parts: int,
    ) -> Tensor:
        queue, count = self.queue, self.queue.count
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = torch.nn.functional.normalize(embeddings.float(), dim=1)
            hidden = equal_pairs(labels, queue.labels[:count])
            other = torch.ones_like(hidden.rows, dtype=torch.bool)
            if slots is not None:
                other &= slots[hidden.queries] != hidden.rows
            if ids is not None:
                other &= ids[hidden.queries] != queue.ids[hidden.rows]
            positives = hidden.keep(other)
            if ids is not None:
                hidden = join(hidden, equal_pairs(ids, queue.ids[:count]))
            references = self._references()
            mined = mined_supcon(queries, references, positives, hidden, **settings._asdict())
            above = mined.losses > 0
            totals = torch.stack([above.sum(), mined.positives.sum().long(), mined.has_negatives.sum()])
            counted, near, far = (processes.group_sum(totals) if parts > 1 else totals).tolist()
            if near == far == 1:  # one of each counts as nothing to compare, and one query may have several
                number = count_negatives(queries, references, hidden, settings.margins.negatives_above)
                far = int(processes.group_sum(torch.tensor(number))) if parts > 1 else number
            if counted and near and far and max(near, far) > 1:
                value = torch.where(above, mined.losses, 0.0).sum() * (parts / counted)
            else:
                value = queries.sum() * 0
        return value.to(embeddings.dtype)

    def _references(self) -> References:
        """The filled rows for the kernel."""
        queue, cosine = self.queue, self.renorm != "none"
        base = queue.base[: queue.count]
        if queue.plain:
            return References(base, lengths=queue.norms() if cosine else None, cosine=cosine)
        return References(base, *queue.map(), cosine=cosine)

    def _batch_loss(self, joint: Joint) -> Tensor:
        """The same loss and miner inside the batch (XBM*)."""
        found = pairs.mine(self.miner, joint.embeddings, joint.labels, None, None)
        found = pairs.without(found, None, joint.ids, joint.ids)
        return joint.share(self.loss(joint.embeddings, joint.labels, found))

    def _tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        rows: Tensor,
        row_labels: Tensor,
        given: pairs.Tuple | None,
        slots: Tensor | None,
        ids: Tensor | None,
    ) -> pairs.Tuple:
        found = pairs.mine(self.miner, embeddings, labels, rows, row_labels)
        found = pairs.without(found, slots, None, None)
        if given is not None:
            found = pairs.outer(found, given, labels, None if self.compat else slots)
        if ids is not None:
            found = pairs.without(found, None, ids, self.queue.ids[: len(rows)])
        return found

    # ---- around it -------------------------------------------------------------------------------

    @torch.no_grad()
    def fill(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None) -> None:
        """Enqueue without a loss and without adapting: a warm start, or the memory encoded anew."""
        self._check(embeddings, labels, None, ids)
        self._finite(embeddings)
        device = embeddings.device
        if self.queue.base.device != device:
            self.queue.to(device)
        self._enqueue(embeddings.detach(), labels.to(device), None if ids is None else ids.to(device))

    def reset_queue(self) -> None:
        """Empty: rows, filter and pointer."""
        self.queue.reset()
        if self.drift is not None:
            self.drift.reset()

    def stale(self) -> Stale:
        """Up to `watch` rows spread over the memory, as adapted now and as they were enqueued."""
        return self.queue.stale()

    def filter_report(self) -> dict[str, Any]:
        """What the drift rule did so far: the gain, its mean, the window in steps that it amounts to."""
        return {} if self.drift is None else self.drift.report()

    @property
    def count(self) -> int:
        """How many rows are filled."""
        return self.queue.count

    @property
    def rows(self) -> Tensor:
        """The filled rows as adapted now, a copy."""
        rows = self.queue.read(slice(0, self.count))
        return rows.clone() if self.queue.plain else rows

    @property
    def row_labels(self) -> Tensor:
        return self.queue.labels[: self.count].clone()

    @property
    def row_ids(self) -> Tensor:
        """The pictures' ids; those enqueued without one have the least integer."""
        return self.queue.ids[: self.count].clone()

    def _gathers(self) -> bool:
        """By itself wherever a process group is not that of our own loop, which hands over joint batches."""
        if self.gather is None:
            return processes.world() == 1 and processes.group() > 1
        return self.gather and processes.group() > 1

    def _check(self, embeddings: Tensor, labels: Tensor, mask: Tensor | None, ids: Tensor | None) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_size:
            shape = tuple(embeddings.shape)
            raise LookalikeError(f"Embeddings have the shape {shape}; this memory takes (n, {self.embedding_size}).")
        for what, column in (("labels", labels), ("enqueue_mask", mask), ("ids", ids)):
            if column is not None and column.shape != (len(embeddings),):
                raise LookalikeError(f"`{what}` has the shape {tuple(column.shape)} for {len(embeddings)} embeddings.")

    def _finite(self, rows: Tensor) -> None:
        """Before anything is touched: one such row would stay in the memory and silence the loss of later steps."""
        if bool(torch.isfinite(rows).all()):
            return
        bad = int((~torch.isfinite(rows)).any(1).sum())
        raise LookalikeError(
            f"Step {self.queue.step}: {bad} of {len(rows)} embeddings are not finite. The memory is as it was; "
            "lower the learning rate, or look at the pictures of this batch."
        )

    # ---- as pytorch-metric-learning's class ------------------------------------------------------

    @staticmethod
    def supported_losses() -> list[str]:
        """Those that pytorch-metric-learning lets in; we take any unless `compat` is set."""
        from pytorch_metric_learning.losses import CrossBatchMemory as Theirs

        return list(Theirs.supported_losses())

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        if loss_name not in cls.supported_losses():
            raise LookalikeError(
                f"pytorch-metric-learning's memory does not take {loss_name}; without compat ours does."
            )

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """Enqueue the first `batch_size` rows."""
        self._enqueue(embeddings.detach()[:batch_size], labels[:batch_size], None)

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: pairs.Tuple | None,
        do_remove_self_comparisons: bool,
    ) -> pairs.Tuple:
        slots = self.curr_batch_idx if do_remove_self_comparisons else None
        return self._tuple(embeddings, labels, E_mem, L_mem, input_indices_tuple, slots, None)

    @property
    def embedding_memory(self) -> Tensor:
        """All rows as adapted now, zeros where none is stored. To change them, assign."""
        if self.queue.plain:
            return self.queue.base
        rows = self.queue.read(slice(None))
        rows[self.count :] = 0
        return rows

    @embedding_memory.setter
    def embedding_memory(self, rows: Tensor) -> None:
        if rows.shape != self.queue.base.shape:
            raise LookalikeError(f"The memory has the shape {tuple(self.queue.base.shape)}, not {tuple(rows.shape)}.")
        queue = self.queue
        queue.base = rows.detach().clone() if self.compat else rows.detach().float().clone()
        queue.scale.fill_(1.0)
        queue.shift.zero_()
        queue.recount()
        queue.rebase()

    @property
    def label_memory(self) -> Tensor:
        return self.queue.labels

    @label_memory.setter
    def label_memory(self, labels: Tensor) -> None:
        self.queue.labels = labels.detach().to(torch.int64).clone()

    @property
    def queue_idx(self) -> int:
        return self.queue.pointer

    @queue_idx.setter
    def queue_idx(self, value: int) -> None:
        full = self.has_been_filled
        self.queue.pointer = value
        if not full:
            self._set_count(value)

    @property
    def has_been_filled(self) -> bool:
        return self.queue.count == self.memory_size

    @has_been_filled.setter
    def has_been_filled(self, value: bool) -> None:
        self._set_count(self.memory_size if value else self.queue.pointer)

    def _set_count(self, value: int) -> None:
        self.queue.count = value
        self.queue.recount()

    def get_extra_state(self) -> dict[str, Any]:
        return {"format": FORMAT, "settings": self.settings}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if state["format"] > FORMAT:
            raise LookalikeError(f"This memory was saved in format {state['format']}: update lookalike.")
        other = {k: v for k, v in state["settings"].items() if self.settings.get(k) != v}
        if other:
            name, value = next(iter(other.items()))
            raise LookalikeError(
                f"The memory was saved with {name}={value}, this one has {self.settings.get(name)}: make it alike."
            )


def _from_pml(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A checkpoint of pytorch-metric-learning's class: rows and labels, but not how far it was filled."""
    if f"{prefix}embedding_memory" not in state or not isinstance(module, CrossBatchMemory):
        return
    rows = state.pop(f"{prefix}embedding_memory")
    labels = state.pop(f"{prefix}label_memory")
    stored = torch.nonzero(rows.any(1)).flatten()
    count = int(stored[-1]) + 1 if len(stored) else 0
    queue = module.queue
    queue.reset()
    if module.drift is not None:
        module.drift.reset()
    module.label_memory = labels.to(queue.labels.device)
    queue.count, queue.pointer = count, count % module.memory_size
    module.embedding_memory = rows.to(queue.base.device)
    for part, name in ((module, ""), (module.queue, "queue."), (module.drift, "drift.")):
        if part is not None:
            state |= {f"{prefix}{name}{key}": value for key, value in part.state_dict().items()}
    warn(
        f"A memory of pytorch-metric-learning does not say how far it was filled: {count:,} of {len(rows):,} rows "
        "are taken as filled, and the next batch goes after them."
    )
