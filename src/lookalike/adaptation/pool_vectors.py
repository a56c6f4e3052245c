"""Vectors of pool images: embedded once by a frozen retriever, cached, and purged on request.

Nothing depends on where in the pool an image is or on how many there are: pool images are ordered by content id,
each is embedded by itself, and random draws are keyed by ids.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np

from lookalike.adaptation.pool import POOL, Pool, Retrieved, nearest, no_retrievals, random_retrievals
from lookalike.adaptation.settings import AdaptSettings
from lookalike.core import artifacts, folders
from lookalike.core.device import CPU
from lookalike.core.engine import Engine, LocalEngine
from lookalike.core.files import read_json, write_json
from lookalike.core.locks import wait_for_lock
from lookalike.data import Table
from lookalike.data.decoding import DECODER
from lookalike.data.table import read_cached
from lookalike.evaluation.neighbors import top_k
from lookalike.models import Embedder
from lookalike.models.inference import openvino_runtime
from lookalike.models.inference.runtime_base import GRAPH_VERSION, RuntimeUnavailable

BLOCK, MAX_WRITES = 1024, 8
"""Images embedded between two writes, at least; and the most writes of a pool."""


def _store(retriever: Embedder, runtime: str) -> Path:
    return artifacts.artifact("pools", [retriever.fingerprint(), runtime, DECODER, GRAPH_VERSION])


def runtime_of(retriever: Embedder) -> str:
    """The same whatever the number of images, so that an image's vector never depends on its company."""
    if retriever.device.type == CPU and openvino_runtime.installed():
        with contextlib.suppress(RuntimeUnavailable):
            openvino_runtime.convert(retriever, "embedding")
            return "openvino"
    return "torch"


def _turn(path: Path) -> AbstractContextManager[None]:
    """Processes that embed at the same time read and write a store one after the other: none loses another's rows."""
    return wait_for_lock(folders.home() / "locks" / f"pool-{path.name}.lock")


def _known(path: Path) -> tuple[list[str], np.ndarray | None]:
    if not artifacts.is_whole(path):  # not there, or damaged
        return [], None
    return read_json(path / "ids.json", "pool's vectors"), np.load(path / "rows.npy", mmap_mode="r")


def _write(path: Path, ids: list[str], rows: np.ndarray) -> None:
    def fill(part: Path) -> None:
        np.save(part / "rows.npy", rows, allow_pickle=False)
        write_json(part / "ids.json", ids)

    artifacts.replace(path, fill)


def embedded_anew(retriever: Embedder, images: Table, runtime: str, *, progress: bool = False) -> np.ndarray:
    """Each image by itself, so that its vector is the same in any company."""
    return np.asarray(retriever.encode(images, batch_size=1, runtime=runtime, progress=progress))


def embedded(
    retriever: Embedder, ids: Sequence[str], images: Table, *, engine: Engine | None = None, progress: bool = False
) -> np.ndarray:
    """Unit vectors of images by content id; an engine (this process) computes those never seen, each by itself."""
    runtime = runtime_of(retriever)
    path = _store(retriever, runtime)
    with _turn(path):
        known, rows = _known(path)
    at = {id_: i for i, id_ in enumerate(known)}
    new = [i for i, id_ in enumerate(ids) if id_ not in at]
    size = max(BLOCK, -(-len(new) // MAX_WRITES))
    parts = {str(start): new[start : start + size] for start in range(0, len(new), size)}
    common = {"retriever": retriever, "runtime": runtime, "progress": progress}
    shards = {name: {**common, "images": images.take(part)} for name, part in parts.items()}
    for outcome in (engine or LocalEngine()).run(
        embedded_anew, shards
    ):  # stored part by part: a kill loses one of them
        if outcome.error is not None:
            raise outcome.error
        with _turn(path):
            known, rows = _merged(path, [ids[i] for i in parts[outcome.key]], outcome.result)
    if new:
        at = {id_: i for i, id_ in enumerate(known)}
        artifacts.trim()
    artifacts.touch(path)
    if rows is None:
        return np.zeros((0, retriever.dim), np.float32)
    return np.array(rows[[at[id_] for id_ in ids]], np.float32)


def _merged(path: Path, ids: list[str], more: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The store with these rows beside what it holds by now."""
    known, rows = _known(path)
    there = set(known)
    new = [i for i, id_ in enumerate(ids) if id_ not in there]
    rows = more[new] if rows is None else np.concatenate([rows, more[new]])
    known = [*known, *(ids[i] for i in new)]
    _write(path, known, rows)
    return known, rows


def retrieve(
    expert: Embedder,
    ids: Sequence[str],
    images: Table,
    pool: Pool,
    chosen: AdaptSettings,
    *,
    seed: int = 0,
    engine: Engine | None = None,
    progress: bool = False,
) -> Retrieved:
    """Who is retrieved for whom, found once: the same images, pool and retriever are never searched again."""
    k = chosen.num_neighbors if chosen.retrieves else 0
    if not k or not len(pool):
        return no_retrievals(len(ids), k)
    how = [chosen.copy_threshold, *([seed] if chosen.retrieval == "random" else [])]
    query = json.dumps([chosen.retrieval, k, how, list(ids), pool.ids])
    path = artifacts.artifact("searches", [_store(expert, runtime_of(expert)).name, query])

    def search(folder: Path) -> None:
        both = (ids, images), (pool.ids, pool.table(np.arange(len(pool))))
        mine, theirs = (embedded(expert, *one, engine=engine, progress=progress) for one in both)
        draw = partial(random_retrievals, seed=seed) if chosen.retrieval == "random" else nearest
        result = draw(mine, theirs, ids, pool.ids, k, near_copy=chosen.copy_threshold)
        np.save(folder / "index.npy", result.index, allow_pickle=False)
        np.save(folder / "scores.npy", result.scores, allow_pickle=False)
        own = np.median(top_k(mine, mine, 1, exclude=np.arange(len(mine)))[0])
        write_json(folder / "about.json", {"copies": result.copies, "own": float(own)})

    artifacts.folder(path, search)
    about = read_json(path / "about.json", "search of a pool")
    return Retrieved(np.load(path / "index.npy"), np.load(path / "scores.npy"), about["copies"], about["own"])


def purge(ids: Sequence[str]) -> int:
    """Take images' vectors out of every store, and drop what is cached of pools; how many vectors there were."""
    gone, count = set(ids), 0
    for kind, entry, _, _ in artifacts.entries():
        # What carries no ids goes as a whole, and is made again; so does a damaged audit.
        about = artifacts.about(entry) if kind in ("features", "pixels") else None
        stale = kind == "searches" or (isinstance(about, dict) and about.get("name") == POOL)
        if kind == "audits":
            facts = read_cached(entry)
            stale = facts is None or bool(gone & set(facts["content_id"].to_pylist()))
        if stale:
            artifacts.delete(entry)
    for path in folders.cache("pools").iterdir():
        with _turn(path):
            known, rows = _known(path)
            keep = [i for i, id_ in enumerate(known) if id_ not in gone]
            if rows is not None and len(keep) < len(known):
                count += len(known) - len(keep)
                rows = np.array(rows[keep])  # no longer mapped
                _write(path, [known[i] for i in keep], rows)
    return count
