"""Graded folders: subsets of held-out images with known recall, near and far from training.

A model's curve has two kinds of points: the model itself on its held-out classes, plain and in other styles, and the
recipe retrained on splits of growing difficulty, each on its own test side. The distance from training is FID at
matched sample size in 64 principal components of the training images: in 1,280 dimensions the FID of a few hundred
images is mostly bias; in 64 the bias is c/n from 100 images on and cancels when both sides have n images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import numpy_thread_pool
from lookalike.shift.fid import frechet_distance
from lookalike.shift.neighbor_features import class_means, neighbor_features
from lookalike.shift.recall_estimate import PLAIN, CurvePoint, GradedFolder

COMPONENTS, DRAWS, MATCHED = 64, 5, 500
MIN_TO_PLACE = 100  # images below which no number is given
FAR_QUANTILE = 0.99  # share of held-out images that lie nearer to training than the limit


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

    def distance(self, rows: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
        """(mean, standard deviation over draws) of the excess FID of projected rows."""
        size = matched_size(len(rows), len(self.rows))
        values = []
        for draw in range(DRAWS):
            rng = numpy_rng(seed, "distance", draw)
            order = rng.permutation(len(self.rows))
            first, second = self.rows[order[:size]], self.rows[order[-size:]]
            other = rows[rng.permutation(len(rows))[:size]]
            values.append(frechet_distance(first, other) - frechet_distance(first, second))
        return float(np.mean(values)), float(np.std(values))

    def nearest_distances(self, rows: np.ndarray) -> np.ndarray:
        """Distance of each image to its nearest training image."""
        squares = np.square(rows).sum(axis=1)[:, None] + np.square(self.rows).sum(axis=1) - 2 * rows @ self.rows.T
        return np.asarray(np.sqrt(np.maximum(squares, 0).min(axis=1)))


def matched_size(count: int, known: int) -> int:
    """Number of images compared on each side."""
    return max(2, min(count, known // 2, MATCHED))


MIN_IMAGES, MAX_IMAGES = 100, 1000  # images in a folder


@dataclass(frozen=True)
class Classes:
    """Classes to draw folders from.

    Args:
        rows: Row numbers of each class.
        means: Mean feature of each class.
        distance: Distance of each mean from the mean of training.
    """

    rows: Sequence[np.ndarray]
    means: np.ndarray
    distance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray, rows: np.ndarray, center: np.ndarray) -> Classes:
        """The classes among ``rows``, with the mean of training as ``center``."""
        groups = [rows[labels[rows] == code] for code in np.unique(labels[rows])]
        means = np.stack([features[group].mean(axis=0) for group in groups]) if groups else np.empty((0, 1))
        return cls(groups, means, np.linalg.norm(means - center, axis=1) if groups else np.empty(0))

    @property
    def images(self) -> int:
        return sum(map(len, self.rows))


def draw_folder(
    classes: Classes, rng: np.random.Generator, *, least: int = MIN_IMAGES, most: int = MAX_IMAGES
) -> np.ndarray:
    """Draw one folder: random classes, classes at similar distance from training, or classes that look alike.

    Size and number of classes are log-uniform, so that few classes with many images and many with few both occur.

    Args:
        classes: Classes to draw from.
        rng: Random generator.
        least: Minimum number of images.
        most: Maximum number of images.

    Returns:
        Sorted row numbers.
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
    """For every image: its nearest neighbor has its class, and it is a query (its class has other images)."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    is_hit = labels[scores.argmax(axis=1)] == labels
    return is_hit, np.isin(labels, np.flatnonzero(np.bincount(labels) > 1))


def folder_recall(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """(recall@1, queries) among the rows of a folder."""
    is_hit, is_query = hits(vectors, labels)
    return float(is_hit[is_query].mean()) if is_query.any() else 0.0, int(is_query.sum())


Encode = Callable[[np.ndarray], np.ndarray]  # unit features → unit embeddings
HALVINGS = 6
PER_HALF, PER_STYLE = 8, 4  # folders of a half of the classes: plain ones, and in each other style


@dataclass(frozen=True)
class LabeledFeatures:
    """Unit features before the head, one row per image; those of some rows also in other styles.

    Args:
        features: Features of all images.
        labels: Class codes.
        styles: Features of the rows ``styled`` by style.
        styled: Sorted row numbers.
    """

    features: np.ndarray
    labels: np.ndarray
    styles: Mapping[str, np.ndarray] = field(default_factory=dict)
    styled: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def by_style(self) -> dict[str, np.ndarray]:
        """Features of every style."""
        return {PLAIN: self.features, **self.styles}

    def style_rows(self, rows: np.ndarray, style: str) -> np.ndarray:
        """Positions of some rows among the features of a style."""
        return rows if style == PLAIN else np.searchsorted(self.styled, rows)


@dataclass(frozen=True)
class SplitPoint:
    """One split of the recipe's curve.

    Args:
        id: Number of the split.
        fid: FID between its sides.
        recall: Recall@1 of the retrained model on the test side.
        reference: Training side of the split.
        test: Images of the test side in the reference's components.
    """

    id: int
    fid: float
    recall: float
    reference: TrainingReference
    test: np.ndarray

    def distance(self, size: int) -> float:
        """Distance of the test side at the same number of images as the folder."""
        rows = self.test[numpy_rng(0, "split", self.id).permutation(len(self.test))[:size]]
        return self.reference.distance(rows)[0]


@dataclass(frozen=True)
class HeldOutModel:
    """A model and the images it was not trained on.

    Args:
        encode: Maps unit features to unit embeddings.
        train: Row numbers of the training images.
        held: Row numbers of the held-out images.
    """

    encode: Encode
    train: np.ndarray
    held: np.ndarray


def grade_folders(
    images: LabeledFeatures,
    model: HeldOutModel,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    plain: int = PER_HALF,
    styled: int = PER_STYLE,
    seed: int = 0,
    name: str = "",
) -> tuple[list[GradedFolder], TrainingReference, np.ndarray]:
    """Draw folders from each half of the held-out classes, plain and in every other style, and grade them.

    Args:
        images: Labeled features.
        model: The model and its held-out images.
        halves: Pairs of class subsets.
        plain: Plain folders per half.
        styled: Folders per half in each other style.
        seed: Seed of the draws.
        name: Distinguishes the draws of several models.

    Returns:
        The graded folders, the reference for distances, and the mean embeddings of the training classes.
    """
    reference = TrainingReference.fit(images.features[model.train], seed=seed)
    center = images.features[model.train].mean(axis=0)
    vectors = {style: model.encode(features) for style, features in images.by_style.items()}
    class_centers = training_class_means(images, model, vectors[PLAIN])
    drawn: list[tuple[np.ndarray, str]] = []
    for number, half in enumerate(half for pair in halves for half in pair):
        for style, count in [(PLAIN, plain), *((style, styled) for style in images.styles)]:
            known = model.held if style == PLAIN else images.styled
            rows = known[np.isin(images.labels[known], half)]
            classes = Classes.of(images.features, images.labels, rows, center)
            if classes.images < MIN_IMAGES or len(classes.rows) < 2:
                continue
            rng = numpy_rng(seed, "folders", name, number, style)
            drawn += [(draw_folder(classes, rng), style) for _ in range(count)]

    def measured(rows: np.ndarray, style: str) -> GradedFolder:
        """One folder: what its images tell, and the truth."""
        positions, labels = images.style_rows(rows, style), images.labels[rows]
        features, own = images.by_style[style][positions], vectors[style][positions]
        is_hit, is_query = hits(own, labels)
        value = float(is_hit[is_query].mean()) if is_query.any() else 0.0
        classes = np.setdiff1d(labels, images.labels[model.train])
        distance = root_fid(reference.distance(reference.project(features))[0])
        point = CurvePoint(distance, value, int(is_query.sum()), style, tuple(classes.tolist()))
        return GradedFolder(point, neighbor_features(own, features, class_centers), is_hit, is_query)

    with numpy_thread_pool() as pool:  # small matrices: a folder a core
        return list(pool.map(lambda one: measured(*one), drawn)), reference, class_centers


def training_class_means(images: LabeledFeatures, model: HeldOutModel, vectors: np.ndarray) -> np.ndarray:
    """Mean embeddings of the training classes; none where held-out and training images coincide."""
    if np.isin(model.held, model.train).any():
        return vectors[:0]
    return class_means(vectors[model.train], images.labels[model.train])


def root_fid(excess: float) -> float:
    """FID is a squared length; this is its root."""
    return float(np.sqrt(max(excess, 0.0)))


def random_halves(names: np.ndarray, count: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """``count`` random halvings of the classes."""
    out = []
    for _ in range(count):
        order = rng.permutation(names)
        middle = len(order) // 2
        out.append((np.sort(order[:middle]), np.sort(order[middle:])))
    return out


def class_halves(labels: np.ndarray, held: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random halvings of all classes, held out or not, so that folders of every model are divided the same way.

    Args:
        labels: Class codes.
        held: Row numbers of the held-out images.
        seed: Seed of the halvings.

    Returns:
        Pairs of class subsets.

    Raises:
        LookalikeError: If there are too few held-out images or classes.
    """
    names = np.unique(labels[held])
    if len(names) < 4 or len(held) < 2 * MIN_IMAGES:
        raise LookalikeError(
            f"{len(held)} held-out images of {len(names)} classes are too few to learn how far the model can be "
            f"trusted: {2 * MIN_IMAGES} images of 4 classes are needed."
        )
    rest = np.setdiff1d(np.unique(labels[labels >= 0]), names)
    rng = numpy_rng(seed, "halvings")
    both = zip(random_halves(names, HALVINGS, rng), random_halves(rest, HALVINGS, rng), strict=True)
    return [(np.union1d(a, c), np.union1d(b, d)) for (a, b), (c, d) in both]


def far_limit(images: LabeledFeatures, held: np.ndarray, reference: TrainingReference) -> float:
    """Distance to the nearest training image that 99 % of the held-out images stay below, in any style."""
    rows = [images.features[held], *images.styles.values()]
    return float(
        np.quantile(
            np.concatenate([reference.nearest_distances(reference.project(some)) for some in rows]), FAR_QUANTILE
        )
    )
