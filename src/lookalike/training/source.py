"""Where the images of a step come from: cached outputs of a frozen layer, or pixels.

Random choices depend on the seed, the step and the position in the joint batch, so every process can load its own part
and a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.methods.base import PIXELS


class Source(Protocol):
    """Provides the views of a step and the center crops of an evaluation."""

    layer: str

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        """The views of this process's part (`mine`) of the joint batch `rows`."""
        ...

    def center(self, rows: np.ndarray) -> Tensor:
        """Center crops of any rows, for evaluation."""
        ...


class Rows:
    """An array over some rows of a table, addressed by the table's row numbers.

    Args:
        values: One entry a row.
        rows: The row numbers of the entries; None: all rows of the table.
        count: Number of rows of the table, if `rows` is given.
    """

    def __init__(self, values: np.ndarray, rows: np.ndarray | None = None, count: int = 0) -> None:
        self.values = values
        self.place: np.ndarray | None = None
        if rows is not None:
            self.place = np.full(count, -1, np.int64)
            self.place[rows] = np.arange(len(rows))

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Positions of table rows in `values`."""
        return rows if self.place is None else self.place[rows]


class CachedSource:
    """Outputs of a frozen layer, of the center crop and of some random views.

    A draw takes any view of an image, the center crop included.

    Args:
        layer: The cached layer.
        center: Outputs for the center crop, ``(rows, ...)``.
        random: Outputs for random views, ``(views, rows, ...)``; None: the center crop only.
        views: Number of views of an image in a step.
        distinct: The views of one image in one step differ, as long as there are enough.
        seed: Seed of the draws.
    """

    def __init__(
        self, layer: str, center: Rows, random: Rows | None, *, views: int = 1, distinct: bool = False, seed: int = 0
    ) -> None:
        if distinct and random is None and views > 1:
            raise LookalikeError(
                "The method compares views of an image, but with `views.num_cached` 0 they are all the same; "
                "set it to 1 or more."
            )
        self.layer, self.count, self.distinct, self.seed = layer, views, distinct, seed
        self._center, self._random = center, random

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        if self._random is None:
            return (self.center(rows[mine]),) * self.count
        rng = numpy_rng(self.seed, "views", step)
        pool = 1 + len(self._random.values)
        if self.distinct:
            rounds = [
                rng.permuted(np.tile(np.arange(pool), (len(rows), 1)), axis=1) for _ in range(-(-self.count // pool))
            ]
            picks = np.concatenate(rounds, axis=1).T[: self.count, mine]
        else:
            picks = rng.integers(0, pool, size=(self.count, len(rows)))[:, mine]
        return tuple(self._picked(self._random, rows[mine], pick) for pick in picks)

    def _picked(self, random: Rows, rows: np.ndarray, pick: np.ndarray) -> Tensor:
        values = self._center.values
        out = np.empty((len(rows), *values.shape[1:]), values.dtype)
        middle = pick == 0
        out[middle] = values[self._center.at(rows[middle])]
        out[~middle] = random.values[pick[~middle] - 1, random.at(rows[~middle])]
        return torch.from_numpy(out)

    def center(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._center.values[self._center.at(rows)]))


class PixelSource:
    """Pixels, augmented anew at every draw by a thread pool, one step ahead.

    Args:
        pixels: Cache of decoded images.
        views: One augmentation for each view of an image.
        center: The view of an evaluation.
        seed: Seed of the draws.
    """

    layer = PIXELS

    def __init__(self, pixels: Any, views: Sequence[Any], center: Any, *, seed: int = 0) -> None:
        self._pixels, self._views, self._center, self.seed = pixels, views, center, seed
        self._pool = ThreadPoolExecutor(threads(), thread_name_prefix="views")
        self._ahead: dict[int, list[Future[list[np.ndarray]]]] = {}

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        self.prepare(rows, mine, step)
        images = [future.result() for future in self._ahead.pop(step)]
        return tuple(torch.from_numpy(np.stack([p[v] for p in images])) for v in range(len(self._views)))

    def prepare(self, rows: np.ndarray, mine: slice, step: int) -> None:
        """Start to draw the views of a later step."""
        if step not in self._ahead:
            places = range(*mine.indices(len(rows)))
            self._ahead[step] = [self._pool.submit(self._draw, int(rows[p]), step, p) for p in places]

    def _draw(self, row: int, step: int, place: int) -> list[np.ndarray]:
        rng = numpy_rng(self.seed, "views", step, place)
        pixels = self._pixels.get(row)
        return [view(pixels, rng) for view in self._views]

    def center(self, rows: np.ndarray) -> Tensor:
        crops = self._pool.map(lambda row: self._center(self._pixels.get(int(row)), None), rows)
        return torch.from_numpy(np.stack(list(crops)))
