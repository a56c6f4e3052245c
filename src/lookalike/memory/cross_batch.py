"""`CrossBatchMemory`: the batch is compared with the rows of past batches, kept up to date (XBM, XBN, AXBN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.losses.pml import PMLLoss
from lookalike.memory import drift as rules
from lookalike.memory import pairs
from lookalike.memory._gather import Joint, alone, gathered, gathered_tuple
from lookalike.memory.fused import fused_loss
from lookalike.memory.moments import Moments, moments, understatement
from lookalike.memory.pml_compat import LikePML, from_pml
from lookalike.memory.queue import BLOCK, Rows, Stale

FORMAT = 1
RENORM = ("loss", "store", "none")


class CrossBatchMemory(LikePML):
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
        choose(renorm, RENORM, "a way to normalize rows")
        if correction not in (0, 1):
            raise LookalikeError(f"`correction` is {correction}; it is 0 (divide by n) or 1 (by n − 1).")
        if isinstance(drift, str) and drift == "none":
            drift = None
        if isinstance(loss, PMLLoss):  # one of lookalike.losses brings its miner along
            loss, miner = loss.loss, loss.miner if miner is None else miner
        if compat is not None:
            choose(compat, ["pml"], "a library to be compatible with")
            if drift is not None:
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
        self.settings: dict[str, Any] = {"drift": drift if isinstance(drift, str | None) else type(drift).__name__}
        if drift == "axbn":
            self.settings |= {"q": q, "r": r, "p0": p0, "interval": interval, "interval_mode": interval_mode}
        elif drift == "ema":
            self.settings |= {"beta": beta}
        if drift is not None:
            self.settings |= {"debias": debias, "correction": correction, "renorm": renorm}
        self.queue = Rows(
            memory_size, embedding_size, tracked=self.drift is not None, correction=correction, watch=watch
        )
        self.curr_batch_idx = torch.zeros(0, dtype=torch.int64)
        self._warned = False
        self.register_load_state_dict_pre_hook(from_pml)

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
        """`embeddings` (n, d), `labels` (n,) integers, `ids` (n,) integers that name images; a scalar.

        With `enqueue_mask` its rows are stored and the others are compared with the memory; otherwise all
        rows are both. `indices_tuple` holds further pairs or triplets, as positions in this batch.
        """
        if indices_tuple is not None and enqueue_mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive")
        self._check(embeddings, labels, enqueue_mask, ids)
        labels, mask, ids = self._at(embeddings.device, labels, enqueue_mask, ids)
        make = gathered if self._gathers() else alone
        joint = make(embeddings, labels, ids, mask)
        self._finite(joint.embeddings)
        with torch.no_grad(), torch.autocast(embeddings.device.type, enabled=False):
            slots = self._remember(joint)
        value = self._memory_loss(joint, slots, indices_tuple)
        if self.batch_loss:
            value = self._batch_loss(joint) + self.memory_weight * value
        return value

    def _remember(self, joint: Joint) -> Tensor | None:
        """Adapt, then enqueue. The row of every image of the joint batch, None with a mask."""
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
            self.queue.normalize()

    def _batch_moments(self, rows: Tensor, labels: Tensor) -> Moments:
        if self.debias is None or self.debias is False:
            return moments(rows, self.correction)
        mean, std = moments(rows)
        return Moments(mean, std / understatement(labels, float(self.debias)))

    def _enqueue(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        self._warn_of(len(rows))
        start = self.queue.pointer
        self.curr_batch_idx = torch.arange(start, start + len(rows), device=rows.device) % self.memory_size
        self.queue.settle()
        return self.queue.write(rows.float() if self.compat is None else rows, labels, ids)

    # ---- the loss --------------------------------------------------------------------------------

    def _memory_loss(self, joint: Joint, slots: Tensor | None, given: pairs.Tuple | None) -> Tensor:
        queue = self.queue
        embeddings, labels, ids = joint.embeddings, joint.labels, joint.ids
        settings = self._fast() if given is None and embeddings.dtype != torch.float64 else None
        anchors = None if joint.mask is None else ~joint.mask
        if settings is not None and joint.parts > 1:  # the kernel needs this process's own queries only
            own = torch.zeros_like(labels, dtype=torch.bool)
            own[joint.mine] = True
            anchors = own if anchors is None else own & anchors
        if anchors is not None:
            embeddings, labels = embeddings[anchors], labels[anchors]
            ids = None if ids is None else ids[anchors]
            slots = None if slots is None else slots[anchors]
        if queue.count == 0:
            return joint.embeddings.sum() * 0
        if settings is not None:
            cosine = self.renorm != "none"
            return fused_loss(queue, settings, embeddings, labels, ids, slots, cosine=cosine, parts=joint.parts)
        if len(embeddings) == 0:
            return joint.embeddings.sum() * 0
        rows, row_labels = queue.read(slice(0, queue.count)).to(embeddings.dtype), queue.labels[: queue.count]
        if given is not None and joint.parts > 1:
            given = gathered_tuple(tuple(given), joint)
        found = self.compared(embeddings, labels, rows, row_labels, given, slots)
        if ids is not None:
            found = pairs.without_same(found, ids, queue.ids[: queue.count])
        return joint.share(self.loss(embeddings, labels, found, rows, row_labels))

    def _fast(self) -> pairs.Fast | None:
        return pairs.fast(self.loss, self.miner) if self.queue.base.dtype == torch.float32 else None

    def _batch_loss(self, joint: Joint) -> Tensor:
        """The same loss and miner inside the batch (XBM*)."""
        found = pairs.mine(self.miner, joint.embeddings, joint.labels, None, None)
        if joint.ids is not None:
            found = pairs.without_same(found, joint.ids, joint.ids)
        return joint.share(self.loss(joint.embeddings, joint.labels, found))

    # ---- around it -------------------------------------------------------------------------------

    @torch.no_grad()
    def fill(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None) -> None:
        """Enqueue without a loss and without adapting: a warm start, or the memory encoded anew."""
        self._check(embeddings, labels, None, ids)
        self._finite(embeddings)
        self._warn_of(len(embeddings))
        labels, _, ids = self._at(embeddings.device, labels, None, ids)
        for start in range(0, len(embeddings), BLOCK):
            part = slice(start, start + BLOCK)
            self._enqueue(embeddings[part], labels[part], None if ids is None else ids[part])

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """Enqueue `batch_size` rows; pytorch-metric-learning's name for `fill`."""
        self.fill(embeddings[:batch_size], labels[:batch_size])

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
        """The images' ids; those enqueued without one have the least integer."""
        return self.queue.ids[: self.count].clone()

    def _gathers(self) -> bool:
        """By itself wherever a process group is not that of our own loop, which hands over joint batches."""
        if self.gather is None:
            return distributed.world() == 1 and distributed.group() > 1
        return self.gather and distributed.group() > 1

    def _check(self, embeddings: Tensor, labels: Tensor, mask: Tensor | None, ids: Tensor | None) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_size:
            shape = tuple(embeddings.shape)
            raise LookalikeError(f"Embeddings have the shape {shape}; this memory takes (n, {self.embedding_size}).")
        for what, column in (("labels", labels), ("enqueue_mask", mask), ("ids", ids)):
            if column is not None and column.shape != (len(embeddings),):
                raise LookalikeError(f"`{what}` has the shape {tuple(column.shape)} for {len(embeddings)} embeddings.")
            if column is not None and column.is_floating_point():
                raise LookalikeError(f"`{what}` holds {column.dtype}; it must be whole numbers.")

    def _at(
        self, device: torch.device, labels: Tensor, mask: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Everything where the embeddings are, as whole numbers and truth values."""
        if self.queue.base.device != device:
            self.queue.to(device)
        labels = labels.to(device, torch.int64)
        mask = None if mask is None else mask.to(device, torch.bool)
        return labels, mask, None if ids is None else ids.to(device, torch.int64)

    def _warn_of(self, number: int) -> None:
        if number > self.memory_size and not self._warned:
            self._warned = True
            warn(f"{number} rows are more than the memory of {self.memory_size} holds; the last ones are kept.")

    def _finite(self, rows: Tensor) -> None:
        """Before anything is touched: one such row would stay in the memory and silence the loss of later steps."""
        if bool(torch.isfinite(rows).all()):
            return
        bad = int((~torch.isfinite(rows)).any(1).sum())
        raise LookalikeError(
            f"Step {self.queue.step}: {bad} of {len(rows)} embeddings are not finite. The memory is as it was; "
            "lower the learning rate, or look at the images of this batch."
        )

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
