"""GradedFolder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.screening import numpy_thread_pool
from lookalike.shift.fid import frechet_distance
from lookalike.shift.neighbor_features import class_means, evidence
from lookalike.shift.recall_estimate import PLAIN, CurvePoint, GradedFolder

DIRECTIONS, DRAWS, MATCHED = 64, 5, 500
FEWEST = 100  # images below which no number is given
FAR = 0.99  # share of held-out images that lie nearer to training than the limit


@dataclass(frozen=True)
class TrainingReference:
    """Training images in their own principal directions."""

    mean: np.ndarray
    basis: np.ndarray
    rows: np.ndarray
    """Some training images, projected."""

    @classmethod
    def fit(cls, features: np.ndarray, *, most: int = 2000, seed: int = 0) -> TrainingReference:
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
            values.append(frechet_distance(first, other) - frechet_distance(first, second))
        return float(np.mean(values)), float(np.std(values))

    def gaps(self, rows: np.ndarray) -> np.ndarray:
        """Distance of each image to its nearest training image."""
        squares = np.square(rows).sum(axis=1)[:, None] + np.square(self.rows).sum(axis=1) - 2 * rows @ self.rows.T
        return np.asarray(np.sqrt(np.maximum(squares, 0).min(axis=1)))


def matched(count: int, known: int) -> int:
    """How many images are compared on each side."""
    return max(2, min(count, known // 2, MATCHED))


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


Encode = Callable[[np.ndarray], np.ndarray]  # unit features → unit embeddings
HALVINGS = 6
PER_HALF, PER_LOOK = 8, 4  # folders of a half of the classes: plain ones, and in each other look


@dataclass(frozen=True)
class Images:
    """Unit features before the head, a row an image; those of some rows also in other looks."""

    features: np.ndarray
    labels: np.ndarray
    looks: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Features of the rows `styled` in other looks."""
    styled: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Sorted row numbers."""

    @property
    def seen(self) -> dict[str, np.ndarray]:
        """The features of every look."""
        return {PLAIN: self.features, **self.looks}

    def places(self, rows: np.ndarray, look: str) -> np.ndarray:
        """Where among a look's features those of some rows are."""
        return rows if look == PLAIN else np.searchsorted(self.styled, rows)


@dataclass(frozen=True)
class SplitPoint:
    """One split of the recipe's curve: how well the retrained model does, and how far its test side lies."""

    id: int
    fid: float
    recall: float
    reference: TrainingReference
    test: np.ndarray
    """Images of the test side in the reference's directions."""

    def distance(self, size: int) -> float:
        """At the same number of images as the folder."""
        rows = self.test[numpy_rng(0, "split", self.id).permutation(len(self.test))[:size]]
        return self.reference.distance(rows)[0]


@dataclass(frozen=True)
class Model:
    """A model and the side of the images it was not trained on."""

    encode: Encode
    train: np.ndarray
    held: np.ndarray


def grade_folders(
    images: Images,
    model: Model,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    plain: int = PER_HALF,
    styled: int = PER_LOOK,
    seed: int = 0,
    name: str = "",
) -> tuple[list[GradedFolder], TrainingReference, np.ndarray]:
    """Folders of each half of the held-out classes, plain and in every other look, measured; what distances are from,
    and the classes of training."""
    reference = TrainingReference.fit(images.features[model.train], seed=seed)
    center = images.features[model.train].mean(axis=0)
    vectors = {look: model.encode(features) for look, features in images.seen.items()}
    kinds = training_class_means(images, model, vectors[PLAIN])
    drawn: list[tuple[np.ndarray, str]] = []
    for number, half in enumerate(half for pair in halves for half in pair):
        for look, count in [(PLAIN, plain), *((look, styled) for look in images.looks)]:
            known = model.held if look == PLAIN else images.styled
            rows = known[np.isin(images.labels[known], half)]
            classes = Classes.of(images.features, images.labels, rows, center)
            if classes.images < LEAST or len(classes.rows) < 2:
                continue
            rng = numpy_rng(seed, "folders", name, number, look)
            drawn += [(draw(classes, rng), look) for _ in range(count)]

    def measured(rows: np.ndarray, look: str) -> GradedFolder:
        """One folder: what its images tell, and the truth."""
        places, labels = images.places(rows, look), images.labels[rows]
        features, own = images.seen[look][places], vectors[look][places]
        found, asked = hits(own, labels)
        value = float(found[asked].mean()) if asked.any() else 0.0
        classes = np.setdiff1d(labels, images.labels[model.train])
        distance = length(reference.distance(reference.project(features))[0])
        point = CurvePoint(distance, value, int(asked.sum()), look, tuple(classes.tolist()))
        return GradedFolder(point, evidence(own, features, kinds), found, asked)

    with numpy_thread_pool() as pool:  # small matrices: a folder a core
        return list(pool.map(lambda one: measured(*one), drawn)), reference, kinds


def training_class_means(images: Images, model: Model, vectors: np.ndarray) -> np.ndarray:
    """Mean embeddings of the classes of training; none where the held-out images are the same."""
    if np.isin(model.held, model.train).any():
        return vectors[:0]
    return class_means(vectors[model.train], images.labels[model.train])


def length(excess: float) -> float:
    """FID is a squared length."""
    return float(np.sqrt(max(excess, 0.0)))


def random_halves(names: np.ndarray, count: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """`count` random random_halves of the classes."""
    out = []
    for _ in range(count):
        order = rng.permutation(names)
        middle = len(order) // 2
        out.append((np.sort(order[:middle]), np.sort(order[middle:])))
    return out


def class_halves(labels: np.ndarray, held: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random random_halves of all classes, held out or not: folders of every model are parted the same way."""
    names = np.unique(labels[held])
    if len(names) < 4 or len(held) < 2 * LEAST:
        raise LookalikeError(
            f"{len(held)} held-out images of {len(names)} classes are too few to learn how far the model can be "
            f"trusted: {2 * LEAST} images of 4 classes are needed."
        )
    rest = np.setdiff1d(np.unique(labels[labels >= 0]), names)
    rng = numpy_rng(seed, "halvings")
    both = zip(random_halves(names, HALVINGS, rng), random_halves(rest, HALVINGS, rng), strict=True)
    return [(np.union1d(a, c), np.union1d(b, d)) for (a, b), (c, d) in both]


def far_limit(images: Images, held: np.ndarray, reference: TrainingReference) -> float:
    """The distance to the nearest training image that almost all held-out images keep below, in any look."""
    rows = [images.features[held], *images.looks.values()]
    return float(np.quantile(np.concatenate([reference.gaps(reference.project(some)) for some in rows]), FAR))
