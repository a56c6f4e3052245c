"""The ``backup`` and ``restore`` commands: an index as one file.

The file is a tar archive of an index with the local store: a copy of its database (SQLite's online backup, so writing
may go on) and, for each generation, its vectors, model and table, all verified by hashes. Rows on a server are copied
to a local store first. The graph is not saved but built again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from lookalike.core import files, folders
from lookalike.core.database import FILE, Database, refuse_network_drive
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.locks import hold
from lookalike.core.progress import Progress, warn
from lookalike.core.storage import RemotePath, is_url, location
from lookalike.searching import manifest as manifests
from lookalike.searching.index_folder import TABLE, file_checksums, generation_folder, open_store, remove_generations
from lookalike.searching.locate import find_index, indexes, is_index, path_key
from lookalike.searching.manifest import Generation, Manifest
from lookalike.searching.payload import is_indexed_file
from lookalike.store import Store, create_store, store_name
from lookalike.store.local import LocalStore
from lookalike.store.local_rows import TABLES

MARK = "backup.json"
BLOCK = 1 << 20
# What a backup may contain: nothing else is written, wherever its name points.
PART = r"(?!\.\.?(?:/|$))[^/\\\0]+"
MEMBERS = re.compile(rf"{re.escape(FILE)}|generations/\d+/({re.escape(TABLE)}|vectors-\d+\.f32|model(/{PART})+)")
ATTEMPTS = 5  # to read one state of an index that is written to meanwhile
PLAIN_NAME = re.compile(r"[^\W_][^/\\:\0-\x1f\x7f-\x9f]{0,99}")  # of an index, that a backup may bring along
MAX_MARK = 4_000_000  # bytes of the list of members
READ_TABLES = """
import contextlib, os, sys
import pyarrow.parquet as pq
with contextlib.suppress(ImportError):  # a few bytes may stand for many
    import resource
    limit = (1 << 29) + 30 * sum(map(os.path.getsize, sys.argv[1:]))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for path in sys.argv[1:]:
    pq.read_table(path, memory_map=True, use_threads=False).validate(full=True)
"""


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


def backup(*, index: str | Path | None = None, out: str | Path, progress: bool = True) -> Backup:
    """Write an index to one file.

    ``restore`` makes the index again from it, here or on another machine, in any store. Incomplete generations are
    left out.

    Args:
        index: An index (default: the one updated last).
        out: The file or URL (s3://, gs://) to write; it must not exist.
        progress: Show a progress bar.

    Returns:
        What was written.

    Example:
        >>> la.backup(index="photos", out="photos.lookalike").images  # doctest: +SKIP
        24
    """
    path, goal = find_index(index), location(out).expanduser().absolute()
    if goal.exists():
        raise LookalikeError(f"`{goal}` exists already: choose another name for the backup.")
    manifest = manifests.read(path)
    complete = [generation for generation in manifest.generations if generation.writes]
    if not complete:
        raise LookalikeError(f"The index `{manifest.name}` is not complete: finish `lookalike index` first.")
    manifest.generations = complete
    if manifest.live not in {generation.number for generation in complete}:
        manifest.live = complete[-1].number
    needed = sum(g.images * (4 * g.dim + 1_000) for g in complete)
    if not isinstance(goal, RemotePath):
        files.require_space(goal, needed, "The backup")
    sums: dict[str, str] = {}
    with contextlib.ExitStack() as outer, contextlib.ExitStack() as stack:
        if isinstance(goal, RemotePath):  # as a stream; only the copy of the database needs space here
            stream = outer.enter_context(goal.writing())
            work = Path(outer.enter_context(tempfile.TemporaryDirectory(prefix="lookalike-")))
            tar = outer.enter_context(tarfile.open(fileobj=stream, mode="w|"))
        else:
            part = outer.enter_context(files.atomic_file(goal, private=True))
            work = outer.enter_context(files.temporary_folder(goal.with_name("lookalike-backup")))
            tar = outer.enter_context(tarfile.open(part, "w"))
        try:
            members = _snapshot(path, manifest, work, stack)
        except sqlite3.Error as error:
            raise LookalikeError(f"The index `{path}` is damaged: `lookalike verify` lists what is.") from error
        with Progress("Writing", sum(size for _, _, size in members), shown=progress) as bar:
            for name, file, size in members:
                sums[name] = _put(tar, name, file, size, bar)
        document = files.stamp("backup", {"manifest": manifest.model_dump(mode="json"), "sums": sums})
        body = json.dumps(document).encode()
        _put(tar, MARK, io.BytesIO(body), len(body))
    return Backup(manifest.name, goal, manifest.generation().images, len(complete), goal.stat().st_size)


def _snapshot(
    path: Path, manifest: Manifest, work: Path, stack: contextlib.ExitStack
) -> list[tuple[str, IO[bytes], int]]:
    """Names, open files and sizes of one state of an index; its manifest gets the counts of that state."""
    copy, local = work / FILE, [g.number for g in manifest.generations if g.store == "local"]
    for _ in range(ATTEMPTS):
        copy.unlink(missing_ok=True)
        vectors = {
            f"generations/{number}/{file.name}": stack.enter_context(file.open("rb"))
            for number in local
            for file in generation_folder(path, number).glob("vectors-*.f32")
        }
        with contextlib.closing(Database(path / FILE)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.connection.backup(target)
            tables = target.execute("SELECT 1 FROM sqlite_master WHERE name = 'store'").fetchone()
            rows = target.execute("SELECT number, dim, version, rows - base FROM store") if tables else []
            sizes = {f"generations/{n}/vectors-{version}.f32": 4 * dim * count for n, dim, version, count in rows}
        if {name for name in sizes if int(name.split("/")[1]) in local} <= vectors.keys():
            break  # else a compaction fell between the two
    else:
        raise LookalikeError(f"The index `{path}` is damaged: vectors that its database names are missing.")
    members = [(name, vectors[name], size) for name, size in sizes.items() if name in vectors]
    for generation in manifest.generations:
        folder, place = generation_folder(path, generation.number), generation_folder(work, generation.number)
        if generation.number not in local:
            with contextlib.closing(open_store(path, generation)) as rows_on_server:
                store = create_store("local", place, generation.dim)
                with contextlib.closing(store):
                    copy_rows(rows_on_server, store)
            file = place / "vectors-1.f32"
            name = f"generations/{generation.number}/{file.name}"
            members.append((name, stack.enter_context(file.open("rb")), file.stat().st_size))
            generation.store = "local"
        with contextlib.closing(sqlite3.connect(copy)) as database:
            (generation.images,) = database.execute(f"SELECT COUNT(*) FROM rows_{generation.number}").fetchone()
        for file in sorted([folder / TABLE, *(folder / "model").rglob("*")]):
            if file.is_file():
                name = f"generations/{generation.number}/{file.relative_to(folder).as_posix()}"
                members.append((name, stack.enter_context(file.open("rb")), file.stat().st_size))
    saved = {generation.number for generation in manifest.generations}
    for number in {int(name.split("/")[1]) for name in sizes} - saved:
        LocalStore.drop(str(generation_folder(work, number)))
    return [(FILE, stack.enter_context(copy.open("rb")), copy.stat().st_size), *members]


def copy_rows(source: Store, target: Store) -> None:
    """Copy all rows of a store to another."""
    for records in source.scan(vectors=True):
        vectors = np.stack([record.vector for record in records if record.vector is not None])
        target.upsert([record.id for record in records], vectors, [record.payload for record in records])


def _put(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int, bar: Progress | None = None) -> str:
    """Add a member to an archive; returns its hash."""
    member, digest = tarfile.TarInfo(name), hashlib.sha256()
    member.size, member.mode = size, 0o600

    class Hashed(io.RawIOBase):
        def read(self, count: int = -1) -> bytes:
            data = file.read(count)
            digest.update(data)
            if bar is not None:
                bar.advance(len(data))
            return data

    try:
        tar.addfile(member, Hashed())
    except OSError as error:
        if error.errno is not None:
            raise
        raise LookalikeError(f"`{name}` is too short: `lookalike verify` lists what is damaged.") from error
    return digest.hexdigest()


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
        file: The file or URL that ``backup`` wrote.
        index: Name or folder of the restored index (default: the old name).
        folder: Where its images are now (default: where they were).
        store: Vector store to restore to: local, milvus://HOST:19530 or postgresql://HOST/DATABASE (default: local).
        progress: Show a progress bar.

    Returns:
        What was restored.

    Raises:
        LookalikeError: If the file is not a complete backup, or the index exists.

    Example:
        >>> la.restore(file="photos.lookalike", index="copy").name  # doctest: +SKIP
        'copy'
    """
    source = location(file).expanduser()
    if not source.is_file():
        raise LookalikeError(f"There is no backup `{file}`.")
    kind = store_name(store or "local")
    try:
        with files.TarReader(source) as opened, tarfile.open(fileobj=opened, mode="r:") as tar:
            members = _members(tar, _real_size(source))
            mark = tar.extractfile(members[MARK])
            assert mark is not None
            document = files.check_format("backup", json.loads(mark.read()), source)
            manifest = Manifest.model_validate(document["manifest"])
            if set(document["sums"]) != set(members) - {MARK}:
                raise ValueError("members are missing")
            path = _new_path(manifest, index)
            old = location(manifest.source)
            manifest.source = str(old if folder is None else location(folder).expanduser().resolve())
            manifest.root = manifest.root if folder is None else None
            with _lock(path):
                try:
                    _clear(path)
                except Unavailable as error:
                    warn(f"what an interrupted restore left beside `{path}` cannot be deleted: {error}")
                files.require_space(path, source.stat().st_size, "The index")
                with files.atomic_folder(path, private=True) as part:
                    try:
                        _unpack(tar, members, document["sums"], part, progress)
                        _check(part, manifest)
                        if folder is None:
                            _check_roots(part, manifest)
                        for generation in manifest.generations:
                            _finish(part, generation, kind)
                            if folder is not None:
                                _relocate(part, generation, old, location(manifest.source))
                            generation.checksums = file_checksums(generation_folder(part, generation.number))
                        manifest.name = path.name
                        manifest.write(part)
                    except BaseException:
                        remove_generations(part)  # on a server too
                        raise
    except (
        *(tarfile.TarError, KeyError, ValueError, TypeError, AttributeError, EOFError, RecursionError),
        sqlite3.Error,
    ) as error:
        raise LookalikeError(f"`{source}` is not a complete backup of lookalike.") from error
    return Backup(
        manifest.name, path, manifest.generation().images, len(manifest.generations), folders.disk_usage(path)
    )


def _members(tar: tarfile.TarFile, size: int) -> dict[str, tarfile.TarInfo]:
    """The members of a backup by name: plain files with expected names that fill no more than the file itself."""
    members: dict[str, tarfile.TarInfo] = {}
    try:
        for member in tar:
            known = member.name == MARK or MEMBERS.fullmatch(member.name)
            if not known or not member.isreg() or member.issparse() or member.size < 0 or member.name in members:
                raise ValueError(f"{member.name} does not belong into a backup")
            members[member.name] = member
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("a member ends before the file begins") from error
    if sum(member.size for member in members.values()) > size or members[MARK].size > MAX_MARK:
        raise ValueError("members are larger than the file")
    return members


def _real_size(source: Path) -> int:
    """The size of a file, or four times what it takes of its disk if that is less: holes are no content."""
    status = source.stat()
    blocks = 0 if isinstance(source, RemotePath) else getattr(status, "st_blocks", 0)
    return min(status.st_size, 4 * 512 * blocks) if blocks else int(status.st_size)


def _unpack(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], sums: dict[str, str], part: Path, progress: bool
) -> None:
    with Progress("Restoring", sum(members[name].size for name in sums), shown=progress) as bar:
        for name, expected in sums.items():
            file, digest, goal = tar.extractfile(members[name]), hashlib.sha256(), part / name
            assert file is not None
            goal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with goal.open("wb") as out:
                while block := file.read(BLOCK):
                    digest.update(block)
                    out.write(block)
                    bar.advance(len(block))
            if digest.hexdigest() != expected:
                raise ValueError(f"{name} is damaged")


def _check(part: Path, manifest: Manifest) -> None:
    """Raise if the database is damaged, holds anything but expected tables, or does not fit to the vectors.

    Nobody may plant a trigger or a view; tables in Parquet are read in a process of their own first.
    """
    numbers = [generation.number for generation in manifest.generations]
    expected = {"document", "store", "name"} | {f"{table}_{n}" for table in TABLES for n in numbers}
    with contextlib.closing(sqlite3.connect(part / FILE)) as database:
        database.execute("PRAGMA trusted_schema=OFF")
        entries = database.execute("SELECT type, tbl_name FROM sqlite_master").fetchall()
        if any(kind not in ("table", "index") or table not in expected for kind, table in entries):
            raise ValueError("the database holds other tables")
        if database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise ValueError("the database is damaged")
        for generation in manifest.generations:
            row = database.execute("SELECT dim FROM store WHERE number = ?", (generation.number,)).fetchone()
            count = database.execute(f"SELECT COUNT(*) FROM rows_{generation.number}").fetchone()
            if row != (generation.dim,) or count != (generation.images,):
                raise ValueError("rows are missing")
    tables = [str(generation_folder(part, number) / TABLE) for number in numbers]
    if subprocess.run([sys.executable, "-P", "-c", READ_TABLES, *tables], capture_output=True, check=False).returncode:
        raise ValueError("a table is damaged")


def _finish(part: Path, generation: Generation, kind: str) -> None:
    """Move the rows of a generation to another store if one was named, and build its graph."""
    place = generation_folder(part, generation.number)
    with contextlib.closing(LocalStore.open(str(place), write=kind == "local")) as local:
        if kind == "local":
            generation.graph = local.build()
        else:
            with contextlib.closing(create_store(kind, place, generation.dim)) as store:
                copy_rows(local, store)
                generation.graph = store.build()
    generation.store = kind
    if kind != "local":
        LocalStore.drop(str(place))
        for file in place.glob("vectors-*.f32"):
            file.unlink()


def _new_path(manifest: Manifest, index: str | os.PathLike[str] | None) -> Path:
    if index is None and not PLAIN_NAME.fullmatch(manifest.name):  # a file that somebody else made
        raise LookalikeError("The name in this backup is no plain name of an index: choose one with --index.")
    requested = Path(index).expanduser() if index is not None else Path(manifest.name)
    path = folders.indexes() / requested.name if len(requested.parts) == 1 else requested.absolute()
    if path.exists() and (is_index(path) or any(path.iterdir())):
        raise LookalikeError(f"`{path}` exists already: choose another --index, or purge it first.")
    refuse_network_drive(path)
    return path


def _check_roots(part: Path, manifest: Manifest) -> None:
    """Raise unless the images lie plainly where a backup says: whoever made it would choose what is served.

    A folder is taken if another index of this user has it. Else some of the files that rows name must be there, and
    all that are there must be those that were indexed, by size and time or by their bytes, which nobody else knows of a
    private file. So one's own backup needs no ``--folder`` as long as its images are where they were.
    """
    known: set[str | None] = {None}
    for path in indexes():
        with contextlib.suppress(LookalikeError):  # damaged: reported when it is opened
            known |= _named(manifests.read(path))
    named, source = _named(manifest), Path(manifest.source)
    for name in named - {None}:
        if not is_url(name) and (
            not Path(str(name)).is_absolute() or Path.home().resolve().is_relative_to(os.path.normpath(str(name)))
        ):
            raise LookalikeError(f"The backup says that its images are in `{name}`: name their folder with --folder.")
    for generation in manifest.generations:
        root = Path(generation.root or source)
        if is_url(generation.root or manifest.source):  # nothing is served from a bucket
            continue
        why = "" if named <= known else _differs(part, generation, root)
        if {manifest.source, manifest.root} - known - {str(root)} and not (source.parent == root and source.is_file()):
            why = why or f"but it is of `{manifest.root or source}`"
        if why:
            raise LookalikeError(
                f"The backup says that its images are in `{root}`, {why}: name their folder with --folder."
            )


def _named(manifest: Manifest) -> set[str | None]:
    return {manifest.source, manifest.root, *(generation.root for generation in manifest.generations)}


def _differs(part: Path, generation: Generation, root: Path) -> str:
    """Why the files of a folder are not those that were indexed; empty if they are."""
    count = 0
    with contextlib.closing(LocalStore.open(str(generation_folder(part, generation.number)))) as store:
        for record in (record for records in store.scan() for record in records):
            same = is_indexed_file(root, record.payload)
            if same is False:
                return f"but `{record.payload.get('path')}` there is another file"
            count += same is True
    return "" if count else "where none of them is"


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """One restore at a time for each path: leftovers beside it belong to no running restore then."""
    locks = folders.private_folder(folders.home() / "restores")
    return hold(locks / f"{path_key(path)}.lock", f"Restoring `{path.name}`")


def leftovers(path: Path) -> list[Path]:
    """Return the folders that killed restores to a path left behind."""
    first = {FILE, f"{FILE}-wal", f"{FILE}-shm", MARK}  # what is there before the first generation
    parts = files.leftover_parts(path)
    return [part for part in parts if (part / "generations").is_dir() or not {p.name for p in part.iterdir()} - first]


def clear_leftovers(path: Path) -> None:
    """Delete the folders that killed restores to a path left behind."""
    with _lock(path):
        _clear(path)


def _clear(path: Path) -> None:
    for part in leftovers(path):
        remove_generations(part)
        shutil.rmtree(part)


def _relocate(part: Path, generation: Generation, old: Path, new: Path) -> None:
    """Set the new image folder in the table and the manifest."""
    from lookalike.data import Table

    file = generation_folder(part, generation.number) / TABLE
    table = Table.load(file)
    root = moved_root(location(generation.root or table.root or old), old, new)
    generation.root = str(root)
    replace(table, root=root).save(file)


def moved_root(root: Path, old: Path, new: Path) -> Path:
    """Return the root of images after their source, a folder or a table beside them, was moved."""
    base = old if root.is_relative_to(old) else old.parent
    here = new.parent if new.is_file() else new
    same = here / root.relative_to(base) if root.is_relative_to(base) else here
    return here if here.is_dir() and not same.is_dir() else same
