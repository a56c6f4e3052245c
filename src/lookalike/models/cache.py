"""Features of a table under some views, computed once and kept: minutes of training become seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, hash_bytes, need_space
from lookalike.core.formats import CURRENT, stamp
from lookalike.core.seeds import derive
from lookalike.data.decode import DECODER

if TYPE_CHECKING:
    from lookalike.data.table import Table
    from lookalike.data.views import View
    from lookalike.models.embedder import Embedder


def features_for(
    model: Embedder,
    table: Table,
    *,
    layer: str = "pooled",
    views: Sequence[View],
    seed: int = 0,
    progress: bool = False,
) -> np.ndarray:
    """(views, pictures, …) features, memory-mapped.

    The entry's name says what it was made from: the model below `layer`, the pictures, the views, the seed
    and the decoder. So nothing stale is ever read, and an entry appears whole or not at all.
    """
    if not len(table) or not views:
        raise LookalikeError("There is nothing to cache: no pictures or no views.")
    told = json.dumps([view.to_json() for view in views], sort_keys=True)
    parts = ["features", str(CURRENT["cache"]), DECODER, model.fingerprint(layer), layer, told, str(seed)]
    folder = folders.cache("features") / hash_bytes(*parts, table.fingerprint(), str(len(table)))
    found = _open(folder)
    if found is None:
        _fill(folder, model, table, layer, views, seed, progress)
        folders.trim_cache()
        found = _open(folder)
        assert found is not None
    folders.touch(folder)
    return found


def _open(folder: Path) -> np.ndarray | None:
    """The entry if it is there and whole; a damaged one is made again."""
    try:
        about = json.loads((folder / "about.json").read_bytes())
        rows = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)
        return rows if about["format"] == CURRENT["cache"] and list(rows.shape) == about["shape"] else None
    except (OSError, ValueError, KeyError):
        return None


def _fill(
    folder: Path, model: Embedder, table: Table, layer: str, views: Sequence[View], seed: int, progress: bool
) -> None:
    with atomic_folder(folder, private=True) as part:
        kept: np.ndarray | None = None
        for number, view in enumerate(views):
            rows = model.features(table, layer=layer, view=view, seed=derive(seed, "view", number), progress=progress)
            if kept is None:
                need_space(folder, rows.nbytes * len(views), "The cache of features")
                kept = np.lib.format.open_memmap(part / "rows.npy", "w+", rows.dtype, (len(views), *rows.shape))
            kept[number] = rows
        assert kept is not None
        kept.flush()
        about = stamp("cache", {"what": "features", "layer": layer, "model": model.name, "shape": list(kept.shape)})
        (part / "about.json").write_text(json.dumps(about), encoding="utf-8")
