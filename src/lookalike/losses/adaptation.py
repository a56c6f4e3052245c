"""Losses of adaptation without labels: diversity, entropy (TENT), information (SHOT), class confusion (MCC)."""

from __future__ import annotations

import torch
from torch import Tensor


def diversity(logits: Tensor, before: Tensor | None = None) -> Tensor:
    """Σ p̄ log(p̄ + 1e-8) of the batch's mean prediction; least where all classes are predicted equally often.

    `before` is a mean over earlier batches that p̄ is averaged with, for batches too small to speak for all.
    """
    mean = logits.softmax(1).mean(0)
    if before is not None:
        mean = 0.9 * before + 0.1 * mean
    return (mean * (mean + 1e-8).log()).sum()


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predictions: what TENT lowers."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def information(logits: Tensor) -> Tensor:
    """Mean entropy less the entropy of the mean, as SHOT computes both (logarithms of p + 1e-5)."""
    found = logits.softmax(1)
    mean = found.mean(0)
    own = -(found * (found + 1e-5).log()).sum(1).mean()
    return own + (mean * (mean + 1e-5).log()).sum()


def confusion(logits: Tensor, temperature: float = 2.5) -> Tensor:
    """Minimum class confusion: how much of the weighted class correlation lies beside the diagonal."""
    found = (logits / temperature).softmax(1)
    sure = 1 + (found * (found + 1e-5).log()).sum(1).exp().detach()
    sure = sure * len(sure) / sure.sum()
    pairs = (found * sure[:, None]).T @ found
    pairs = pairs / pairs.sum(1, keepdim=True)
    return (pairs.sum() - pairs.trace()) / pairs.shape[0]


def shot_labels(features: Tensor, logits: Tensor) -> Tensor:
    """SHOT's pseudo-labels: the nearest class centroid by cosine, among classes that were predicted at all, twice."""
    rows = torch.nn.functional.normalize(torch.cat([features, torch.ones_like(features[:, :1])], 1), dim=1)
    weights = logits.softmax(1)
    present = torch.bincount(logits.argmax(1), minlength=logits.shape[1]) > 0
    for _ in range(2):
        centroids = (weights.T @ rows) / (1e-8 + weights.sum(0))[:, None]
        likeness = rows @ torch.nn.functional.normalize(centroids, dim=1).T
        labels = likeness.masked_fill(~present, -torch.inf).argmax(1)
        weights = torch.nn.functional.one_hot(labels, logits.shape[1]).to(rows.dtype)
    return labels
