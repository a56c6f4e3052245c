"""The memory bank of T3AR, and the pseudo-labels voted by its entries.

Target and pool entries are in two rings, so that a look-up for pseudo-labels reads target rows only. Several entries of
one target image share one vector of logits: their mean.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike.adaptation.contrast import Columns
from lookalike.memory.xbn import compute_moments, xbn_update

Refine = Literal["knn", "comatch", "self", "none"]
TOPK_BLOCK = 64
SHORT_LIST = 4  # times k columns are looked at before anything is looked up for every image


class Ring:
    """A first-in, first-out store of features, ids, a class each, and the logits of target entries.

    Args:
        size: Number of entries.
        dim: Dimension of the features.
        classes: Number of logits.
        dtype: Type of the features.
    """

    def __init__(self, size: int, dim: int, classes: int, dtype: torch.dtype) -> None:
        self.rows = torch.zeros(size, dim, dtype=dtype)
        self.ids = torch.full((size,), -1)
        self.labels = torch.full((size,), -1)
        self.logits = torch.zeros(size, classes, dtype=dtype)
        self.head, self.count = 0, 0

    def __len__(self) -> int:
        return self.count

    def read(self, name: str) -> Tensor:
        """A column of all entries, without a copy."""
        column: Tensor = getattr(self, name)
        return column[: self.count]

    def push(self, rows: Tensor, ids: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Store entries, at most as many as there is room for; returns ids and logits of those they replace."""
        size = len(self.ids)
        rows, ids, logits, labels = (x[max(0, len(x) - size) :] for x in (rows, ids, logits, labels))
        place = (self.head + torch.arange(len(ids))) % max(size, 1)
        old = place[place < self.count]
        replaced = self.ids[old].clone(), self.logits[old].clone()
        self.rows[place], self.ids[place], self.logits[place], self.labels[place] = rows, ids, logits, labels
        self.head, self.count = (self.head + len(ids)) % max(size, 1), min(size, self.count + len(ids))
        return replaced

    def match_moments(self, batch: Tensor) -> None:
        """Match the stored rows to the moments of a batch (XBN, eq. 6), and scale them to unit length again."""
        if len(batch) > 1 and self.count > 1:
            matched = xbn_update(self.rows[: self.count].double(), compute_moments(batch))
            self.rows[: self.count] = normalize(matched, dim=1).to(self.rows.dtype)


class Bank:
    """First-in, first-out memory of target and pool features.

    Args:
        size: Number of entries, target and pool together.
        dim: Dimension of the features.
        classes: Number of classes.
        images: Number of target images; their ids are 0 … images − 1, those of the pool lie above.
        pool_fraction: Fraction of the entries that is for pool images.
        dtype: Type of the features.

    References:
        T3AR, supplement A.2: memory bank of target and retrieved features.

    Example:
        >>> from lookalike.adaptation.bank import Bank
        >>> bank = Bank(4, dim=2, classes=3, images=5)
        >>> bank.push_target(torch.eye(2), torch.tensor([0, 1]), torch.zeros(2, 3))
        >>> len(bank)
        2
    """

    def __init__(
        self,
        size: int,
        dim: int,
        classes: int,
        images: int,
        *,
        pool_fraction: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        pool = round(pool_fraction * size)
        self.target, self.pool = Ring(max(1, size - pool), dim, classes, dtype), Ring(pool, dim, 0, dtype)
        self.sums = torch.zeros(images, classes, dtype=torch.float64)
        self.counts = torch.zeros(images, dtype=torch.int64)
        self.classes = torch.zeros(images, dtype=torch.int64)
        """Of each image, by its entries together."""

    def __len__(self) -> int:
        return len(self.target) + len(self.pool)

    def push_target(self, rows: Tensor, ids: Tensor, logits: Tensor, labels: Tensor | None = None) -> None:
        """Enqueue images of the target, oldest entries leaving first; `labels` are their classes as of now."""
        size = len(self.target.ids)
        gone, old = self.target.push(rows, ids, logits, logits.argmax(1) if labels is None else labels)
        ids, logits = ids[-size:], logits[-size:]
        for who, values, sign in ((gone, old, -1), (ids, logits, 1)):
            self.sums.index_add_(0, who, values.double(), alpha=sign)
            self.counts.index_add_(0, who, torch.full_like(who, sign))
            self.classes[who] = self.sums[who].argmax(1)

    def push_pool(self, rows: Tensor, ids: Tensor, guesses: Tensor) -> None:
        """Enqueue images of the pool. They have no logits; `guesses` only serve to leave likely ones out."""
        self.pool.push(rows, ids, rows[:, :0], guesses)

    def match_moments(self, target: Tensor, pool: Tensor | None) -> None:
        """Match the entries of each ring to the moments of its rows in the current batch."""
        self.target.match_moments(target)
        if pool is not None:
            self.pool.match_moments(pool)

    def recount(self) -> None:
        """Sums and counts from the entries themselves, so that rounding does not add up."""
        ids = self.target.read("ids")
        self.sums.zero_().index_add_(0, ids, self.target.read("logits").double())
        self.counts.zero_().index_add_(0, ids, torch.ones_like(ids))
        self.classes = self.sums.argmax(1)

    def probabilities(self, ids: Tensor, *, of_logits: bool = True) -> Tensor:
        """Of images: softmax of their entries' mean logits, or the mean of their softmaxes; 0 where none are."""
        counts = self.counts[ids][..., None]
        if of_logits:
            return (self.sums[ids] / counts.clamp(min=1)).softmax(-1) * (counts > 0)
        single = self.target.read("logits").double().softmax(1)
        sums = torch.zeros_like(self.sums).index_add_(0, self.target.read("ids"), single)
        return sums[ids] / counts.clamp(min=1)

    def columns(self, labels: Tensor | None = None, *, enqueued: bool = False) -> list[Columns]:
        """All entries, the target's first.

        The class of a target entry is that of its image's entries together, or `labels` by id, or what it was when
        it was enqueued.
        """
        by_id = self.classes if labels is None else labels
        target, pool = self.target, self.pool
        known = target.read("labels") if enqueued else by_id[target.read("ids")]
        out = [Columns(target.read("rows"), target.read("ids"), known, pool=False)]
        out.append(Columns(pool.read("rows"), pool.read("ids"), pool.read("labels"), pool=True))
        return [columns for columns in out if len(columns)]

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and numbers, for a checkpoint."""
        return {**{name: {**vars(getattr(self, name))} for name in ("target", "pool")}, "sums": self.sums}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in ("target", "pool"):
            vars(getattr(self, name)).update(state[name])
        ids = self.target.read("ids")
        self.sums, self.classes = state["sums"], state["sums"].argmax(1)
        self.counts.zero_().index_add_(0, ids, torch.ones_like(ids))


def exact_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their places, exactly: only the k blocks with the largest maxima can hold them."""
    k = min(k, scores.shape[1])
    blocks = scores.shape[1] // TOPK_BLOCK
    if blocks <= k:
        top = scores.topk(k, dim=1)
        return top.values, top.indices
    whole = scores[:, : blocks * TOPK_BLOCK].view(len(scores), blocks, TOPK_BLOCK)
    chosen = whole.amax(2).topk(k, dim=1).indices
    places = (chosen[:, :, None] * TOPK_BLOCK + torch.arange(TOPK_BLOCK)).flatten(1)
    rest = torch.arange(blocks * TOPK_BLOCK, scores.shape[1]).expand(len(scores), -1)
    places = torch.cat([places, rest], 1)
    top = scores.gather(1, places).topk(k, dim=1)
    return top.values, places.gather(1, top.indices)


def votes(
    weak: Tensor,
    own: Tensor,
    bank: Bank,
    logits: Tensor,
    *,
    refine: Refine = "knn",
    k: int = 10,
    dedupe: bool = True,
    self_vote: bool = False,
    of_logits: bool = True,
) -> Tensor:
    """Class probabilities of each image after its neighbors in the bank voted; argmax is the pseudo-label.

    With fewer than k eligible images those present vote; with none the model's own softmax is returned.

    Args:
        weak: Unit features of the batch.
        own: Ids of the batch.
        bank: The memory bank.
        logits: The model's logits.
        refine: How neighbors vote.
        k: Number of neighbors.
        dedupe: Each image votes once.
        self_vote: The image's own entries vote as well.
        of_logits: Average logits, not probabilities, over the entries of an image.

    Shape:
        - weak: ``(n, d)``; own: ``(n,)``; logits and output: ``(n, classes)``.
    """
    plain = logits.double().softmax(1)
    if refine == "none":
        return plain
    if refine == "self":
        return torch.where((bank.counts[own] > 0)[:, None], bank.probabilities(own, of_logits=of_logits), plain)
    ids = bank.target.read("ids")
    if not len(ids):
        return plain
    scores = weak @ bank.target.read("rows").T
    copies = dedupe and int(bank.counts.max()) > 1
    banned = None if self_vote else own
    if refine == "comatch":
        voters, scores = once_each(scores, ids) if copies else (ids, scores)
        if banned is not None:
            scores.masked_fill_(banned[:, None] == voters[None], -torch.inf)
        any_one = torch.isfinite(scores).any(1, keepdim=True)
        mixed = (scores.double() / 0.1).softmax(1).nan_to_num(0.0) @ bank.probabilities(voters, of_logits=of_logits)
        return torch.where(any_one, 0.9 * plain + 0.1 * mixed, plain)
    near, who = nearest_entries(scores, ids, k, banned, copies=copies)
    use = torch.isfinite(near)
    total = (bank.probabilities(who, of_logits=of_logits) * use[:, :, None]).sum(1)
    return torch.where(use.any(1, keepdim=True), total / use.sum(1).clamp(min=1)[:, None], plain)


def once_each(scores: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The different ids, and of each the largest score among its columns."""
    voters, place = torch.unique(ids, return_inverse=True)
    most = scores.new_full((len(scores), len(voters)), -torch.inf)
    return voters, most.scatter_reduce_(1, place.expand(len(scores), -1), scores, "amax")


def nearest_entries(
    scores: Tensor, ids: Tensor, k: int, banned: Tensor | None, *, copies: bool
) -> tuple[Tensor, Tensor]:
    """The k nearest of each row and whose they are, without the row's `banned` id; with `copies` every id once.

    A short list of the nearest columns is enough wherever it holds k different images. For the other rows the
    nearest entry of every image is looked up. Rows with fewer than k end in −inf.
    """
    near, index = exact_top_k(scores, SHORT_LIST * k)
    who = ids[index]
    out = torch.zeros_like(who, dtype=torch.bool) if banned is None else who == banned[:, None]
    if copies:
        out |= (who[:, :, None] == who[:, None, :]).tril(-1).any(2)
    near, order = near.masked_fill(out, -torch.inf).topk(min(k, near.shape[1]), dim=1)
    who = who.gather(1, order)
    short = torch.isinf(near[:, -1]).nonzero()[:, 0]
    if len(short) and len(ids) > index.shape[1]:
        whole, voters = scores[short], ids
        if copies:
            voters, whole = once_each(whole, ids)
        if banned is not None:
            whole.masked_fill_(banned[short, None] == voters[None], -torch.inf)
        values, place = exact_top_k(whole, k)
        near[short, : values.shape[1]], who[short, : values.shape[1]] = values, voters[place]
        near[short, values.shape[1] :] = -torch.inf
    return near, who
