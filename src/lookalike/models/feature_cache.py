"""The feature cache: features are computed once and keyed by everything they depend on, so none is ever stale."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import artifacts, seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.files import require_space, reserve_space
from lookalike.core.progress import Progress
from lookalike.data import Table
from lookalike.data.decoding import DECODER
from lookalike.models.embedder import Embedder
from lookalike.models.inference.runtime_base import GRAPH_VERSION

BLOCK = 1024  # rows computed and written at a time


def features_for(
    model: Embedder,
    table: Table,
    *,
    layer: str = "pooled",
    views: Sequence[Any] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> np.ndarray:
    """Compute the features of a table's images, or open them from the cache.

    They are computed by torch, since training learns from them. Every image must be readable: audit the table first.

    Args:
        model: The model.
        table: The images.
        layer: ``"pooled"``, ``"embedding"`` or a stage.
        views: Augmentations of :mod:`lookalike.data`; the center crop alone without them.
        seed: Seed of the views.
        progress: Whether to show a progress bar.

    Returns:
        A read-only memory map ``(V, N, …)`` of V views and N images; float16 for a stage, else float32.

    Raises:
        LookalikeError: If the table is empty.
        UnreadableImage: If an image cannot be read.

    Example:
        >>> model = la.Embedder.from_pretrained("resnet10_small", weights="random")
        >>> features_for(model, la.read_table("photos")).shape
        (1, 24, 256)
    """
    if not len(table):
        raise LookalikeError(f"The table `{table.name}` has no rows to compute features of.")
    views = list(views) if views is not None else [None]
    key: dict[str, Any] = {"model": model.fingerprint(layer), "layer": layer, "table": table.fingerprint()}
    key |= {"views": [None if view is None else view.to_json() for view in views], "seed": seed}
    key |= {"runtime": "torch", "decoder": DECODER, "graph": GRAPH_VERSION}
    path = artifacts.artifact("features", key, group=table.fingerprint())
    fill = partial(_compute, key=key, model=model, table=table, views=views, progress=progress)
    artifacts.folder(path, fill, about={**key, "name": table.name})
    features: np.ndarray = np.load(path / "features.npy", mmap_mode="r")
    return features


def _compute(
    folder: Path, key: dict[str, Any], model: Embedder, table: Table, views: list[Any], progress: bool
) -> None:
    count, total = len(table), len(table) * len(views)
    out: np.memmap | None = None
    with Progress("Features", total, shown=progress) as bar:
        for number, view in enumerate(views):
            for start in range(0, count, BLOCK):
                rows = table.take(np.arange(start, min(start + BLOCK, count)))
                options = {"layer": key["layer"], "runtime": key["runtime"], "view": view, "progress": bar}
                block = model.features(rows, seed=seeds.derive(key["seed"], "view", number, start), **options)
                if out is None:
                    shape = (len(views), count, *block.shape[1:])
                    require_space(folder, int(np.prod(shape)) * block.itemsize, "The feature cache")
                    out = np.lib.format.open_memmap(folder / "features.npy", "w+", block.dtype, shape)
                    reserve_space(folder / "features.npy", (folder / "features.npy").stat().st_size)
                out[number, start : start + len(block)] = block
        assert out is not None
        out.flush()
