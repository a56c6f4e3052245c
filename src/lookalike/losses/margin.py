"""Margin with distance-weighted negatives, and R-Margin, which sometimes pushes a class apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

NEAREST = 0.5  # distances are taken as at least this: nearer negatives would be drawn almost always


class Triplets(NamedTuple):
    """Row numbers, one an anchor that has both a positive and a negative."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def log_weights(distances: Tensor, dim: int, farthest: float | None = None) -> Tensor:
    """log of 1/q(D): q is the density of distances between random points on the sphere in `dim` dimensions.

    (2−d) log D − ((d−3)/2) log(1 − D²/4), with D at least 0.5 and at most `farthest`.
    """
    d = distances.clamp(min=NEAREST, max=farthest)
    rest = (1 - 0.25 * d * d).clamp(min=torch.finfo(d.dtype).eps)  # opposite points: 0 up to rounding
    return (2 - dim) * d.log() - 0.5 * (dim - 3) * rest.log()


def pair_distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances between all rows of two sets of unit vectors, for drawing; without gradient."""
    with torch.no_grad():
        return (2 - 2 * a @ b.T).clamp(min=0).sqrt()


def same_class(labels: Tensor) -> Tensor:
    """Pairs of different rows of one class."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def draw_negatives(embeddings: Tensor, allowed: Tensor, noise: Tensor) -> Tensor:
    """One column a row among the allowed ones, with probability ∝ 1/q(D).

    `noise` (n, n) is uniform; the largest of log weight + Gumbel noise is a draw from the weights.
    """
    weights = log_weights(pair_distances(embeddings, embeddings), embeddings.shape[1])
    tiny = torch.finfo(noise.dtype).tiny
    gumbel = -(-noise.clamp(min=tiny).log()).clamp(min=tiny).log()
    return (weights + gumbel).masked_fill(~allowed, -torch.inf).argmax(1)


def draw_any(allowed: Tensor, noise: Tensor) -> Tensor:
    """One column a row among the allowed ones, all equally likely."""
    return noise.masked_fill(~allowed, -1).argmax(1)


def draw_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> Triplets:
    """For each anchor any other of its class, and a negative by distance. `noise` (2, n, n) is uniform."""
    same, other = same_class(labels), labels[:, None] != labels[None, :]
    anchors = torch.nonzero(same.any(1) & other.any(1)).squeeze(1)
    positive, negative = draw_any(same, noise[0]), draw_negatives(embeddings, other, noise[1])
    return Triplets(anchors, positive[anchors], negative[anchors])


def push_apart(triplets: Triplets, share: float, noise: Tensor) -> Triplets:
    """R-Margin's switch: with probability `share` an anchor becomes its own positive and its positive the negative.

    `noise` (n,) is uniform, a number for every row of the batch.
    """
    anchor, positive, negative = triplets
    switched = noise[anchor] < share
    return Triplets(anchor, torch.where(switched, anchor, positive), torch.where(switched, positive, negative))


def margin(embeddings: Tensor, triplets: Triplets, beta: Tensor, gap: float = 0.2) -> Tensor:
    """[D_ap − β + m]₊ + [β − D_an + m]₊, summed and divided by the triplets with either term above zero.

    `beta` has a value a triplet. D = √(|·|² + 1e−8). pytorch-metric-learning divides by the terms above zero instead.
    """
    anchor, positive, negative = (embeddings[rows] for rows in triplets)

    def distance(other: Tensor) -> Tensor:
        return ((anchor - other).square().sum(1) + 1e-8).sqrt()

    near = (distance(positive) - beta + gap).clamp(min=0)
    far = (beta - distance(negative) + gap).clamp(min=0)
    active = ((near > 0) | (far > 0)).sum()
    return (near.sum() + far.sum()) / active.clamp(min=1)


class Margin(nn.Module):
    """Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017 (arXiv 1706.07567), eq. 4 and 5.

    A boundary β a class is learned. R-Margin: Roth et al., "Revisiting Training Strategies and Generalization
    Performance in Deep Metric Learning", ICML 2020 (arXiv 2002.08473), section 5: `apart` is the probability.

        >>> Margin(classes=100)(embeddings, labels, noise)   # (n, d), (n,) in 0..99, (3, n, n) uniform → scalar
    """

    def __init__(self, classes: int, beta: float = 1.2, gap: float = 0.2, apart: float = 0.0) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((classes,), float(beta)))
        self.gap, self.apart = gap, apart

    def forward(self, embeddings: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        triplets = draw_triplets(embeddings, labels, noise[:2])
        if self.apart:
            triplets = push_apart(triplets, self.apart, noise[2].diagonal())
        return self.of(embeddings, labels, triplets)

    def of(self, embeddings: Tensor, labels: Tensor, triplets: Triplets) -> Tensor:
        """The loss of given triplets."""
        return margin(embeddings, triplets, self.beta[labels[triplets.anchor]], self.gap)
