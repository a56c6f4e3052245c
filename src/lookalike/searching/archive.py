"""The ``backup`` and ``restore`` commands: an index as one file, independent of its store.

The file is a tar archive with the manifest and, for each generation, its model, table, calibration and rows (ids,
vectors, payloads) as Arrow streams, verified by hashes. The store's graph is not saved but built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.files import (
    atomic_file,
    atomic_folder,
    check_format,
    leftover_parts,
    require_space,
    stamp,
    write_bytes,
)
from lookalike.core.locks import hold
from lookalike.core.progress import Progress, warn
from lookalike.searching import manifest as manifests
from lookalike.searching.index_folder import TABLE, generation_folder, open_store, remove_generations, store_folder
from lookalike.searching.locate import find_index, is_index, path_key
from lookalike.searching.manifest import Generation, Manifest
from lookalike.store import Record, Store, create_store, row_bytes, store_name

MARK = "backup.json"
BATCH = 1_000
BESIDE = (TABLE, "calibration.json")


@dataclass
class Backup:
    """The result of a backup or a restore.

    Args:
        name: Name of the index.
        path: The backup file, or the restored index.
        images: Number of images.
        generations: Number of generations.
        bytes: Size on disk.
    """

    name: str
    path: Path
    images: int
    generations: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        return dict(self.__dict__)


def backup(*, index: str | Path | None = None, out: str | Path, progress: bool = True) -> Backup:
    """Write an index to one file.

    ``restore`` makes the index again from it, here or on another machine, in any store. Incomplete generations are
    left out.

    Args:
        index: An index (default: the one updated last).
        out: The file to write; it must not exist.
        progress: Show a progress bar.

    Returns:
        What was written.

    Example:
        >>> la.backup(index="photos", out="photos.lookalike").images  # doctest: +SKIP
        24
    """
    path, goal = find_index(index), Path(out).expanduser().absolute()
    if goal.exists():
        raise LookalikeError(f"`{goal}` exists already: choose another name for the backup.")
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        complete = [generation for generation in manifest.generations if generation.complete]
        if not complete:
            raise LookalikeError(f"The index `{manifest.name}` is not complete: finish `lookalike index` first.")
        manifest.generations = complete
        if manifest.live not in {generation.number for generation in complete}:
            manifest.live = complete[-1].number
        require_space(goal, sum(g.images * (4 * g.dim + 1_000) for g in complete), "The backup")
        total = sum(generation.images for generation in complete)
        sums: dict[str, str] = {}
        with (
            atomic_file(goal, private=True) as part,
            tarfile.open(part, "w") as tar,
            Progress("Writing", total, shown=progress) as bar,
        ):
            for generation in complete:
                for name, data, count in _members(path, generation):
                    sums[name] = hashlib.sha256(data).hexdigest()
                    _put(tar, name, data)
                    bar.advance(count)
            document = stamp("backup", {"manifest": manifest.model_dump(mode="json"), "sums": sums})
            _put(tar, MARK, json.dumps(document).encode())
    return Backup(manifest.name, goal, manifest.generation().images, len(complete), goal.stat().st_size)


def _members(path: Path, generation: Generation) -> Iterator[tuple[str, bytes, int]]:
    """Name, bytes and number of rows of each member of a generation."""
    folder, start = generation_folder(path, generation.number), f"generations/{generation.number}"
    for file in sorted((folder / "model").rglob("*")):
        if file.is_file():
            yield f"{start}/{file.relative_to(folder).as_posix()}", file.read_bytes(), 0
    for name in BESIDE:
        if (folder / name).exists():
            yield f"{start}/{name}", (folder / name).read_bytes(), 0
    with contextlib.closing(open_store(path, generation)) as store:
        for number, records in enumerate(store.scan(vectors=True, batch=BATCH)):
            yield f"{start}/rows/{number:06d}.arrow", _to_arrow(records), len(records)


def _to_arrow(records: Sequence[Record]) -> bytes:
    import pyarrow as pa

    vectors = [np.asarray(record.vector, "<f4").tobytes() for record in records]
    table = pa.table(
        {
            "id": [record.id for record in records],
            "vector": pa.array(vectors, pa.binary()),
            "payload": [json.dumps(record.payload) for record in records],
        }
    )
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


def restore(
    *,
    file: str | Path,
    index: str | Path | None = None,
    folder: str | Path | None = None,
    store: str | None = None,
    progress: bool = True,
) -> Backup:
    """Restore an index from a backup.

    An existing index is never overwritten.

    Args:
        file: The file that ``backup`` wrote.
        index: Name or folder of the restored index (default: the old name).
        folder: Where its images are now (default: where they were).
        store: Vector store to restore to (default: the kind it had).
        progress: Show a progress bar.

    Returns:
        What was restored.

    Raises:
        LookalikeError: If the file is not a complete backup, or the index exists.

    Example:
        >>> la.restore(file="photos.lookalike", index="copy").name  # doctest: +SKIP
        'copy'
    """
    source = Path(file).expanduser()
    if not source.is_file():
        raise LookalikeError(f"There is no backup `{file}`.")
    try:
        with tarfile.open(source, "r:") as tar:
            document = check_format("backup", json.loads(_read(tar, MARK)), source)
            manifest = Manifest.model_validate(document["manifest"])
            path = _new_path(manifest, index)
            old = Path(manifest.source)
            manifest.source = str(old if folder is None else Path(folder).expanduser().resolve())
            for generation in manifest.generations:
                generation.store = store_name(store or generation.store)
            with _lock(path):
                try:
                    _clear(path)
                except Unavailable as error:
                    warn(f"what an interrupted restore left beside `{path}` cannot be deleted: {error}")
                _write(tar, document["sums"], manifest, path, old, progress)
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise LookalikeError(f"`{source}` is not a complete backup of lookalike.") from error
    return Backup(
        manifest.name, path, manifest.generation().images, len(manifest.generations), folders.disk_usage(path)
    )


def _new_path(manifest: Manifest, index: str | os.PathLike[str] | None) -> Path:
    requested = Path(index).expanduser() if index is not None else Path(manifest.name)
    path = folders.indexes() / requested.name if len(requested.parts) == 1 else requested.absolute()
    if path.exists() and (is_index(path) or any(path.iterdir())):
        raise LookalikeError(f"`{path}` exists already: choose another --index, or purge it first.")
    folders.refuse_network_drive(path, "an index")
    return path


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """One restore at a time for each path: leftovers beside it belong to no running restore then."""
    locks = folders.private_folder(folders.home() / "restores")
    return hold(locks / f"{path_key(path)}.lock", f"Restoring `{path.name}`")


def leftovers(path: Path) -> list[Path]:
    """Return the folders that killed restores to a path left behind."""
    return [part for part in leftover_parts(path) if (part / "generations").is_dir()]


def clear_leftovers(path: Path) -> None:
    """Delete the folders that killed restores to a path left behind."""
    with _lock(path):
        _clear(path)


def _clear(path: Path) -> None:
    for part in leftovers(path):
        remove_generations(part)
        shutil.rmtree(part)


def _write(
    tar: tarfile.TarFile, sums: dict[str, str], manifest: Manifest, path: Path, old: Path, progress: bool
) -> None:
    """Fill a temporary folder that is renamed to `path` when complete; `old` is where the images were."""
    require_space(path, sum(g.images * row_bytes(g.store, g.dim) for g in manifest.generations), "The index")
    total, new = sum(generation.images for generation in manifest.generations), Path(manifest.source)
    with atomic_folder(path, private=True) as part, Progress("Restoring", total, shown=progress) as bar:
        try:
            for generation in manifest.generations:
                _fill(tar, part, generation, sums, bar)
                if new != old:
                    _relocate(generation_folder(part, generation.number), generation, old, new)
            manifest.name = path.name
            manifest.write(part)
        except BaseException:
            remove_generations(part)  # on a server too
            raise


def _fill(tar: tarfile.TarFile, part: Path, generation: Generation, sums: dict[str, str], bar: Progress) -> None:
    start = f"generations/{generation.number}/"
    folder = generation_folder(part, generation.number)
    store = create_store(generation.store, store_folder(part, generation.number), generation.dim)
    with contextlib.closing(store):
        for name in (name for name in sums if name.startswith(start)):
            data = _read(tar, name)
            if hashlib.sha256(data).hexdigest() != sums[name]:
                raise ValueError(f"{name} is damaged")
            rest = PurePosixPath(name.removeprefix(start))
            if rest.parts[0] == "rows":
                bar.advance(_put_rows(store, data, generation.dim))
            elif ".." in rest.parts or rest.is_absolute():
                raise ValueError(f"{name} is outside the backup")
            else:
                write_bytes(folder / rest, data, private=True)
        if store.count() != generation.images:
            raise ValueError(f"{store.count()} of {generation.images} rows")
        generation.graph = store.build()
        store.flush()


def _relocate(folder: Path, generation: Generation, old: Path, new: Path) -> None:
    """Set the new image folder in the table and the manifest."""
    from lookalike.data import Table

    table = Table.load(folder / TABLE)
    root = moved_root(Path(generation.root or table.root or old), old, new)
    generation.root = str(root)
    replace(table, root=root).save(folder / TABLE)


def moved_root(root: Path, old: Path, new: Path) -> Path:
    """Return the root of images after their source, a folder or a table beside them, was moved.

    Args:
        root: The old root.
        old: The old source.
        new: The new source.

    Returns:
        The new root.
    """
    base = old if root.is_relative_to(old) else old.parent
    here = new.parent if new.is_file() else new
    same = here / root.relative_to(base) if root.is_relative_to(base) else here
    return here if here.is_dir() and not same.is_dir() else same


def _put_rows(store: Store, data: bytes, dim: int) -> int:
    import pyarrow as pa

    table = pa.ipc.open_stream(data).read_all()
    vectors = np.frombuffer(b"".join(table["vector"].to_pylist()), "<f4").reshape(-1, dim)
    payloads = [json.loads(text) for text in table["payload"].to_pylist()]
    store.upsert(table["id"].to_pylist(), vectors, payloads)
    return len(payloads)


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return member.read()
