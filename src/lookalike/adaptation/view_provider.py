"""Views of target and pool images for a step. Random draws depend on seed, epoch and content id of the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.adaptation.network import PIXELS
from lookalike.core.seeds import derive, numpy_rng
from lookalike.data import PixelCache, Table
from lookalike.data.augmentation import CenterView, RandomView
from lookalike.data.decoding import Preprocess
from lookalike.models import Embedder, features_for


def weak_view(pre: Preprocess) -> RandomView:
    """A crop of 224 out of 256, perhaps mirrored."""
    share = (224 / 256) ** 2
    return RandomView(pre, scale=(share, share), ratio=(1, 1))


def strong_view(pre: Preprocess) -> RandomView:
    """MoCo v2's."""
    return RandomView(pre, scale=(0.2, 1.0), color_jitter=0.5, color_jitter_probability=0.8, grayscale=0.2, blur=0.5)


class ViewProvider(Protocol):
    """What a step is fed with; rows are numbers of target (or pool) images."""

    def weak(self, rows: np.ndarray, epoch: int) -> Tensor: ...
    def strong(self, rows: np.ndarray, epoch: int, second: bool = False) -> Tensor: ...
    def center(self, rows: np.ndarray) -> Tensor: ...
    def pool(self, rows: np.ndarray) -> Tensor: ...


class CachedViews:
    """Cached activations: weak and strong are V×N×…, center N×…, pool U×…."""

    def __init__(
        self,
        ids: Sequence[str],
        weak: np.ndarray,
        strong: np.ndarray,
        center: np.ndarray,
        pool: np.ndarray | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.ids, self.seed = list(ids), seed
        self._weak, self._strong, self._center, self._pool = weak, strong, center, pool

    def part(self, rows: np.ndarray, pool: np.ndarray, seed: int) -> CachedViews:
        """Some images and some of the pool, drawn from by another seed."""
        ids = [self.ids[row] for row in rows]
        outside = None if self._pool is None else self._pool[pool]
        return CachedViews(ids, self._weak[:, rows], self._strong[:, rows], self._center[rows], outside, seed=seed)

    def _pick(self, views: np.ndarray, rows: np.ndarray, epoch: int, what: str) -> Tensor:
        turn = [derive(self.seed, what, epoch, self.ids[row]) % len(views) for row in rows]
        return _tensor(np.stack([views[v, row] for v, row in zip(turn, rows, strict=True)]))

    def weak(self, rows: np.ndarray, epoch: int) -> Tensor:
        return self._pick(self._weak, rows, epoch, "weak")

    def strong(self, rows: np.ndarray, epoch: int, second: bool = False) -> Tensor:
        return self._pick(self._strong, rows, epoch, "second strong" if second else "strong")

    def center(self, rows: np.ndarray) -> Tensor:
        return _tensor(np.asarray(self._center[rows]))

    def pool(self, rows: np.ndarray) -> Tensor:
        assert self._pool is not None
        return _tensor(np.asarray(self._pool[rows]))


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)) if values.dtype != np.uint8 else torch.from_numpy(values)


class PixelViews:
    """Every view drawn anew from decoded images: for training from the pixels up."""

    def __init__(
        self, pre: Preprocess, ids: Sequence[str], target: Table, pool: Table | None, *, seed: int = 0
    ) -> None:
        self.ids, self.seed, self.pre = list(ids), seed, pre
        side = round(pre.size / pre.crop)
        self._target = PixelCache(target, side)
        self._pool = PixelCache(pool, side) if pool is not None and len(pool) else None
        self._views = {"weak": weak_view(pre), "strong": strong_view(pre), "second strong": strong_view(pre)}

    def _drawn(self, what: str, rows: np.ndarray, epoch: int) -> Tensor:
        view = self._views[what]
        squares = [view(self._target.get(row), numpy_rng(self.seed, what, epoch, self.ids[row])) for row in rows]
        return torch.from_numpy(np.stack(squares))

    def weak(self, rows: np.ndarray, epoch: int) -> Tensor:
        return self._drawn("weak", rows, epoch)

    def strong(self, rows: np.ndarray, epoch: int, second: bool = False) -> Tensor:
        return self._drawn("second strong" if second else "strong", rows, epoch)

    def center(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.stack([CenterView(self.pre)(self._target.get(row)) for row in rows]))

    def pool(self, rows: np.ndarray) -> Tensor:
        assert self._pool is not None
        return torch.from_numpy(np.stack([CenterView(self.pre)(self._pool.get(row)) for row in rows]))


def make_views(
    model: Embedder,
    layer: str,
    target: Table,
    pool: Table | None,
    *,
    views: int = 4,
    seed: int = 0,
    progress: bool = False,
) -> ViewProvider:
    """Views for a model cut at `layer`. The activations below it are computed once and kept."""
    ids = [str(name) for name in target.column("content_id")]
    pre = model.preprocess
    if layer == PIXELS:
        return PixelViews(pre, ids, target, pool, seed=seed)

    def cached(table: Table, chosen: list[CenterView | RandomView]) -> np.ndarray:
        return features_for(model, table, layer=layer, views=chosen, seed=seed, progress=progress)

    weak = cached(target, [weak_view(pre)] * max(1, views // 2))
    strong = cached(target, [strong_view(pre)] * views)
    center = cached(target, [CenterView(pre)])[0]
    others = pool_activations(model, layer, pool, progress=progress) if pool is not None and len(pool) else None
    return CachedViews(ids, weak, strong, center, others, seed=seed)


def pool_activations(model: Embedder, layer: str, pool: Table, *, progress: bool = False) -> np.ndarray:
    """What the layer holds of pool images: one view each, whatever the seed."""
    return features_for(model, pool, layer=layer, views=[CenterView(model.preprocess)], progress=progress)[0]
