"""How a set of embeddings fills its space, whatever they retrieve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lookalike.core.errors import LookalikeError

Floats = NDArray[np.float64]
FLOOR = 1e-12  # a singular value of zero has no logarithm
BLOCK = 2048


def structure(vectors: NDArray[np.floating], labels: NDArray[np.int64]) -> dict[str, float]:
    """All measures below of unit vectors and their classes; those that cannot be told of so few are left out."""
    x, y = np.asarray(vectors, np.float64), np.asarray(labels)
    if len(x) != len(y) or len(np.unique(y)) < 2:
        raise LookalikeError("The structure of embeddings needs a label each and at least 2 classes.")
    intra, inter = distances_within(x, y), distances_between(x, y)
    values = singular_values(x)
    covariance = np.maximum(np.linalg.eigvalsh(np.atleast_2d(np.cov(x, rowvar=False)))[::-1], 0)
    found = {
        "within": intra,
        "between": inter,
        "density": intra / inter if inter > 0 else float("nan"),
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
    return {name: value for name, value in found.items() if np.isfinite(value)}


def distances_within(x: Floats, labels: NDArray[np.int64]) -> float:
    """π_intra: mean over classes of the mean cosine distance of two of its members; classes of one have none."""
    out = []
    for label in np.unique(labels):
        own = x[labels == label]
        if (n := len(own)) > 1:  # Σ over pairs of cosines from the length of the sum
            total = own.sum(0)
            out.append(1 - (total @ total - np.vdot(own, own)) / (n * (n - 1)))
    return float(np.mean(out)) if out else float("nan")


def distances_between(x: Floats, labels: NDArray[np.int64]) -> float:
    """π_inter: mean cosine distance of two normalized class centers."""
    centers: Floats = np.stack([x[labels == label].mean(0) for label in np.unique(labels)])
    centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), FLOOR)
    return distances_within(centers, np.zeros(len(centers), np.int64))


def singular_values(x: Floats) -> Floats:
    """Of the embeddings as they are, not centered."""
    return np.asarray(np.linalg.svd(x, compute_uv=False), np.float64)


def spectral_decay(values: Floats, *, reverse: bool = False) -> float:
    """ρ: KL(U ‖ s) of the uniform distribution from the singular values that sum to 1 (reversed: KL(s ‖ U)).

    Zeros count as 1e−12 of the whole: they keep the measure finite, and large.
    """
    if not len(values) or not values.sum():
        return float("nan")
    shares = np.maximum(values / values.sum(), FLOOR)
    shares = shares / shares.sum()
    even = 1 / len(shares)
    if reverse:
        return float((shares * np.log(shares / even)).sum())
    return float((even * np.log(even / shares)).sum())


def uniformity(x: Floats, scale: float = 2.0) -> float:
    """log mean over pairs of exp(−2|zᵢ − zⱼ|²), Wang & Isola 2020; nothing of size n×n is stored."""
    total, n = 0.0, len(x)
    squares = (x * x).sum(1)
    for start in range(0, n, BLOCK):
        rows = slice(start, start + BLOCK)
        apart = squares[rows, None] + squares[None] - 2 * x[rows] @ x.T
        total += float(np.exp(-scale * np.maximum(apart, 0)).sum())
    return float(np.log((total - n) / (n * (n - 1))))


def alignment(x: Floats, labels: NDArray[np.int64]) -> float:
    """Mean |zᵢ − zⱼ|² over the pairs of one class."""
    total, pairs = 0.0, 0
    for label in np.unique(labels):
        own = x[labels == label]
        center = own.mean(0)
        total += 2 * len(own) * float(((own - center) ** 2).sum())  # Σ over ordered pairs
        pairs += len(own) * (len(own) - 1)
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
    """exp of the entropy of the eigenvalues that sum to 1."""
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
