"""Features computed once: keyed by everything they were made from, so a stale one is never found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders, seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.files import (
    FORMAT_VERSIONS,
    atomic_folder,
    hash_bytes,
    need_space,
    read_json,
    reserve,
    stamp,
    to_json,
    write_json,
)
from lookalike.core.progress import Progress
from lookalike.data.decoding import DECODER
from lookalike.models.inference.graph import VERSION

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models.embedder import Embedder

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
    """Features of every row under every view, as a read-only memory map V×N×…; without views the center crop alone.

    float32 for `pooled` and `embedding`, float16 for a stage, computed by torch: they are what training learns from.
    Every image must be readable: audit the table first.
    """
    if not len(table):
        raise LookalikeError(f"The table `{table.name}` has no rows to compute features of.")
    chosen = list(views) if views is not None else [None]
    about = {
        "model": model.fingerprint(layer),
        "layer": layer,
        "table": table.fingerprint(),
        "views": [None if view is None else view.to_json() for view in chosen],
        "seed": seed,
        "runtime": "torch",
        "decoder": DECODER,
        "program": VERSION,
    }
    path = folders.cache("features") / hash_bytes(str(FORMAT_VERSIONS["cache"]), *map(str, _flat(about)))
    found = _open(path, about)
    if found is None:
        _make(path, about, model, table, chosen, progress)
        folders.trim_cache()
        found = _open(path, about)
        assert found is not None
    folders.touch(path)
    return found


def _flat(about: dict[str, Any]) -> list[str]:
    import json

    return [f"{key}={json.dumps(value, sort_keys=True, default=to_json)}" for key, value in sorted(about.items())]


def _open(path: Path, about: dict[str, Any]) -> np.ndarray | None:
    """The entry if it is whole and was made from just this; anything else counts as missing."""
    if not (path / "info.json").is_file():
        return None
    try:
        info = read_json(path / "info.json")
        if _flat(info["about"]) != _flat(about) or info["format"] != FORMAT_VERSIONS["cache"]:
            return None
        return np.load(path / "features.npy", mmap_mode="r")
    except (LookalikeError, KeyError, TypeError, ValueError, OSError):
        return None


def _make(path: Path, about: dict[str, Any], model: Embedder, table: Table, views: list[Any], progress: bool) -> None:
    count, total = len(table), len(table) * len(views)
    out: np.memmap | None = None
    with atomic_folder(path, private=True) as part, Progress("Features", total, shown=progress) as bar:
        for number, view in enumerate(views):
            for start in range(0, count, BLOCK):
                rows = table.take(np.arange(start, min(start + BLOCK, count)))
                block = model.features(
                    rows,
                    layer=about["layer"],
                    view=view,
                    seed=seeds.derive(about["seed"], "view", number, start),
                    runtime=about["runtime"],
                )
                if out is None:
                    shape = (len(views), count, *block.shape[1:])
                    need_space(path, int(np.prod(shape)) * block.itemsize, "The feature cache")
                    out = np.lib.format.open_memmap(part / "features.npy", "w+", block.dtype, shape)
                    reserve(part / "features.npy", (part / "features.npy").stat().st_size)
                out[number, start : start + len(block)] = block
                bar.advance(len(block))
        assert out is not None
        out.flush()
        write_json(part / "info.json", stamp("cache", {"about": about, "name": table.name}))
