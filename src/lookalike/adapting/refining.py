"""Pseudo-labels: the nearest pictures of the target vote, each picture once, however many entries it has."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lookalike.adapting.bank import Bank

Refine = Literal["knn", "comatch", "self", "none"]
BLOCK = 64


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
    """Probabilities of each picture after its neighbours voted; argmax is the pseudo-label.

    `weak` are unit features of the batch, `own` its ids. With fewer than k eligible pictures those present vote,
    with none the model's own softmax stands.
    """
    plain = logits.double().softmax(1)
    if refine == "none":
        return plain
    known = bank.probabilities(of_logits=of_logits)
    if refine == "self":
        return torch.where((bank.counts[own] > 0)[:, None], known[own], plain)
    ids = bank.target.read("ids")
    if not len(ids):
        return plain
    scores = weak.new_empty(len(weak), len(ids))
    start = 0
    for part in bank.target.slots():
        rows = bank.target.rows[part]
        torch.mm(weak, rows.T, out=scores[:, start : start + len(rows)])
        start += len(rows)
    voters = ids
    if dedupe and int(bank.counts.max()) > 1:
        voters, place = torch.unique(ids, return_inverse=True)
        most = scores.new_full((len(weak), len(voters)), -torch.inf)
        scores = most.scatter_reduce_(1, place.expand(len(weak), -1), scores, "amax")
    if not self_vote:
        scores.masked_fill_(own[:, None] == voters[None], -torch.inf)
    if refine == "comatch":
        any_one = torch.isfinite(scores).any(1, keepdim=True)
        mixed = (scores.double() / 0.1).softmax(1).nan_to_num(0.0) @ known[voters]
        return torch.where(any_one, 0.9 * plain + 0.1 * mixed, plain)
    near, index = best(scores, k)
    use = torch.isfinite(near)
    total = (known[voters[index]] * use[:, :, None]).sum(1)
    return torch.where(use.any(1, keepdim=True), total / use.sum(1).clamp(min=1)[:, None], plain)
