"""How far a folder lies from training: FID at matched sample size in 64 principal directions of training.

In 1,280 dimensions the FID of a few hundred images is mostly bias; in 64 the bias is c/n from 100 images on, and
the same for both sides of a comparison when both have n images. So every distance is one between n training
images and n others, less that between n training images and n more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.shift import fid

DIRECTIONS, DRAWS, MATCHED = 64, 5, 500
FEWEST = 100  # images below which no number is given
FAR = 0.99  # share of held-out images that lie nearer to training than the limit


@dataclass(frozen=True)
class Reference:
    """Training images in their own principal directions."""

    mean: np.ndarray
    basis: np.ndarray
    rows: np.ndarray
    """Some training images, projected."""

    @classmethod
    def of(cls, features: np.ndarray, *, most: int = 2000, seed: int = 0) -> Reference:
        chosen = np.sort(numpy_rng(seed, "reference").permutation(len(features))[:most])
        rows = np.asarray(features[chosen], np.float64)
        mean = rows.mean(axis=0)
        _, vectors = np.linalg.eigh((rows - mean).T @ (rows - mean))
        basis = vectors[:, ::-1][:, :DIRECTIONS].astype(np.float32)
        found = cls(mean.astype(np.float32), basis, np.empty(0))
        return cls(found.mean, basis, found.project(features[chosen]))

    def project(self, features: np.ndarray) -> np.ndarray:
        return np.asarray((features - self.mean) @ self.basis, np.float32)

    def distance(self, rows: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
        """(mean, standard deviation over draws) of the excess FID of projected rows."""
        size = matched(len(rows), len(self.rows))
        values = []
        for draw in range(DRAWS):
            rng = numpy_rng(seed, "distance", draw)
            order = rng.permutation(len(self.rows))
            first, second = self.rows[order[:size]], self.rows[order[-size:]]
            other = rows[rng.permutation(len(rows))[:size]]
            values.append(fid.between(first, other) - fid.between(first, second))
        return float(np.mean(values)), float(np.std(values))

    def gaps(self, rows: np.ndarray) -> np.ndarray:
        """Distance of each image to its nearest training image."""
        squares = np.square(rows).sum(axis=1)[:, None] + np.square(self.rows).sum(axis=1) - 2 * rows @ self.rows.T
        return np.asarray(np.sqrt(np.maximum(squares, 0).min(axis=1)))


def matched(count: int, known: int) -> int:
    """How many images are compared on each side."""
    return max(2, min(count, known // 2, MATCHED))
