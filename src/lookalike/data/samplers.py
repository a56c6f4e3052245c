"""Samplers: which images make up the joint batch of a step.

A sampler is a pure function of the step: there is no state to save, and the joint batch is the same whatever the
number of processes. Each process takes its `core.distributed.rank_slice` of it.
"""

from __future__ import annotations

import functools
from typing import Protocol

import numpy as np

from lookalike.core.distributed import is_main
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.core.seeds import numpy_rng


class Sampler(Protocol):
    """Chooses the images of each joint batch."""

    size: int
    """Images in a joint batch."""
    steps_per_epoch: int
    """Steps after which about as many images were drawn as there are."""

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the images of the joint batch of `step`, counted from 1."""
        ...


@functools.lru_cache(maxsize=4)
def _shuffled(seed: int, name: str, number: int, count: int) -> np.ndarray:
    """One of the shuffled passes over `count` things."""
    return numpy_rng(seed, name, number).permutation(count)


class PKSampler:
    """P classes with K images each.

    Classes come in shuffled passes, so that each is drawn equally often; the classes left over at the end of a
    pass are skipped. The images of a class are drawn without repetition or, if it has fewer than K, equally often
    give or take one. Rows with a negative label are never drawn.

    Args:
        labels: Label of every image.
        classes: Classes per batch (P).
        images: Images per class (K).
        seed: Seed.
        replacement: Whether a class, and an image of its class, may come twice in a batch.
        warn_if_fewer: Whether to warn if there are fewer classes than a batch should hold.

    Example:
        >>> sampler = PKSampler(np.repeat([0, 1, 2], 4), classes=2, images=2)
        >>> sampler.batch(1).shape
        (4,)
    """

    def __init__(
        self,
        labels: np.ndarray,
        *,
        classes: int,
        images: int,
        seed: int = 0,
        replacement: bool = False,
        warn_if_fewer: bool = True,
    ) -> None:
        labels = np.asarray(labels)
        order = np.argsort(labels, kind="stable")
        order = order[labels[order] >= 0]
        values, starts = np.unique(labels[order], return_index=True)
        groups = np.split(order, starts[1:]) if len(values) else []
        # A class with one image has no positive pair; it would only be a copy of itself.
        self.groups = [group for group in groups if len(group) >= 2]
        if len(self.groups) < 2:
            what = "1 class" if len(self.groups) == 1 else "no class"
            raise LookalikeError(
                f"Only {what} of {len(values)} has two images or more to train on; training needs at least 2."
            )
        self.classes, self.images, self.seed = min(classes, len(self.groups)), images, seed
        self.replacement = replacement
        if self.classes < classes and warn_if_fewer and is_main():
            warn(f"{len(self.groups)} classes can be trained on: batches hold {self.classes} classes, not {classes}.")
        self.size = self.classes * images
        self.steps_per_epoch = max(1, round(sum(map(len, self.groups)) / self.size))

    def batch(self, step: int) -> np.ndarray:
        if self.replacement:
            rng = numpy_rng(self.seed, "replacement", step)
            picked = [self.groups[c] for c in rng.integers(len(self.groups), size=self.classes)]
            return np.concatenate([rng.choice(group, self.images) for group in picked])
        number, place = divmod(step - 1, len(self.groups) // self.classes)
        order = _shuffled(self.seed, "classes", number, len(self.groups))
        rng = numpy_rng(self.seed, "pictures", step)
        return np.concatenate([self._draw(self.groups[c], rng) for c in order[place * self.classes :][: self.classes]])

    def _draw(self, group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rounds = -(-self.images // len(group))
        if rounds == 1:
            return group[rng.permutation(len(group))[: self.images]]
        return np.concatenate([rng.permutation(group) for _ in range(rounds)])[: self.images]


class ShuffleSampler:
    """All images in shuffled passes, without labels; the last, partial batch of a pass is dropped.

    Args:
        count: Number of images.
        size: Batch size.
        seed: Seed.
    """

    def __init__(self, count: int, *, size: int, seed: int = 0) -> None:
        if count < 1:
            raise LookalikeError("There are no images to train on.")
        self.count, self.size, self.seed = count, min(size, count), seed
        self.steps_per_epoch = count // self.size

    def batch(self, step: int) -> np.ndarray:
        number, place = divmod(step - 1, self.steps_per_epoch)
        return _shuffled(self.seed, "order", number, self.count)[place * self.size : (place + 1) * self.size]


class SubsetSampler:
    """The batches of another sampler, whose indices refer to some of the images only."""

    def __init__(self, rows: np.ndarray, sampler: Sampler) -> None:
        self.rows, self.sampler = rows, sampler
        self.size, self.steps_per_epoch = sampler.size, sampler.steps_per_epoch

    def batch(self, step: int) -> np.ndarray:
        return np.asarray(self.rows[self.sampler.batch(step)])
