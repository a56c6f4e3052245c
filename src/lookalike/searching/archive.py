"""`backup` and `restore`: an index as one file that any store can be filled from again.

The file is a tar: the manifest, and for each generation its model, table, calibration and rows (ids, vectors,
payloads) as Arrow streams. What was read is checked by hash at both ends. A graph is not stored: it is built anew.
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
from lookalike.core.files import atomic_file, atomic_folder, check_format, left_parts, need_space, stamp, write_bytes
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
    """What was written or read."""

    name: str
    path: Path
    images: int
    generations: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def backup(
    *, index: str | os.PathLike[str] | None = None, out: str | os.PathLike[str], progress: bool = True
) -> Backup:
    """Write an index to one file, from which `restore` makes it again, here or elsewhere."""
    path, goal = find_index(index), Path(out).expanduser().absolute()
    if goal.exists():
        raise LookalikeError(f"`{goal}` is there already: choose another name for the backup.")
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        complete = [generation for generation in manifest.generations if generation.complete]
        if not complete:
            raise LookalikeError(f"The index `{manifest.name}` is not complete: finish `lookalike index` first.")
        manifest.generations = complete
        if manifest.live not in {generation.number for generation in complete}:
            manifest.live = complete[-1].number
        need_space(goal, sum(g.images * (4 * g.dim + 1_000) for g in complete), "The backup")
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
    """(name, bytes, rows in it) of all that a generation is made of."""
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
    file: str | os.PathLike[str],
    index: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    store: str | None = None,
    progress: bool = True,
) -> Backup:
    """Make an index again from the file that `backup` wrote.

    `index` is its new name or folder (default: the old name), `folder` where its images are now, `store` another
    kind of store than it had. An index that is there is never written over.
    """
    source = Path(file).expanduser()
    if not source.is_file():
        raise LookalikeError(f"There is no backup `{file}`.")
    try:
        with tarfile.open(source, "r:") as tar:
            document = check_format("backup", json.loads(_read(tar, MARK)), source)
            manifest = Manifest.model_validate(document["manifest"])
            place = _new_place(manifest, index)
            old = Path(manifest.source)
            manifest.source = str(old if folder is None else Path(folder).expanduser().resolve())
            for generation in manifest.generations:
                generation.store = store_name(store or generation.store)
            with _alone(place):
                try:
                    _clear(place)
                except Unavailable as error:
                    warn(f"what a stopped restore left beside `{place}` is not deleted: {error}")
                _write(tar, document["sums"], manifest, place, old, progress)
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise LookalikeError(f"`{source}` is not a whole backup of lookalike.") from error
    return Backup(manifest.name, place, manifest.generation().images, len(manifest.generations), folders.size_of(place))


def _new_place(manifest: Manifest, index: str | os.PathLike[str] | None) -> Path:
    wanted = Path(index).expanduser() if index is not None else Path(manifest.name)
    place = folders.indexes() / wanted.name if len(wanted.parts) == 1 else wanted.absolute()
    if place.exists() and (is_index(place) or any(place.iterdir())):
        raise LookalikeError(f"`{place}` is there already: choose another --index, or purge it first.")
    folders.refuse_network_drive(place, "an index")
    return place


def _alone(place: Path) -> contextlib.AbstractContextManager[None]:
    """One restore at a time for each place: what others left beside it is nobody's then."""
    locks = folders.private_folder(folders.home() / "restores")
    return hold(locks / f"{path_key(place)}.lock", f"Restoring `{place.name}`")


def leftovers(place: Path) -> list[Path]:
    """Folders that restores to a place left when they were killed."""
    return [part for part in left_parts(place) if (part / "generations").is_dir()]


def clear_leftovers(place: Path) -> None:
    with _alone(place):
        _clear(place)


def _clear(place: Path) -> None:
    for part in leftovers(place):
        remove_generations(part)
        shutil.rmtree(part)


def _write(
    tar: tarfile.TarFile, sums: dict[str, str], manifest: Manifest, place: Path, old: Path, progress: bool
) -> None:
    """Fill a folder that takes its place when it is whole; `old` is where the images were."""
    need_space(place, sum(g.images * row_bytes(g.store, g.dim) for g in manifest.generations), "The index")
    total, new = sum(generation.images for generation in manifest.generations), Path(manifest.source)
    with atomic_folder(place, private=True) as part, Progress("Restoring", total, shown=progress) as bar:
        try:
            for generation in manifest.generations:
                _fill(tar, part, generation, sums, bar)
                if new != old:
                    _relocate(generation_folder(part, generation.number), generation, old, new)
            manifest.name = place.name
            manifest.write(part)
        except BaseException:
            remove_generations(part)  # what a server already has of it
            raise


def _fill(tar: tarfile.TarFile, part: Path, generation: Generation, sums: dict[str, str], bar: Progress) -> None:
    start = f"generations/{generation.number}/"
    folder = generation_folder(part, generation.number)
    made = create_store(generation.store, store_folder(part, generation.number), generation.dim)
    with contextlib.closing(made):
        for name in (name for name in sums if name.startswith(start)):
            data = _read(tar, name)
            if hashlib.sha256(data).hexdigest() != sums[name]:
                raise ValueError(f"{name} is damaged")
            rest = PurePosixPath(name.removeprefix(start))
            if rest.parts[0] == "rows":
                bar.advance(_put_rows(made, data, generation.dim))
            elif ".." in rest.parts or rest.is_absolute():
                raise ValueError(f"{name} leads out of the backup")
            else:
                write_bytes(folder / rest, data, private=True)
        if made.count() != generation.images:
            raise ValueError(f"{made.count()} of {generation.images} rows")
        generation.built = made.build()
        made.flush()


def _relocate(folder: Path, generation: Generation, old: Path, new: Path) -> None:
    """The images lie elsewhere now: the table and the manifest say where."""
    from lookalike.data import Table

    table = Table.load(folder / TABLE)
    root = moved_root(Path(generation.root or table.root or old), old, new)
    generation.root = str(root)
    replace(table, root=root).save(folder / TABLE)


def moved_root(root: Path, old: Path, new: Path) -> Path:
    """Where the root of some images is after their source, a folder or a table beside them, went to `new`."""
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
        raise ValueError(f"{name} is no file")
    return member.read()
