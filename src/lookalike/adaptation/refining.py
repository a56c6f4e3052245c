"""Pseudo-labels: the nearest images of the target vote, each image once, however many entries it has."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lookalike.adaptation.bank import Bank

Refine = Literal["knn", "comatch", "self", "none"]
BLOCK = 64
LIST = 4  # times k columns are looked at before anything is looked up for every image


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their places, exactly: only the k blocks with the largest maxima can hold them."""
    k = min(k, scores.shape[1])
    blocks = scores.shape[1] // BLOCK
    if blocks <= k:
        found = scores.topk(k, dim=1)
        return found.values, found.indices
    whole = scores[:, : blocks * BLOCK].view(len(scores), blocks, BLOCK)
    chosen = whole.amax(2).topk(k, dim=1).indices
    places = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    rest = torch.arange(blocks * BLOCK, scores.shape[1]).expand(len(scores), -1)
    places = torch.cat([places, rest], 1)
    found = scores.gather(1, places).topk(k, dim=1)
    return found.values, places.gather(1, found.indices)


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
    """Probabilities of each image after its neighbors voted; argmax is the pseudo-label.

    `weak` are unit features of the batch, `own` its ids. With fewer than k eligible images those present vote,
    with none the model's own softmax stands.
    """
    plain = logits.double().softmax(1)
    if refine == "none":
        return plain
    if refine == "self":
        return torch.where((bank.counts[own] > 0)[:, None], bank.probabilities(own, of_logits=of_logits), plain)
    ids = bank.target.read("ids")
    if not len(ids):
        return plain
    scores = weak.new_empty(len(weak), len(ids))
    start = 0
    for part in bank.target.slots():
        rows = bank.target.rows[part]
        torch.mm(weak, rows.T, out=scores[:, start : start + len(rows)])
        start += len(rows)
    copies = dedupe and int(bank.counts.max()) > 1
    banned = None if self_vote else own
    if refine == "comatch":
        voters, scores = once_each(scores, ids) if copies else (ids, scores)
        if banned is not None:
            scores.masked_fill_(banned[:, None] == voters[None], -torch.inf)
        any_one = torch.isfinite(scores).any(1, keepdim=True)
        mixed = (scores.double() / 0.1).softmax(1).nan_to_num(0.0) @ bank.probabilities(voters, of_logits=of_logits)
        return torch.where(any_one, 0.9 * plain + 0.1 * mixed, plain)
    near, who = nearest(scores, ids, k, banned, copies=copies)
    use = torch.isfinite(near)
    total = (bank.probabilities(who, of_logits=of_logits) * use[:, :, None]).sum(1)
    return torch.where(use.any(1, keepdim=True), total / use.sum(1).clamp(min=1)[:, None], plain)


def once_each(scores: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The different ids, and of each the largest score among its columns."""
    voters, place = torch.unique(ids, return_inverse=True)
    most = scores.new_full((len(scores), len(voters)), -torch.inf)
    return voters, most.scatter_reduce_(1, place.expand(len(scores), -1), scores, "amax")


def nearest(scores: Tensor, ids: Tensor, k: int, banned: Tensor | None, *, copies: bool) -> tuple[Tensor, Tensor]:
    """The k best of each row and whose they are, without the row's `banned` id; with `copies` every id once.

    A short list of the very best columns is enough wherever it holds k different images. For the other rows the
    best entry of every image is looked up. Rows with fewer than k end in −inf.
    """
    near, index = best(scores, LIST * k)
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
        found, place = best(whole, k)
        near[short, : found.shape[1]], who[short, : found.shape[1]] = found, voters[place]
        near[short, found.shape[1] :] = -torch.inf
    return near, who
