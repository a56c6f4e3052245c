"""Margin loss with distance-weighted negative sampling, and its regularized form R-Margin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

MIN_DISTANCE = 0.5  # smaller distances are raised to this: nearer negatives would be drawn almost always


class Triplets(NamedTuple):
    """Row numbers in the batch, one triplet per anchor that has both a positive and a negative."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def log_weights(distances: Tensor, dim: int) -> Tensor:
    """Return log 1/q(D), where q is the density of distances of random points on the sphere in `dim` dimensions.

    (2−d) log D − ((d−3)/2) log(1 − D²/4), with D at least 0.5 (Wu et al. 2017, eq. 3 and 4).
    """
    d = distances.clamp(min=MIN_DISTANCE)
    rest = (1 - 0.25 * d * d).clamp(min=torch.finfo(d.dtype).eps)  # 0 up to rounding for opposite points
    return (2 - dim) * d.log() - 0.5 * (dim - 3) * rest.log()


@torch.no_grad()
def pair_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean distances (n, m) of unit vectors (n, d) and (m, d), without gradient."""
    return (2 - 2 * a @ b.T).clamp(min=0).sqrt()


def same_class(labels: Tensor) -> Tensor:
    """Return the mask (n, n) of pairs of different images of the same class."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def sample_by_distance(embeddings: Tensor, allowed: Tensor, noise: Tensor) -> Tensor:
    """Sample one allowed column per row with probability ∝ 1/q(D), by the Gumbel-max trick.

    `noise` (n, n) is uniform in [0, 1).
    """
    weights = log_weights(pair_distances(embeddings, embeddings), embeddings.shape[1])
    tiny = torch.finfo(noise.dtype).tiny
    gumbel = -(-noise.clamp(min=tiny).log()).clamp(min=tiny).log()
    return (weights + gumbel).masked_fill(~allowed, -torch.inf).argmax(1)


def sample_uniform(allowed: Tensor, noise: Tensor) -> Tensor:
    """Sample one allowed column per row, all equally likely; `noise` (n, n) is uniform in [0, 1)."""
    return noise.masked_fill(~allowed, -1).argmax(1)


def sample_triplets(embeddings: Tensor, labels: Tensor, noise: Tensor) -> Triplets:
    """Sample a uniform positive and a distance-weighted negative per anchor; `noise` (2, n, n) is uniform."""
    same, different = same_class(labels), labels[:, None] != labels[None, :]
    anchors = torch.nonzero(same.any(1) & different.any(1)).squeeze(1)
    positive, negative = sample_uniform(same, noise[0]), sample_by_distance(embeddings, different, noise[1])
    return Triplets(anchors, positive[anchors], negative[anchors])


def switch_negatives(triplets: Triplets, probability: float, noise: Tensor) -> Triplets:
    """Apply R-Margin's switch with p_switch: the anchor becomes its own positive, and its positive the negative.

    `noise` (n,) is uniform.
    """
    anchor, positive, negative = triplets
    switched = noise[anchor] < probability
    return Triplets(anchor, torch.where(switched, anchor, positive), torch.where(switched, positive, negative))


def margin_loss(embeddings: Tensor, triplets: Triplets, beta: Tensor, margin: float = 0.2) -> Tensor:
    """Return the mean of [D_ap − β + m]₊ + [β − D_an + m]₊ over the triplets with either term above zero.

    D = √(|·|² + 1e−8). pytorch-metric-learning divides by the number of positive terms instead.

    Args:
        embeddings: Unit embeddings.
        triplets: Rows of the batch.
        beta: Boundary of each triplet (β).
        margin: Distance that both kinds of pairs should keep from the boundary (m).

    Shape:
        - embeddings: ``(n, d)``; beta: ``(triplets,)``; output: scalar.

    References:
        Wu et al., ICCV 2017 (arXiv 1706.07567), eq. 5.

    Example:
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))
        >>> margin_loss(torch.eye(3), triplets, torch.tensor([1.2])).item() > 0
        True
    """
    anchor, positive, negative = (embeddings[rows] for rows in triplets)

    def distance(other: Tensor) -> Tensor:
        return ((anchor - other).square().sum(1) + 1e-8).sqrt()

    pos_term = (distance(positive) - beta + margin).clamp(min=0)
    neg_term = (beta - distance(negative) + margin).clamp(min=0)
    active = ((pos_term > 0) | (neg_term > 0)).sum()
    return (pos_term.sum() + neg_term.sum()) / active.clamp(min=1)


class MarginLoss(nn.Module):
    """Margin loss with a learned boundary β per class, and R-Margin.

    Args:
        num_classes: Number of classes.
        beta: Initial boundary between positive and negative distances.
        margin: Distance that both kinds of pairs should keep from the boundary (m).
        switch_probability: Probability that an anchor is pushed away from its own class (R-Margin); 0 is plain Margin.

    Shape:
        - embeddings: ``(n, d)`` unit vectors; labels: ``(n,)``; noise: ``(3, n, n)`` uniform numbers.
        - output: scalar.

    References:
        Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017 (arXiv 1706.07567), eq. 4 and 5.
        R-Margin: Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric
        Learning", ICML 2020 (arXiv 2002.08473), section 5.

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
        >>> MarginLoss(num_classes=2)(z, torch.tensor([0, 0, 1, 1]), torch.rand(3, 4, 4)).ndim
        0
    """

    def __init__(
        self, num_classes: int, beta: float = 1.2, margin: float = 0.2, switch_probability: float = 0.0
    ) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((num_classes,), float(beta)))
        self.margin, self.switch_probability = margin, switch_probability

    def forward(self, embeddings: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        triplets = sample_triplets(embeddings, labels, noise[:2])
        if self.switch_probability:
            triplets = switch_negatives(triplets, self.switch_probability, noise[2].diagonal())
        return self.from_triplets(embeddings, labels, triplets)

    def from_triplets(self, embeddings: Tensor, labels: Tensor, triplets: Triplets) -> Tensor:
        """Compute the loss of given triplets."""
        return margin_loss(embeddings, triplets, self.beta[labels[triplets.anchor]], self.margin)
