"""Graded folders: class subsets of held-out images, near and far from training, easy and hard to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookalike.core.errors import LookalikeError

LEAST, MOST = 100, 1000  # images in a folder


@dataclass(frozen=True)
class Classes:
    """Classes to make folders of: their rows, their mean features, and how far each lies from training."""

    rows: Sequence[np.ndarray]
    means: np.ndarray
    distance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray, rows: np.ndarray, center: np.ndarray) -> Classes:
        """The classes among `rows`, with the mean of training as `center`."""
        groups = [rows[labels[rows] == code] for code in np.unique(labels[rows])]
        means = np.stack([features[group].mean(axis=0) for group in groups]) if groups else np.empty((0, 1))
        return cls(groups, means, np.linalg.norm(means - center, axis=1) if groups else np.empty(0))

    @property
    def images(self) -> int:
        return sum(map(len, self.rows))


def draw(classes: Classes, rng: np.random.Generator, *, least: int = LEAST, most: int = MOST) -> np.ndarray:
    """Rows of one folder: classes at random, or neighbors in their distance from training, or all alike.

    Size and number of classes are log-uniform, so that few classes with many images and many with few both occur.
    """
    total = len(classes.rows)
    if classes.images < least or total < 2:
        raise LookalikeError(f"{classes.images} images of {total} classes are too few for a folder of {least}.")
    for _ in range(200):
        count = int(np.clip(np.exp(rng.uniform(np.log(2), np.log(total + 0.5))).round(), 2, total))
        size = int(np.exp(rng.uniform(np.log(least), np.log(most))))
        kind = int(rng.integers(3))
        if kind == 0:
            chosen = rng.permutation(total)[:count]
        elif kind == 1:
            first = int(rng.integers(total - count + 1))
            chosen = np.argsort(classes.distance, kind="stable")[first : first + count]
        else:
            one = classes.means[int(rng.integers(total))]
            chosen = np.argsort(np.linalg.norm(classes.means - one, axis=1), kind="stable")[:count]
        rows = np.concatenate([classes.rows[k] for k in chosen])
        if len(rows) >= least and size >= 3 * count:
            return np.sort(rng.permutation(rows)[:size])
    return np.sort(rng.permutation(np.concatenate(list(classes.rows)))[:most])


def hits(vectors: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whose nearest other image shows its class, who asks) of a folder; classes with one image do not ask."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    found = labels[scores.argmax(axis=1)] == labels
    return found, np.isin(labels, np.flatnonzero(np.bincount(labels) > 1))


def recall(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """(recall@1, queries) among the rows of a folder."""
    found, asked = hits(vectors, labels)
    return float(found[asked].mean()) if asked.any() else 0.0, int(asked.sum())
