"""DiVA's own parts: learning what makes an image itself, and keeping the heads from learning the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lookalike.losses.margin import Triplets, draw_any, draw_negatives, log_weights, pair_distances, same_class

FARTHEST = 1.4


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse(x: Tensor) -> Tensor:
    """The same values, the gradient turned round."""
    turned: Tensor = _Reverse.apply(x)
    return turned


def self_similarity(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float = 0.01) -> Tensor:
    """Noise contrast of an image's two views against the images of earlier batches.

    Milbich et al., "DiVA", ECCV 2020 (arXiv 2004.13458), eq. 5: each query's own key is the positive; the cosines to
    the queue are multiplied by the weights of distance-weighted sampling, normalized over the batch.
    """
    positive = (queries * keys).sum(1, keepdim=True)
    if not len(queue):
        return positive.sum() * 0
    weights = log_weights(pair_distances(queries, queue), queries.shape[1], FARTHEST).softmax(0)
    logits = torch.cat([positive, queries @ queue.T * weights], 1) / temperature
    return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def decorrelation(main: Tensor, other: Tensor) -> Tensor:
    """−mean (main ⊙ other)² over the batch and the dimensions, eq. 7; both come with their gradient reversed."""
    return -(main * functional.normalize(other, dim=1)).square().mean()


def shared_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> Triplets:
    """Of three classes: a negative by distance, and a positive of a third class. `noise` (2, n, n) is uniform."""
    other = labels[:, None] != labels[None, :]
    negative = draw_negatives(embeddings, other, noise[1])
    third = other & (labels[None, :] != labels[negative][:, None])
    anchors = torch.nonzero(third.any(1)).squeeze(1)
    return Triplets(anchors, draw_any(third, noise[0])[anchors], negative[anchors])


def intra_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> Triplets:
    """Three of one class. `noise` (2, n, n) is uniform."""
    same = same_class(labels)
    positive = draw_any(same, noise[0])
    rest = same.clone()
    rest[torch.arange(len(labels), device=labels.device), positive] = False
    anchors = torch.nonzero(rest.any(1)).squeeze(1)
    return Triplets(anchors, positive[anchors], draw_negatives(embeddings, rest, noise[1])[anchors])
