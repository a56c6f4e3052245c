"""The pool: pictures from outside, embedded once by a frozen retriever, and who is retrieved for whom.

Nothing here depends on where in the pool a picture lies or on how many there are: pool pictures stand in the order of
their content ids, each is embedded by itself, and random draws are keyed by ids. A picture that is taken away
changes only the lists it was in.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import folders
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, hash_bytes, read_json, write_json
from lookalike.core.formats import CURRENT, stamp
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.data.decoding import DECODER
from lookalike.data.table import BOX
from lookalike.evaluation.neighbours import top_k
from lookalike.models import Embedder, fast_openvino
from lookalike.models.program import VERSION, RuntimeUnavailable

POOL = "adapt-pool"


@dataclass(frozen=True)
class Pool:
    """Different pictures of all folders, in the order of their content ids."""

    tables: list[Table]
    ids: list[str]
    places: list[tuple[int, int]]
    """(folder, row in its table) of each picture."""
    names: list[str]
    """`folder/path` of each picture."""
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: set[str]) -> Pool:
        """The pictures of these ids."""
        kept = [i for i, id_ in enumerate(self.ids) if id_ in ids]
        places, names = [self.places[i] for i in kept], [self.names[i] for i in kept]
        return Pool(self.tables, [self.ids[i] for i in kept], places, names, self.left_out)

    def pictures(self, i: int) -> tuple[Table, int]:
        folder, row = self.places[i]
        return self.tables[folder], row

    def table(self, rows: Sequence[int] | np.ndarray) -> Table:
        """Some pictures as one table of files, whatever folders they come from."""
        found = [self.pictures(int(i)) for i in rows]
        files = [table.file(row) for table, row in found]
        if None in files:
            raise LookalikeError("A pool must be a folder of pictures or a table of them; it cannot lie in tar files.")
        columns: dict[str, Any] = {
            "path": [os.fsencode(str(file)).decode(errors="replace") for file in files],
            "found": [os.fsencode(str(file)) for file in files],
            "content_id": [self.ids[int(i)] for i in rows],
            "row_id": [self.ids[int(i)] for i in rows],
        }
        for name in ("size", "mtime_ns", *BOX):
            if any(table.has(name) for table, _ in found):
                columns[name] = [table.row(row).get(name) for table, row in found]
        return Table.from_columns(columns, name=POOL)


def read_pool(
    folders_: Sequence[str | Path | Table],
    *,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    progress: bool = False,
) -> Pool:
    """Read the pool folders; equal pictures count once. Lists hold content ids, or patterns of `folder/path`."""
    tables, seen, names, left = [], {}, {}, {"copies": 0, "not allowed": 0, "denied": 0, "unreadable": 0}
    for number, source in enumerate(folders_):
        table = source if isinstance(source, Table) else read_table(source, progress=progress)
        found = audit(table, near=False, progress=progress)
        left["unreadable"] += len(found.unreadable)
        tables.append(found.table)
        ids, paths = found.table.column("content_id"), found.table.column("path")
        for row, (id_, path) in enumerate(zip(ids, paths, strict=True)):
            name = f"{found.table.name}/{path}"
            if allow and not listed(id_, name, allow):
                left["not allowed"] += 1
            elif listed(id_, name, deny):
                left["denied"] += 1
            elif id_ in seen:
                left["copies"] += 1
            else:
                seen[str(id_)] = (number, row)
                names[str(id_)] = name
    ordered = sorted(seen)
    rows = [seen[id_] for id_ in ordered]
    return Pool(tables, ordered, rows, [names[id_] for id_ in ordered], {k: v for k, v in left.items() if v})


def listed(id_: str, path: str, patterns: Sequence[str]) -> bool:
    """Whether a picture is named by its content id or by a pattern of `folder/path`."""
    return any(id_ == pattern or fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


# --- embedding, once ------------------------------------------------------------------------------


def _is_pools(entry: Path) -> bool:
    return any(
        (entry / name).is_file() and read_json(entry / name, "cache entry").get("name") == POOL
        for name in ("info.json", "about.json")
    )


def _store(retriever: Embedder, runtime: str) -> Path:
    key = hash_bytes("pool", str(CURRENT["cache"]), retriever.fingerprint(), runtime, DECODER, str(VERSION))
    return folders.cache("pools") / key


def _runtime(retriever: Embedder) -> str:
    """The same whatever the number of pictures, so that a picture's vector never depends on its company."""
    if retriever.device.type == CPU and fast_openvino.installed():
        try:
            fast_openvino.prepare(retriever, "embedding")
            return "openvino"
        except RuntimeUnavailable:
            return "torch"
    return "torch"


def _known(path: Path) -> tuple[list[str], np.ndarray | None]:
    if not (path / "ids.json").is_file():
        return [], None
    return read_json(path / "ids.json", "pool's vectors")["ids"], np.load(path / "rows.npy", mmap_mode="r")


def _write(path: Path, ids: list[str], rows: np.ndarray) -> None:
    with atomic_folder(path, private=True) as part:
        np.save(part / "rows.npy", rows, allow_pickle=False)
        write_json(part / "ids.json", stamp("cache", {"ids": ids}))


def embedded(retriever: Embedder, ids: Sequence[str], pictures: Table, *, progress: bool = False) -> np.ndarray:
    """Unit vectors of pictures by content id; computed for those that were never seen, each by itself."""
    runtime = _runtime(retriever)
    path = _store(retriever, runtime)
    known, rows = _known(path)
    at = {id_: i for i, id_ in enumerate(known)}
    new = [i for i, id_ in enumerate(ids) if id_ not in at]
    if new:
        more = retriever.encode(pictures.take(new), batch_size=1, runtime=runtime, progress=progress)
        rows = np.asarray(more) if rows is None else np.concatenate([rows, more])
        known = [*known, *(ids[i] for i in new)]
        at = {id_: i for i, id_ in enumerate(known)}
        _write(path, known, rows)
        folders.trim_cache()
    folders.touch(path)
    if rows is None:
        return np.zeros((0, retriever.dim), np.float32)
    return np.array(rows[[at[id_] for id_ in ids]], np.float32)


def purge(ids: Sequence[str]) -> int:
    """Take pictures' vectors out of every store, and drop what is cached of pools; how many vectors there were."""
    for kind in ("features", "pixels"):  # their rows carry no ids: entries of pools go as a whole, and are made again
        for name, entry, _, _ in folders.cache_entries():
            if name == kind and _is_pools(entry):
                shutil.rmtree(entry)
    gone, count = set(ids), 0
    for path in folders.cache("pools").iterdir():
        known, rows = _known(path)
        keep = [i for i, id_ in enumerate(known) if id_ not in gone]
        if rows is not None and len(keep) < len(known):
            count += len(known) - len(keep)
            kept = np.array(rows[keep])
            del rows
            _write(path, [known[i] for i in keep], kept)
    return count


# --- who for whom ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrieved:
    """For every target picture: pool pictures (−1: none), best first, and their scores."""

    index: np.ndarray
    scores: np.ndarray
    copies: int = 0
    """Pairs left out because the pool picture is the target picture, or nearly."""

    @property
    def used(self) -> np.ndarray:
        return np.unique(self.index[self.index >= 0])


def nearest(
    target: np.ndarray,
    pool: np.ndarray,
    target_ids: Sequence[str],
    pool_ids: Sequence[str],
    k: int,
    *,
    near_copy: float = 0.98,
) -> Retrieved:
    """The k most alike pool pictures of each target picture, exactly; ties to the lower id; copies of it left out."""
    index, scores = np.full((len(target), k), -1, np.int64), np.full((len(target), k), -np.inf, np.float32)
    if not k or not len(pool) or not len(target):
        return Retrieved(index, scores)
    names = np.asarray(pool_ids)
    asked, wide, copies = np.arange(len(target)), min(len(pool), k + 4), 0
    while len(asked):
        found, places = top_k(target[asked], pool, wide)
        again = []
        for row, values, at in zip(asked, found, places, strict=True):
            copy = (values >= near_copy) | (names[at] == target_ids[int(row)])
            keep = np.flatnonzero(~copy)[:k]
            if len(keep) < k and wide < len(pool):
                again.append(row)
                continue
            index[row, : len(keep)], scores[row, : len(keep)] = at[keep], values[keep]
            copies += int(copy.sum())
        asked, wide = np.asarray(again, np.int64), min(len(pool), 4 * wide)
    return Retrieved(index, scores, copies)


def at_random(
    target: np.ndarray, pool: np.ndarray, target_ids: Sequence[str], pool_ids: Sequence[str], k: int, *, seed: int = 0
) -> Retrieved:
    """k pool pictures of each target picture drawn by the ids of both: fixed, and the same without any other one."""
    index, scores = np.full((len(target), k), -1, np.int64), np.full((len(target), k), -np.inf, np.float32)
    numbers = np.array([derive(seed, "pool", id_) for id_ in pool_ids], np.uint64)
    names = np.asarray(pool_ids)
    for row, id_ in enumerate(target_ids):
        if not k or not len(pool):
            break
        mixed = _scrambled(numbers ^ np.uint64(derive(seed, "target", id_)))
        order = np.argsort(mixed, kind="stable")
        chosen = order[names[order] != id_][:k]
        index[row, : len(chosen)] = chosen
        scores[row, : len(chosen)] = pool[chosen] @ target[row]
    return Retrieved(index, scores)


def _scrambled(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers without pattern (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
