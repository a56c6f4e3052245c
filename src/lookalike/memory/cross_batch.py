"""Cross-batch memory: the batch is compared with the embeddings of past batches (XBM, XBN, AXBN).

Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; Ajanthan et al., "Adaptive Cross Batch
Normalization for Metric Learning". See docs/design/memory.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.losses import mined_supcon as supcon
from lookalike.losses.pml import PMLLoss
from lookalike.memory import pml_compat, xbn
from lookalike.memory.queue import BLOCK, EmbeddingQueue, WatchedRows

FORMAT = 1


class MemorySettings(xbn.DriftSettings):
    """Settings of the memory: the correction of drift, and what is compared."""

    batch_loss: bool = False
    """XBM*: add the loss within the batch."""
    weight: PositiveFloat = 1.0
    """XBM*: weight of the loss against the memory."""
    old_copies: bool = False
    """Count an image's own older copies as positives, as pytorch-metric-learning and the XBM paper's code do."""


class CrossBatchMemory(pml_compat.PMLCompatibleMemory):
    """Cross-batch memory for pair-based losses, with optional drift correction (XBM, XBN, AXBN).

    Keeps the last ``memory_size`` embeddings. At each step the stored embeddings are first matched to the moments of
    the current batch (``drift``), then the batch is enqueued, then the loss of the batch against the memory is
    returned. Stored embeddings and moments are constants: no gradient flows through them. A drop-in replacement of
    `pytorch_metric_learning.losses.CrossBatchMemory`; SupCon with or without a `PairMarginMiner` runs in a fused
    kernel.

    Args:
        loss: A loss of :mod:`lookalike.losses` or pytorch-metric-learning.
        embedding_size: Dimension of the embeddings.
        memory_size: Number of stored embeddings.
        miner: A miner of pytorch-metric-learning; None uses the loss's own, or all pairs.
        settings: Settings of the memory; or pass its fields as keywords.
        options: Fields of :class:`MemorySettings`; `drift` may also be None (XBM) or a module of your own that is
            called with the moments of the memory and the batch and returns (scale, shift).
        gather: Gather the batches of all processes; None: wherever another trainer than ours distributes.
        watch: Number of rows whose original form is kept for measuring drift.
        compat: ``"pml"`` reproduces pytorch-metric-learning bit by bit.

    Shape:
        - embeddings: ``(n, embedding_size)``; labels: ``(n,)``; ids: ``(n,)`` optional.
        - output: scalar.

    References:
        Wang et al., XBM, section 3; Ajanthan et al., eq. 6 and algorithm 1.

    Example:
        >>> from lookalike.losses import SupConLoss
        >>> memory = CrossBatchMemory(SupConLoss(0.1), embedding_size=8, memory_size=64, drift="xbn")
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 8), dim=1).requires_grad_()
        >>> memory(embeddings, torch.tensor([0, 0, 1, 1])).backward()
        >>> memory.count
        4
    """

    def __init__(
        self,
        loss: Any,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Any = None,
        *,
        settings: xbn.DriftSettings | None = None,
        gather: bool | None = None,
        watch: int = 0,
        compat: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if min(memory_size, embedding_size) < 1:
            raise LookalikeError("`memory_size` and `embedding_size` must be at least 1.")
        drift = options.pop("drift", None)
        custom = drift if isinstance(drift, nn.Module) else None
        if settings is None:
            name = "none" if drift is None or custom is not None else drift
            settings = MemorySettings.parse({"drift": name, **options}, "settings of the memory")
        if isinstance(loss, PMLLoss):  # a loss of lookalike.losses has a miner of its own
            loss, miner = loss.loss, loss.miner if miner is None else miner
        if compat is not None:
            choose(compat, ["pml"], "a library to be compatible with")
            if custom is not None or settings.drift != "none":
                raise LookalikeError('compat="pml" has no drift rule: leave out one of `compat` and `drift`.')
            self.check_loss_support(type(loss).__name__)
        self.loss, self.miner = loss, miner
        self.embedding_size, self.memory_size = embedding_size, memory_size
        self.compat, self.gather = compat, gather
        self.settings = settings
        self.comparison = settings if isinstance(settings, MemorySettings) else MemorySettings()
        self.drift: xbn.MomentFilter | xbn.ShrunkMoments | xbn.CustomRule | None = None
        if custom is not None:
            self.drift = xbn.CustomRule(custom)
        elif settings.drift == "shrink":
            self.drift = xbn.ShrunkMoments()
        elif settings.drift != "none":
            self.drift = xbn.MomentFilter(embedding_size, settings)
        self.corrects = True
        """Whether stored rows are matched to the target; the method that owns the memory may switch it off."""
        self.queue = EmbeddingQueue(
            memory_size, embedding_size, tracked=self.drift is not None, correction=settings.correction, watch=watch
        )
        self.curr_batch_idx = torch.zeros(0, dtype=torch.int64)
        self._warned = False
        self.register_load_state_dict_pre_hook(pml_compat.load_pml_state)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: pml_compat.IndicesTuple | None = None,
        enqueue_mask: Tensor | None = None,
        *,
        ids: Tensor | None = None,
    ) -> Tensor:
        """Correct the memory, enqueue the batch and return its loss against the memory.

        `indices_tuple`: further pairs or triplets, as positions in this batch. `enqueue_mask`: enqueue only these rows
        and compare the others with the memory. `ids` identify images, so that an image is not compared with itself.
        """
        if indices_tuple is not None and enqueue_mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive")
        self._check(embeddings, labels, enqueue_mask, ids)
        labels, mask, ids = self._to_device(embeddings.device, labels, enqueue_mask, ids)
        batch = gather_batch(embeddings, labels, ids, mask, gather=self._gathers())
        self._check_finite(batch.embeddings)
        with torch.no_grad(), torch.autocast(embeddings.device.type, enabled=False):
            slots = self._update(batch)
        value = self._memory_loss(batch, slots, indices_tuple)
        if not self.comparison.batch_loss:
            return value
        indices = pml_compat.mine_pairs(self.miner, batch.embeddings, batch.labels)  # the same within the batch (XBM*)
        if batch.ids is not None:
            indices = pml_compat.remove_same_images(indices, batch.ids, batch.ids)
        within = batch.scale_gradient(self.loss(batch.embeddings, batch.labels, indices))
        return within + self.comparison.weight * value

    def _update(self, batch: JointBatch) -> Tensor | None:
        """Correct the memory, then enqueue; returns the slot of every image, or None with a mask."""
        rows, labels, ids = batch.select(batch.mask)
        rows = rows.detach()
        self._correct_drift(rows, labels)
        if self.compat is not None and self.queue.base.dtype != rows.dtype:
            self.queue.base = self.queue.base.to(rows.dtype)
        slots = self._enqueue(rows, labels, ids)
        self.queue.step += 1
        return slots if batch.mask is None else None

    def _correct_drift(self, rows: Tensor, labels: Tensor) -> None:
        if self.drift is None or len(rows) < 2:
            return
        rows = rows.float()
        if isinstance(self.drift, xbn.MomentFilter):
            target = self.drift(self._batch_moments(rows, labels), len(rows))
            if self.corrects:
                self.queue.match_moments(target)
        elif isinstance(self.drift, xbn.CustomRule):
            stored = self.queue.moments()
            answer = self.drift(stored, rows)
            if stored is not None:
                self.queue.apply_affine(*answer)
        elif self.corrects and (stored := self.queue.moments()) is not None:
            mean, std = (noise * (1 + len(rows) / self.count) for noise in xbn.sampling_noise(rows, labels))
            self.queue.match_moments(self.drift(self._batch_moments(rows, labels), stored, (mean, std)))
        if self.settings.renorm == "store":
            self.queue.normalize()

    def _batch_moments(self, rows: Tensor, labels: Tensor) -> xbn.Moments:
        if self.settings.debias is None:
            return xbn.compute_moments(rows, self.settings.correction)
        mean, std = xbn.compute_moments(rows)
        return xbn.Moments(mean, std / xbn.class_balance_factor(labels, self.settings.debias))

    def _enqueue(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        self._warn_if_too_many(len(rows))
        start = self.queue.pointer
        self.curr_batch_idx = torch.arange(start, start + len(rows), device=rows.device) % self.memory_size
        self.queue.rebase_if_needed()
        return self.queue.write(rows.float() if self.compat is None else rows, labels, ids)

    def _memory_loss(self, batch: JointBatch, slots: Tensor | None, extra: pml_compat.IndicesTuple | None) -> Tensor:
        queue = self.queue
        settings = self._fused_settings() if extra is None and batch.embeddings.dtype != torch.float64 else None
        anchors = None if batch.mask is None else ~batch.mask
        if settings is not None and batch.world_size > 1:  # the kernel needs the queries of this process only
            own = torch.zeros_like(batch.labels, dtype=torch.bool)
            own[batch.own_rows] = True
            anchors = own if anchors is None else own & anchors
        embeddings, labels, ids = batch.select(anchors)
        slots = slots if slots is None or anchors is None else slots[anchors]
        if queue.count == 0:
            return batch.embeddings.sum() * 0
        if settings is not None:
            pairs = self._label_pairs(labels, None if self.comparison.old_copies else ids, slots)
            return self._fused_loss(settings, embeddings, *pairs, batch.world_size)
        if len(embeddings) == 0:
            return batch.embeddings.sum() * 0
        rows, row_labels = queue.read(slice(0, queue.count)).to(embeddings.dtype), queue.labels[: queue.count]
        if extra is not None and batch.world_size > 1:
            extra = tuple(distributed.group_gather(part + batch.own_rows.start)[0] for part in extra)
        indices = self.select_pairs(embeddings, labels, rows, row_labels, extra=extra, slots=slots)
        if ids is not None and not self.comparison.old_copies:
            indices = pml_compat.remove_same_images(indices, ids, queue.ids[: queue.count])
        return batch.scale_gradient(self.loss(embeddings, labels, indices, rows, row_labels))

    def _fused_settings(self) -> pml_compat.FusedSettings | None:
        return pml_compat.fused_settings(self.loss, self.miner) if self.queue.base.dtype == torch.float32 else None

    def _fused_loss(
        self, fused: pml_compat.FusedSettings, embeddings: Tensor, positives: Any, excluded: Any, world_size: int
    ) -> Tensor:
        """Mean over the queries with a loss above 0; the mean of the processes' gradients is that of the joint loss."""
        with torch.autocast(embeddings.device.type, enabled=False):
            queue, cosine = self.queue, self.settings.renorm != "none"
            queries, base = torch.nn.functional.normalize(embeddings.float(), dim=1), queue.base[: queue.count]
            norms = queue.norms() if cosine and not queue.tracked else None
            scale, shift = queue.affine_map() if queue.tracked else (None, None)
            references = supcon.References(base, scale, shift, norms, cosine)
            mined = supcon.mined_supcon(queries, references, positives, excluded, **fused._asdict())
            active = mined.losses > 0
            counts = torch.stack([active.sum(), mined.positives.sum().long(), mined.has_negatives.sum()])
            num_active, num_pos, num_neg = (distributed.group_sum(counts) if world_size > 1 else counts).tolist()
            # PML treats one pair of each kind as nothing to compare, but one query may have several negatives.
            if num_pos == num_neg == 1:
                number = supcon.count_negatives(queries, references, excluded, fused.margins.min_negative)
                num_neg = int(distributed.group_sum(counts.new_tensor(number))) if world_size > 1 else number
            value = queries.sum() * 0
            if num_active and num_pos and num_neg and max(num_pos, num_neg) > 1:
                value = torch.where(active, mined.losses, 0.0).sum() * (world_size / num_active)
        return value.to(embeddings.dtype)

    def _label_pairs(
        self, labels: Tensor, ids: Tensor | None, slots: Tensor | None
    ) -> tuple[supcon.Pairs, supcon.Pairs]:
        """The positives, and all pairs that are not negatives: same label, or the same image."""
        queue = self.queue
        excluded = supcon.equal_value_pairs(labels, queue.labels[: queue.count])
        other_image = torch.ones_like(excluded.rows, dtype=torch.bool)
        if slots is not None:
            other_image &= slots[excluded.queries] != excluded.rows
        if ids is not None:
            other_image &= ids[excluded.queries] != queue.ids[excluded.rows]
        positives = excluded.select(other_image)
        if ids is not None:
            excluded = supcon.merge_pairs(excluded, supcon.equal_value_pairs(ids, queue.ids[: queue.count]))
        return positives, excluded

    @torch.no_grad()
    def fill(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None) -> None:
        """Enqueue without a loss and without drift correction, as a warm start or a refresh."""
        self._check(embeddings, labels, None, ids)
        self._check_finite(embeddings)
        self._warn_if_too_many(len(embeddings))
        labels, _, ids = self._to_device(embeddings.device, labels, None, ids)
        for start in range(0, len(embeddings), BLOCK):
            part = slice(start, start + BLOCK)
            self._enqueue(embeddings[part], labels[part], None if ids is None else ids[part])

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """Enqueue `batch_size` rows; pytorch-metric-learning's name for `fill`."""
        self.fill(embeddings[:batch_size], labels[:batch_size])

    def reset_queue(self) -> None:
        """Empty the memory and reset the drift rule."""
        self.queue.reset()
        if self.drift is not None:
            self.drift.reset()

    def watched_rows(self) -> WatchedRows:
        """Return up to `watch` rows spread over the memory, as corrected now and as they were enqueued."""
        return self.queue.watched_rows()

    def drift_report(self) -> dict[str, Any]:
        """Return what the drift rule did so far: gain, mean gain and the equivalent window in steps."""
        return {} if self.drift is None else self.drift.report()

    @property
    def count(self) -> int:
        """Number of filled rows."""
        return self.queue.count

    @property
    def rows(self) -> Tensor:
        """A copy of the filled rows, as corrected now."""
        return self.queue.read(slice(0, self.count)).clone()

    @property
    def row_labels(self) -> Tensor:
        """A copy of the labels of the filled rows."""
        return self.queue.labels[: self.count].clone()

    @property
    def row_ids(self) -> Tensor:
        """A copy of the image ids of the filled rows; the smallest integer where there was none."""
        return self.queue.ids[: self.count].clone()

    def _gathers(self) -> bool:
        """By default where a process group is not that of our own loop, which passes joint batches."""
        if self.gather is None:
            return distributed.world_size() == 1 and distributed.group_size() > 1
        return self.gather and distributed.group_size() > 1

    def _check(self, embeddings: Tensor, labels: Tensor, mask: Tensor | None, ids: Tensor | None) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_size:
            shape = tuple(embeddings.shape)
            raise LookalikeError(f"Embeddings have the shape {shape}; this memory takes (n, {self.embedding_size}).")
        for what, column in (("labels", labels), ("enqueue_mask", mask), ("ids", ids)):
            if column is not None and column.shape != (len(embeddings),):
                raise LookalikeError(f"`{what}` has the shape {tuple(column.shape)} for {len(embeddings)} embeddings.")
            if column is not None and column.is_floating_point():
                raise LookalikeError(f"`{what}` has the type {column.dtype}; it must be an integer type.")

    def _to_device(
        self, device: torch.device, labels: Tensor, mask: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.queue.base.device != device:
            self.queue.to(device)
        labels = labels.to(device, torch.int64)
        mask = None if mask is None else mask.to(device, torch.bool)
        return labels, mask, None if ids is None else ids.to(device, torch.int64)

    def _warn_if_too_many(self, number: int) -> None:
        if number > self.memory_size and not self._warned:
            self._warned = True
            warn(f"{number} embeddings exceed the memory of {self.memory_size}; only the last ones are stored.")

    def _check_finite(self, rows: Tensor) -> None:
        """Check before anything changes: one such row would stay in the memory and spoil later steps."""
        if bad := int((~torch.isfinite(rows)).any(1).sum()):
            raise LookalikeError(
                f"Step {self.queue.step}: {bad} of {len(rows)} embeddings are not finite. The memory is unchanged; "
                "lower the learning rate, or check the images of this batch."
            )
        first = self.queue.step == 0 and self.compat is None
        if first and bool(((torch.linalg.vector_norm(rows.detach().float(), dim=1) - 1).abs() > 0.05).any()):
            warn("Embeddings are not of unit length: their lengths enter the moments; normalize them first.")

    def get_extra_state(self) -> dict[str, Any]:
        return {"format": FORMAT, "settings": self.settings.model_dump(), "corrects": self.corrects}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if state["format"] > FORMAT:
            raise LookalikeError(f"This memory was saved in format {state['format']}: update lookalike.")
        for name, value in state["settings"].items():
            own = getattr(self.settings, name, None)
            if own != value:
                raise LookalikeError(f"The memory was saved with {name}={value}, this one has {own}: use the same.")
        self.corrects = state["corrects"]


class JointBatch(NamedTuple):
    """The batch of all processes in the order of ranks; only the `own_rows` of this process carry a gradient."""

    embeddings: Tensor
    labels: Tensor
    ids: Tensor | None
    mask: Tensor | None
    own_rows: slice
    world_size: int

    def select(self, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return embeddings, labels and ids of some rows (None: of all)."""
        if mask is None:
            return self.embeddings, self.labels, self.ids
        return self.embeddings[mask], self.labels[mask], None if self.ids is None else self.ids[mask]

    def scale_gradient(self, loss: Tensor) -> Tensor:
        """Scale the gradient of a joint loss so that its mean over the processes is the true gradient."""
        return loss if self.world_size == 1 else loss.detach() + self.world_size * (loss - loss.detach())


def gather_batch(
    embeddings: Tensor, labels: Tensor, ids: Tensor | None, mask: Tensor | None, *, gather: bool
) -> JointBatch:
    """Gather the batches of all processes, or wrap that of this one."""
    if not gather:
        return JointBatch(embeddings, labels, ids, mask, slice(0, len(embeddings)), 1)
    rows, own = distributed.group_gather(embeddings)
    rows = torch.cat([rows[: own.start], embeddings, rows[own.stop :]])
    labels = distributed.group_gather(labels)[0]
    ids = None if ids is None else distributed.group_gather(ids)[0]
    mask = None if mask is None else distributed.group_gather(mask.to(torch.uint8))[0].bool()
    return JointBatch(rows, labels, ids, mask, own, distributed.group_size())
