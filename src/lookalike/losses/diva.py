"""DiVA's auxiliary losses: self-supervised contrast, class-shared and intra-class triplets, and decorrelation.

Milbich et al., "DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning", ECCV 2020 (arXiv 2004.13458).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lookalike.losses import margin

MAX_DISTANCE = 1.4


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reverse_gradient(x: Tensor) -> Tensor:
    """Return `x` unchanged, with the sign of its gradient reversed."""
    return _ReverseGradient.apply(x)


def self_similarity_loss(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float = 0.01) -> Tensor:
    """Return the loss that contrasts the two views of an image against the keys of earlier batches.

    The cosines to the queue are multiplied by the weights of distance-weighted sampling, normalized over the batch;
    keys farther than 1.4 weigh nothing, and a key that is farther from all queries weighs the same for each.

    Args:
        queries: Unit embeddings of the first views.
        keys: Those of the second views, by the momentum copy.
        queue: Keys of earlier batches; if empty, the loss is 0.
        temperature: Temperature of the softmax.

    Shape:
        - queries and keys: ``(n, d)``; queue: ``(m, d)``.

    References:
        DiVA, eq. 5.

    Example:
        >>> z, queue = (torch.nn.functional.normalize(torch.randn(n, 8), dim=1) for n in (4, 16))
        >>> self_similarity_loss(z, z, queue).ndim
        0
    """
    positive = (queries * keys).sum(1, keepdim=True)
    if not len(queue):
        return positive.sum() * 0
    distances = margin.pair_distances(queries, queue)
    far = distances > MAX_DISTANCE
    weights = margin.log_weights(distances, queries.shape[1]).masked_fill(far, -torch.inf)
    weights = weights.masked_fill(far.all(0), 0.0).softmax(0)
    logits = torch.cat([positive, queries @ queue.T * weights], 1) / temperature
    return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def decorrelation_loss(main: Tensor, other: Tensor) -> Tensor:
    """Return −mean (main ⊙ normalized other)².

    Args:
        main: Embeddings of one head, with reversed gradient.
        other: Those of another head, likewise.

    Shape:
        - main and other: ``(n, d)``; output: scalar.

    References:
        DiVA, eq. 7.

    Example:
        >>> decorrelation_loss(torch.ones(2, 4), torch.ones(2, 4)).item()
        -0.25
    """
    return -(main * functional.normalize(other, dim=1)).square().mean()


def sample_shared_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> margin.Triplets:
    """Sample triplets of three classes: a distance-weighted negative and a positive of a third class.

    `noise` (2, n, n) is uniform.
    """
    different = labels[:, None] != labels[None, :]
    negative = margin.sample_by_distance(embeddings, different, noise[1])
    third = different & (labels[None, :] != labels[negative][:, None])
    anchors = torch.nonzero(third.any(1)).squeeze(1)
    return margin.Triplets(anchors, margin.sample_uniform(third, noise[0])[anchors], negative[anchors])


def sample_intra_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> margin.Triplets:
    """Sample triplets within one class; `noise` (2, n, n) is uniform."""
    same = margin.same_class(labels)
    positive = margin.sample_uniform(same, noise[0])
    rest = same.clone()
    rest[torch.arange(len(labels), device=labels.device), positive] = False
    anchors = torch.nonzero(rest.any(1)).squeeze(1)
    return margin.Triplets(anchors, positive[anchors], margin.sample_by_distance(embeddings, rest, noise[1])[anchors])
