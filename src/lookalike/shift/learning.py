"""What a model learns about its own limits at training time: graded folders of images it was not trained on.

Two curves in one set of points: the fixed model on its held-out classes, plain and in other looks, and the recipe
retrained on splits of growing difficulty, each on its own test side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation._ranking.parallel import crew
from lookalike.shift.conformal import halvings
from lookalike.shift.estimate import PLAIN, Graded, Point
from lookalike.shift.graded import LEAST, Classes, draw, hits
from lookalike.shift.nearness import FAR, Reference
from lookalike.shift.neighbor_features import class_means, evidence

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
    reference: Reference
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


def points_of(
    images: Images,
    model: Model,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    plain: int = PER_HALF,
    styled: int = PER_LOOK,
    seed: int = 0,
    name: str = "",
) -> tuple[list[Graded], Reference, np.ndarray]:
    """Folders of each half of the held-out classes, plain and in every other look, measured; what distances are from,
    and the classes of training."""
    reference = Reference.of(images.features[model.train], seed=seed)
    center = images.features[model.train].mean(axis=0)
    vectors = {look: model.encode(features) for look, features in images.seen.items()}
    kinds = kinds_of(images, model, vectors[PLAIN])
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

    def measured(rows: np.ndarray, look: str) -> Graded:
        """One folder: what its images tell, and the truth."""
        places, labels = images.places(rows, look), images.labels[rows]
        features, own = images.seen[look][places], vectors[look][places]
        found, asked = hits(own, labels)
        value = float(found[asked].mean()) if asked.any() else 0.0
        classes = np.setdiff1d(labels, images.labels[model.train])
        distance = length(reference.distance(reference.project(features))[0])
        point = Point(distance, value, int(asked.sum()), look, tuple(classes.tolist()))
        return Graded(point, evidence(own, features, kinds), found, asked)

    with crew() as pool:  # small matrices: a folder a core
        return list(pool.map(lambda one: measured(*one), drawn)), reference, kinds


def kinds_of(images: Images, model: Model, vectors: np.ndarray) -> np.ndarray:
    """Mean embeddings of the classes of training; none where the held-out images are the same."""
    if np.isin(model.held, model.train).any():
        return vectors[:0]
    return class_means(vectors[model.train], images.labels[model.train])


def length(excess: float) -> float:
    """FID is a squared length."""
    return float(np.sqrt(max(excess, 0.0)))


def class_halves(labels: np.ndarray, held: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random halvings of all classes, held out or not: folders of every model are parted the same way."""
    names = np.unique(labels[held])
    if len(names) < 4 or len(held) < 2 * LEAST:
        raise LookalikeError(
            f"{len(held)} held-out images of {len(names)} classes are too few to learn how far the model can be "
            f"trusted: {2 * LEAST} images of 4 classes are needed."
        )
    rest = np.setdiff1d(np.unique(labels[labels >= 0]), names)
    rng = numpy_rng(seed, "halvings")
    both = zip(halvings(names, HALVINGS, rng), halvings(rest, HALVINGS, rng), strict=True)
    return [(np.union1d(a, c), np.union1d(b, d)) for (a, b), (c, d) in both]


def far_limit(images: Images, held: np.ndarray, reference: Reference) -> float:
    """The distance to the nearest training image that almost all held-out images keep below, in any look."""
    rows = [images.features[held], *images.looks.values()]
    return float(np.quantile(np.concatenate([reference.gaps(reference.project(some)) for some in rows]), FAR))
