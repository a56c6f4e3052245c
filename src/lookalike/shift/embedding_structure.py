"""Structural measures of a set of embeddings: how it fills the space, whatever it retrieves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lookalike.core.errors import LookalikeError

Floats = NDArray[np.float64]
FLOOR = 1e-12  # a singular value of zero has no logarithm
BLOCK = 2048


def structure(vectors: NDArray[np.floating], labels: NDArray[np.int64]) -> dict[str, float]:
    """All structural measures of some embeddings.

    Args:
        vectors: Unit embeddings of shape ``(n, d)``.
        labels: Class codes of shape ``(n,)``, at least 2 classes.

    Returns:
        Values by name: ``within``, ``between``, ``density``, four forms of ``spectral_decay``,
        ``zero_singular_values``, ``uniformity``, ``alignment``, ``power_law`` and ``effective_rank``;
        those that are undefined are left out.

    Raises:
        LookalikeError: If there are fewer than 2 classes, or values that are not finite.

    References:
        Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning", section 5.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
        >>> measures = structure(vectors, np.array([0, 0, 1, 1]))
        >>> round(measures["within"], 2)
        0.2
    """
    x, y = np.asarray(vectors, np.float64), np.asarray(labels)
    if len(x) != len(y) or len(np.unique(y)) < 2:
        raise LookalikeError("The structure of embeddings needs a label each and at least 2 classes.")
    if not np.isfinite(x).all():
        raise LookalikeError("The embeddings contain values that are not finite; check the model or lower its lr.")
    within, between = distances_within(x, y), distances_between(x, y)
    values = np.asarray(np.linalg.svd(x, compute_uv=False), np.float64)  # not centered
    covariance = np.maximum(np.linalg.eigvalsh(np.atleast_2d(np.cov(x, rowvar=False)))[::-1], 0)
    measures = {
        "within": within,
        "between": between,
        "density": within / between if between > 0 else float("nan"),
        "spectral_decay": spectral_decay(values),
        "spectral_decay_less_1": spectral_decay(values[1:]),
        "spectral_decay_less_9": spectral_decay(values[9:]),
        "spectral_decay_reversed": spectral_decay(values, reverse=True),
        "zero_singular_values": float((values <= FLOOR * values[0]).sum()),
        "uniformity": uniformity(x),
        "alignment": alignment(x, y),
        "power_law": power_law(covariance),
        "effective_rank": effective_rank(covariance),
    }
    return {name: value for name, value in measures.items() if np.isfinite(value)}


def distances_within(x: Floats, labels: NDArray[np.int64]) -> float:
    """π_intra: mean over classes of the mean cosine distance of two members; classes of one image have none."""
    out = []
    for label in np.unique(labels):
        members = x[labels == label]
        if (n := len(members)) > 1:  # Σ over pairs of cosines from the length of the sum
            total = members.sum(0)
            out.append(1 - (total @ total - np.vdot(members, members)) / (n * (n - 1)))
    return float(np.mean(out)) if out else float("nan")


def distances_between(x: Floats, labels: NDArray[np.int64]) -> float:
    """π_inter: mean cosine distance between two normalized class centers."""
    centers: Floats = np.stack([x[labels == label].mean(0) for label in np.unique(labels)])
    centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), FLOOR)
    return distances_within(centers, np.zeros(len(centers), np.int64))


def spectral_decay(values: Floats, *, reverse: bool = False) -> float:
    """ρ: KL divergence of the normalized singular values from the uniform distribution."""
    if not len(values) or not values.sum():
        return float("nan")
    fractions = np.maximum(values / values.sum(), FLOOR)
    fractions = fractions / fractions.sum()
    uniform = 1 / len(fractions)
    if reverse:
        return float((fractions * np.log(fractions / uniform)).sum())
    return float((uniform * np.log(uniform / fractions)).sum())


def uniformity(x: Floats, scale: float = 2.0) -> float:
    """Log of the mean over pairs of exp(−2|zᵢ − zⱼ|²), in blocks.

    References:
        Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity", eq. 6.
    """
    total, n = 0.0, len(x)
    squares = (x * x).sum(1)
    for start in range(0, n, BLOCK):
        rows = slice(start, start + BLOCK)
        apart = squares[rows, None] + squares[None] - 2 * x[rows] @ x.T
        total += float(np.exp(-scale * np.maximum(apart, 0)).sum())
    return float(np.log((total - n) / (n * (n - 1))))


def alignment(x: Floats, labels: NDArray[np.int64]) -> float:
    """Mean |zᵢ − zⱼ|² over the pairs of the same class (Wang and Isola 2020)."""
    total, pairs = 0.0, 0
    for label in np.unique(labels):
        members = x[labels == label]
        center = members.mean(0)
        total += 2 * len(members) * float(((members - center) ** 2).sum())  # Σ over ordered pairs
        pairs += len(members) * (len(members) - 1)
    return total / pairs if pairs else float("nan")


def power_law(eigenvalues: Floats) -> float:
    """Exponent of a power law through eigenvalues 10 … d/2 of the covariance, largest first; 0 is flat."""
    ranks = np.arange(10, len(eigenvalues) // 2 + 1)
    values = eigenvalues[ranks - 1] if len(ranks) else ranks
    known = values > FLOOR * eigenvalues[0]
    if known.sum() < 2:
        return float("nan")
    return float(-np.polyfit(np.log(ranks[known]), np.log(values[known]), 1)[0])


def effective_rank(eigenvalues: Floats) -> float:
    """Exponential of the entropy of the normalized eigenvalues."""
    fractions = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(np.exp(-(fractions * np.log(fractions)).sum()))
