"""Graded folders: subsets of held-out images whose classes are known, drawn to calibrate ``shift place``.

They have from 2 to many images per class and from 2 to all classes. The distance from training is FID at matched sample
size in 64 principal components of the training images: in 1,280 dimensions the FID of a few hundred images is mostly
bias; in 64 the bias is c/n and cancels when both sides have n images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import numpy_thread_pool
from lookalike.shift.fid import frechet_distance
from lookalike.shift.neighbor_features import class_means, folder_features
from lookalike.shift.recall_estimate import GradedFolder

COMPONENTS, DRAWS, MATCHED = 64, 5, 500
MIN_IMAGES, MAX_IMAGES = 50, 1000  # of a folder
FAR_QUANTILE = 0.99  # fraction of held-out images that lie nearer to training than the limit
IMAGES_PER_CLASS = ((2.0, 3.5), (3.5, 5.5), (5.5, 10.0), (10.0, 20.0), (20.0, 60.0))
IMBALANCE = (0.0, 0.3, 0.8)  # standard deviation of the log of the class sizes
HALVINGS, PER_HALF, PER_WHOLE = 3, 50, 40  # folders of a half of the classes, and of all

Encode = Callable[[np.ndarray], np.ndarray]  # unit features → unit embeddings


@dataclass(frozen=True)
class TrainingReference:
    """Training images in their own principal components.

    Args:
        mean: Mean feature.
        basis: Principal components, shape ``(d, 64)``.
        rows: Some training images, projected.
    """

    mean: np.ndarray
    basis: np.ndarray
    rows: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, *, most: int = 2000, seed: int = 0) -> TrainingReference:
        """Principal components of at most ``most`` training images."""
        chosen = np.sort(numpy_rng(seed, "reference").permutation(len(features))[:most])
        rows = np.asarray(features[chosen], np.float64)
        mean = rows.mean(axis=0)
        _, vectors = np.linalg.eigh((rows - mean).T @ (rows - mean))
        basis = vectors[:, ::-1][:, :COMPONENTS].astype(np.float32)
        start = cls(mean.astype(np.float32), basis, np.empty(0))
        return cls(start.mean, basis, start.project(features[chosen]))

    def project(self, features: np.ndarray) -> np.ndarray:
        """Features in these components."""
        return np.asarray((features - self.mean) @ self.basis, np.float32)

    def distance(self, rows: np.ndarray, *, seed: int = 0) -> float:
        """Square root of the excess FID of projected rows over that between training images, mean of some draws."""
        size = max(2, min(len(rows), len(self.rows) // 2, MATCHED))
        values = []
        for draw in range(DRAWS):
            rng = numpy_rng(seed, "distance", draw)
            order = rng.permutation(len(self.rows))
            first, second = self.rows[order[:size]], self.rows[order[-size:]]
            other = rows[rng.permutation(len(rows))[:size]]
            values.append(frechet_distance(first, other) - frechet_distance(first, second))
        return float(np.sqrt(max(float(np.mean(values)), 0.0)))

    def nearest_distances(self, rows: np.ndarray, *, skip: int = 0) -> np.ndarray:
        """Distance of each image to its nearest training image, after the first ``skip``."""
        squares = np.square(rows).sum(axis=1)[:, None] + np.square(self.rows).sum(axis=1) - 2 * rows @ self.rows.T
        return np.asarray(np.sqrt(np.maximum(np.partition(squares, skip, axis=1)[:, skip], 0)))


@dataclass(frozen=True)
class LabeledFeatures:
    """Unit features before the head, one row per image; those of some rows also in other styles.

    Args:
        features: Features of all images.
        labels: Class codes.
        train: Row numbers of the training images.
        held: Row numbers of the held-out images.
        styles: Features of the rows ``styled`` by style.
        styled: Sorted row numbers.
    """

    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    held: np.ndarray
    styles: Mapping[str, np.ndarray] = field(default_factory=dict)
    styled: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def split_classes(self, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random halvings of the held-out classes."""
        names = np.unique(self.labels[self.held])
        if len(names) < 4 or len(self.held) < 2 * MIN_IMAGES:
            raise LookalikeError(
                f"{len(self.held)} held-out images of {len(names)} classes are too few to learn how far the model can "
                f"be trusted: {2 * MIN_IMAGES} images of 4 classes are needed."
            )
        rng = numpy_rng(seed, "halvings")
        orders = [rng.permutation(names) for _ in range(HALVINGS)]
        return [(np.sort(o[: len(o) // 2]), np.sort(o[len(o) // 2 :])) for o in orders]


def draw_folder(
    groups: Sequence[np.ndarray], means: np.ndarray, distances: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw one folder: random classes, classes at similar distance from training, or classes that look alike.

    Args:
        groups: Row numbers of each class.
        means: Mean feature of each class.
        distances: Distance of each mean from the mean of training.
        rng: Random generator.

    Returns:
        Sorted row numbers; None if no folder of enough images was drawn.
    """
    total = len(groups)
    for _ in range(100):
        least, most = IMAGES_PER_CLASS[int(rng.integers(len(IMAGES_PER_CLASS)))]
        per_class = float(np.exp(rng.uniform(np.log(least), np.log(most))))
        fewest, highest = max(2.0, MIN_IMAGES / per_class), min(float(total), MAX_IMAGES / per_class)
        if fewest > highest:
            continue
        count = int(np.clip(round(np.exp(rng.uniform(np.log(fewest), np.log(highest + 0.5)))), 2, total))
        rule = int(rng.integers(3))
        if rule == 0:
            order, first = rng.permutation(total), 0
        elif rule == 1:
            order, first = np.argsort(distances, kind="stable"), int(rng.integers(total - count + 1))
        else:
            center = means[int(rng.integers(total))]
            order, first = np.argsort(np.linalg.norm(means - center, axis=1), kind="stable"), 0
        chosen = order[first : first + count]
        spread = IMBALANCE[int(rng.integers(len(IMBALANCE)))]
        sizes = per_class * np.exp(spread * rng.standard_normal(count) - spread**2 / 2)
        parts = [rng.permutation(groups[k])[: max(1, round(size))] for k, size in zip(chosen, sizes, strict=True)]
        rows = rng.permutation(np.concatenate(parts))[:MAX_IMAGES]
        if len(rows) >= MIN_IMAGES:
            return np.sort(rows)
    return None


def grade_folders(
    images: LabeledFeatures, encode: Encode, *, seed: int = 0
) -> tuple[list[GradedFolder], TrainingReference, np.ndarray]:
    """Draw folders from halves of the held-out classes and from all of them, and grade them.

    A folder of a half is judged without its own classes; one of all classes without those of one half.

    Args:
        images: Labeled features.
        encode: The model's head.
        seed: Seed of the draws.

    Returns:
        The graded folders, the reference for distances, and the mean embeddings of the training classes.
    """
    features, labels, held = images.features, images.labels, images.held
    reference = TrainingReference.fit(features[images.train], seed=seed)
    center = features[images.train].mean(axis=0)
    vectors = encode(features)
    known = not np.isin(held, images.train).any()
    centers = class_means(vectors[images.train], labels[images.train]) if known else vectors[:0]
    drawn: list[tuple[np.ndarray, np.ndarray | None]] = []
    for number, (one, two) in enumerate(images.split_classes(seed)):
        plans = ((one, None, PER_HALF), (two, None, PER_HALF), (np.union1d(one, two), two, PER_WHOLE))
        for place, (classes, excluded, count) in enumerate(plans):
            groups = [held[labels[held] == code] for code in classes]
            means = np.stack([features[group].mean(axis=0) for group in groups])
            distances, rng = np.linalg.norm(means - center, axis=1), numpy_rng(seed, "folders", number, place)
            folders = (draw_folder(groups, means, distances, rng) for _ in range(count))
            drawn += [(rows, excluded) for rows in folders if rows is not None]

    def grade(rows: np.ndarray, excluded: np.ndarray | None) -> GradedFolder:
        columns, nearest_row = folder_features(vectors[rows], features[rows], centers)
        codes, own = np.unique(labels[rows]), labels[rows]
        classes, left_out = (tuple(part.tolist()) for part in (codes, codes if excluded is None else excluded))
        distance, recall = (
            reference.distance(reference.project(features[rows])),
            float((own[nearest_row] == own).mean()),
        )
        return GradedFolder(classes, left_out, len(codes), len(rows), distance, recall, tuple(columns.tolist()))

    with numpy_thread_pool() as pool:  # small matrices: a folder a core
        return list(pool.map(lambda one: grade(*one), drawn)), reference, centers


def far_limit(images: LabeledFeatures, reference: TrainingReference) -> float:
    """Distance to the nearest training image that 99 % of the held-out images stay below."""
    own = bool(np.isin(images.held, images.train).any())  # without a split each is its own nearest
    distances = reference.nearest_distances(reference.project(images.features[images.held]), skip=int(own))
    return float(np.quantile(distances, FAR_QUANTILE))
