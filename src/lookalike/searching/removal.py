"""Remove images from an index, and delete a whole index (the ``purge`` command)."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike.core import artifacts, folders
from lookalike.core.database import FILE, DamagedDatabase, user_database, user_rows
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold, in_use
from lookalike.searching import manifest as manifests
from lookalike.searching.archive import clear_leftovers, leftovers
from lookalike.searching.filters import Filters, parse, to_rule
from lookalike.searching.index_folder import (
    TABLE,
    Index,
    file_checksums,
    generation_folder,
    open_store,
    remove_generations,
)
from lookalike.searching.locate import default_path, find_index, index_path, is_leftover, path_key
from lookalike.searching.manifest import Generation, Manifest
from lookalike.searching.payload import PROTOTYPE
from lookalike.store import Store, remove_store

# Uploads that a server keeps for their links.
UPLOADS = (
    "CREATE TABLE IF NOT EXISTS upload(id TEXT PRIMARY KEY, place TEXT, time REAL, model TEXT, "
    "hash TEXT, width INTEGER, height INTEGER, vector BLOB, image BLOB)"
)


def remove_rows(index: Index, rows: Sequence[str]) -> int:
    """Remove rows whose files are gone from the live generation."""
    return _delete_rows(index, lambda _, store: _existing(store, rows), every=False)


def remove(*, index: str | os.PathLike[str] | None, filters: Filters, dry_run: bool = False) -> int:
    """Remove the images that meet a filter from an index, and keep them out; the files stay."""
    from lookalike.data import exif

    with Index(find_index(index)) as opened:  # nothing is decoded, so any decoder will do
        where = parse(filters, opened.columns)
        if not where:
            raise LookalikeError(
                "Say which images to remove, as in `path=sea/*`; `lookalike purge` deletes the whole index."
            )
        columns = {condition.column for condition in where}
        opened.check_columns(columns)
        if opened.tags.column in columns:
            raise LookalikeError("Tags cannot keep images out: remove by another column, as in `path=sea/*`.")

        def matching(store: Store) -> set[str]:
            return {record.id for part in store.scan(where=where) for record in part}

        made = sorted(name for name in columns & {PROTOTYPE, *exif.COLUMNS} if not opened.table.has(name))
        if made:  # the next run decides by the table alone what to leave out
            source = "assigned by the model" if made[0] == PROTOTYPE else "read from the images"
            raise LookalikeError(
                f"`{made[0]}` is {source} and cannot keep images out: remove by another column, as in `path=sea/*`."
            )
        rows = matching(opened.store)
        if rows and len(rows) == opened.store.count():
            raise LookalikeError("This would remove every image; `lookalike purge` deletes the whole index.")
        if dry_run:
            return len(rows)

        def select(generation: Generation, store: Store) -> set[str]:
            """These rows, and those that only another generation has, if it has the columns."""
            own = matching(store) if columns <= set(generation.columns) else set()
            return own | _existing(store, rows)

        return _delete_rows(opened, select, every=True, rule=to_rule(where))


def _existing(store: Store, rows: Collection[str]) -> set[str]:
    return {record.id for record in store.get(list(rows)) if record is not None}


def _delete_rows(
    index: Index, select: Callable[[Generation, Store], set[str]], *, every: bool, rule: Sequence[str] = ()
) -> int:
    """Delete rows from the live or every generation, its table and its count; returns how many of the live one.

    The rule that keeps them out is written first, so that the next indexing run completes what a kill interrupted.
    """
    from lookalike.data import Table

    removed = 0
    with hold(index.path / ".lock", f"The index `{index.path.name}`"), contextlib.ExitStack() as stack:
        manifest = manifests.read(index.path)
        generations = manifest.generations if every else [manifest.generation()]
        # All are opened before one is changed: if a store is in use or unreachable, none is changed.
        opened = (open_store(index.path, generation, write=True) for generation in generations)
        stores = [stack.enter_context(contextlib.closing(store)) for store in opened]
        if rule:
            manifest.without = [*(old for old in manifest.without if old != rule), list(rule)]
        for generation, store in zip(generations, stores, strict=True):
            names, complete = select(generation, store), generation.complete
            generation.complete = False
            manifest.write(index.path)
            store.delete(sorted(names))
            file = generation_folder(index.path, generation.number) / TABLE
            if file.exists():
                table = Table.load(file)
                table.take([name not in names for name in table.column("row_id")]).save(file)
            generation.images, generation.updated = store.count(), manifests.now()
            generation.checksums = file_checksums(file.parent)
            generation.complete = complete and generation.images > 0  # an empty one cannot be switched to
            generation.writes += 1
            manifest.write(index.path)
            if generation.number == manifest.live:
                removed = len(names)
    return removed


@dataclass
class PurgeResult:
    """What ``purge`` deleted.

    Args:
        name: Name of the index.
        images: Number of its images.
        bytes: Space that was freed.
        thumbnails: Number of thumbnails.
        queries: Number of stored uploads.
    """

    name: str
    images: int
    bytes: int
    thumbnails: int
    queries: int


def purge(*, index: str | Path, dry_run: bool = False) -> PurgeResult:
    """Delete an index with everything made from its images.

    Vectors, model copies, calibration, map, thumbnails, stored uploads and cache entries are deleted. The images
    themselves are not touched.

    Args:
        index: The index to delete.
        dry_run: Only list what would be deleted.

    Returns:
        What was deleted.

    Example:
        >>> la.purge(index="photos", dry_run=True).images  # doctest: +SKIP
        24
    """
    try:
        named = find_index(index)
    except LookalikeError:
        paths = [index_path(index), default_path(Path(index).expanduser().resolve())]
        path = next((path for path in paths if is_leftover(path) or leftovers(path)), paths[0])
        own = path.parent == folders.indexes()  # an empty folder elsewhere is not ours
        unfinished = [path] if is_leftover(path) and (own or any(path.iterdir())) else []
        parts = leftovers(path) + unfinished
        if not parts:
            raise
        result = PurgeResult(path.name, 0, sum(map(folders.disk_usage, parts)), 0, 0)
        if not dry_run:
            clear_leftovers(path)
            for folder in unfinished:
                with hold(folder / ".lock", f"The index `{folder.name}`"):
                    remove_generations(folder)
                shutil.rmtree(folder)
        return result
    path = named.resolve()
    try:
        manifest = manifests.read(path)
    except DamagedDatabase:  # it can only be deleted
        manifest = Manifest(name=path.name, source="")
    served = f"The index `{path.name}` is being served or watched: stop `lookalike serve` or `index --watch` first."
    alone = contextlib.nullcontext() if dry_run else in_use(path, served, alone=True)
    with hold(path / ".lock", f"The index `{path.name}`"), alone:
        parts, caches = leftovers(path), _caches(path, manifest)
        uploads = user_rows("SELECT length(image) FROM upload WHERE place = ?", (path_key(path),))
        images = max((g.images for g in manifest.generations), default=0)
        size = sum(count for (count,) in uploads) + sum(map(folders.disk_usage, (path, *parts, *caches)))
        thumbnails = sum(file.parent.name == "thumbs" for file in caches)
        result = PurgeResult(manifest.name, images, size, thumbnails, len(uploads))
        if dry_run:
            return result
        if parts:
            clear_leftovers(path)
        for folder in path.glob("generations/[0-9]*"):
            with contextlib.suppress(DamagedDatabase):  # what is here goes with the folder
                remove_store(folder)
        for file in caches:
            artifacts.delete(file)
        if uploads:
            write_uploads("DELETE FROM upload WHERE place = ?", [(path_key(path),)])
        (path / FILE).unlink()  # from here on it is not an index
    shutil.rmtree(path)
    return result


def write_uploads(statement: str, rows: Sequence[Any]) -> None:
    """Change the table of kept uploads; what is deleted is overwritten."""
    with contextlib.closing(user_database(UPLOADS)) as database, database.transaction() as connection:
        connection.execute("PRAGMA secure_delete=1")
        connection.executemany(statement, rows)


def _caches(path: Path, manifest: Manifest) -> list[Path]:
    """Artifacts about the images of an index: its thumbnails, facts about its folders, features of its tables."""
    from lookalike.data import Table
    from lookalike.searching.image_facts import cache_group

    tables = []
    for file in path.glob(f"generations/*/{TABLE}"):
        with contextlib.suppress(LookalikeError):  # damaged
            tables.append(Table.load(file))
    roots = {Index(path, generation.number).root for generation in manifest.generations}
    groups = {cache_group(root) for root in roots | {table.root for table in tables}}
    return artifacts.of_groups({path_key(path), *groups, *(table.fingerprint() for table in tables)})
