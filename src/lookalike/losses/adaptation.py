"""Losses for adaptation without labels: diversity, entropy (TENT), information maximization (SHOT), confusion (MCC)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def diversity_loss(logits: Tensor, running_mean: Tensor | None = None) -> Tensor:
    """Return Σ p̄ log(p̄ + 1e-8) of the batch's mean prediction p̄, smallest where all classes are equally frequent.

    Args:
        logits: Logits of the batch.
        running_mean: Mean prediction of earlier batches, averaged with p̄ at weight 0.9, for small batches.

    Shape:
        - logits: ``(n, classes)``; running_mean: ``(classes,)``; output: scalar.

    References:
        SHOT (see :func:`information_maximization_loss`), its diversity term.

    Example:
        >>> round(diversity_loss(torch.zeros(4, 2)).item(), 4)
        -0.6931
    """
    mean = logits.softmax(1).mean(0)
    if running_mean is not None:
        mean = 0.9 * running_mean + 0.1 * mean
    return (mean * (mean + 1e-8).log()).sum()


def entropy_loss(logits: Tensor) -> Tensor:
    """Return the mean entropy of predictions.

    Args:
        logits: Logits of the batch.

    Shape:
        - logits: ``(n, classes)``; output: scalar.

    References:
        Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021 (arXiv 2006.10726).

    Example:
        >>> round(entropy_loss(torch.zeros(4, 2)).item(), 4)
        0.6931
    """
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def information_maximization_loss(logits: Tensor) -> Tensor:
    """Return the mean entropy minus the entropy of the mean prediction, with SHOT's log(p + 1e-5).

    Args:
        logits: Logits of the batch.

    Shape:
        - logits: ``(n, classes)``; output: scalar.

    References:
        Liang et al., "Do We Really Need to Access the Source Data? Source Hypothesis Transfer for Unsupervised Domain
        Adaptation", ICML 2020 (arXiv 2002.08546).

    Example:
        >>> information_maximization_loss(torch.randn(4, 2)).item() < 0
        True
    """
    probabilities = logits.softmax(1)
    mean = probabilities.mean(0)
    entropy = -(probabilities * (probabilities + 1e-5).log()).sum(1).mean()
    return entropy + (mean * (mean + 1e-5).log()).sum()


def class_confusion_loss(logits: Tensor, temperature: float = 2.5) -> Tensor:
    """Return the off-diagonal part of the entropy-weighted class correlation (minimum class confusion).

    Args:
        logits: Logits of the batch.
        temperature: Temperature of the softmax.

    Shape:
        - logits: ``(n, classes)``; output: scalar.

    References:
        Jin et al., "Minimum Class Confusion for Versatile Domain Adaptation", ECCV 2020 (arXiv 1912.03699).

    Example:
        >>> class_confusion_loss(100 * torch.eye(3)).item() < 1e-4
        True
    """
    probabilities = (logits / temperature).softmax(1)
    weights = 1 + (probabilities * (probabilities + 1e-5).log()).sum(1).exp().detach()
    weights = weights * len(weights) / weights.sum()
    correlation = (probabilities * weights[:, None]).T @ probabilities
    correlation = correlation / correlation.sum(1, keepdim=True)
    return (correlation.sum() - correlation.trace()) / correlation.shape[0]


def shot_pseudo_labels(features: Tensor, logits: Tensor) -> Tensor:
    """Return the class whose centroid is nearest by cosine, in two rounds; only predicted classes take part.

    Args:
        features: Features of the batch.
        logits: Its logits.

    Shape:
        - features: ``(n, d)``; logits: ``(n, classes)``; labels: ``(n,)``.

    References:
        SHOT (see :func:`information_maximization_loss`), self-supervised pseudo-labeling.

    Example:
        >>> shot_pseudo_labels(torch.eye(2), 5 * torch.eye(2)).tolist()
        [0, 1]
    """
    rows = functional.normalize(torch.cat([features, torch.ones_like(features[:, :1])], 1), dim=1)
    weights = logits.softmax(1)
    present = torch.bincount(logits.argmax(1), minlength=logits.shape[1]) > 0
    for _ in range(2):
        centroids = (weights.T @ rows) / (1e-8 + weights.sum(0))[:, None]
        sim = rows @ functional.normalize(centroids, dim=1).T
        labels = sim.masked_fill(~present, -torch.inf).argmax(1)
        weights = functional.one_hot(labels, logits.shape[1]).to(rows.dtype)
    return labels
