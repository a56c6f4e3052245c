"""Remove images from an index, and delete a whole index (the ``purge`` command)."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.database import FILE
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json
from lookalike.core.locks import hold
from lookalike.searching import manifest as manifests
from lookalike.searching.archive import clear_leftovers, leftovers
from lookalike.searching.filters import Filters, parse, to_rule
from lookalike.searching.index_folder import TABLE, Index, generation_folder, open_store, remove_generations
from lookalike.searching.locate import find_index, index_path, is_leftover, path_key
from lookalike.searching.manifest import Generation, Manifest
from lookalike.searching.payload import PROTOTYPE
from lookalike.store import Condition, Store


def remove_rows(index: Index, rows: Sequence[str]) -> int:
    """Remove rows whose files are gone from the live generation.

    Args:
        index: The index.
        rows: Row ids.

    Returns:
        How many of them there were.
    """
    return _delete_rows(index, lambda _, store: _existing(store, rows), every=False)


def remove(*, index: str | os.PathLike[str] | None, filters: Filters, dry_run: bool = False) -> int:
    """Remove the images that meet a filter from an index, and keep them out; the files stay.

    Args:
        index: An index (default: the one updated last).
        filters: Which images, as in ``path=sea/*``.
        dry_run: Only count them.

    Returns:
        How many there were.
    """
    with Index(find_index(index)) as opened:  # nothing is decoded, so any decoder will do
        where = parse(filters, opened.columns)
        if not where:
            raise LookalikeError(
                "Say which images to remove, as in `path=sea/*`; `lookalike purge` deletes the whole index."
            )
        columns = {condition.column for condition in where}
        opened.check_columns(columns)
        if PROTOTYPE in columns and not opened.table.has(PROTOTYPE):
            raise LookalikeError(
                f"`{PROTOTYPE}` is assigned by the model and cannot keep images out: remove by another column, "
                "as in `path=sea/*`."
            )
        rows = _matching(opened.store, where)
        if rows and len(rows) == opened.store.count():
            raise LookalikeError("This would remove every image; `lookalike purge` deletes the whole index.")
        if dry_run:
            return len(rows)

        def select(generation: Generation, store: Store) -> set[str]:
            """These rows, and those that only another generation has, if it has the columns."""
            own = _matching(store, where) if columns <= set(generation.columns) else set()
            return own | _existing(store, rows)

        return _delete_rows(opened, select, every=True, rule=to_rule(where))


def _matching(store: Store, where: Sequence[Condition]) -> set[str]:
    return {record.id for part in store.scan(where=where) for record in part}


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
        stores = [
            stack.enter_context(contextlib.closing(open_store(index.path, generation, write=True)))
            for generation in generations
        ]
        if rule:
            manifest.without = [*(old for old in manifest.without if old != rule), list(rule)]
        for generation, store in zip(generations, stores, strict=True):
            names, complete = select(generation, store), generation.complete
            generation.complete = False
            manifest.write(index.path)
            store.delete(sorted(names))
            store.flush()
            file = generation_folder(index.path, generation.number) / TABLE
            if file.exists():
                table = Table.load(file)
                table.take([name not in names for name in table.column("row_id")]).save(file)
            generation.images, generation.updated = store.count(), manifests.now()
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

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        return dict(self.__dict__)


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
        path = index_path(index)
        unfinished = [path] if is_leftover(path) and any(path.iterdir()) else []
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
    manifest = manifests.read(path)
    with hold(path / ".lock", f"The index `{path.name}`"):
        parts, thumbs, caches = leftovers(path), _thumbnails(path), _caches(path, manifest)
        uploads = folders.home() / "queries" / path_key(path)
        result = PurgeResult(
            manifest.name,
            max((g.images for g in manifest.generations), default=0),
            sum(folders.disk_usage(place) for place in (path, *parts, uploads, *caches, *thumbs)),
            len(thumbs),
            len(list(uploads.glob("u.*.json"))),
        )
        if dry_run:
            return result
        if parts:
            clear_leftovers(path)
        remove_generations(path)
        for file in (*thumbs, *caches):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        for folder in (uploads, folders.cache("thumbs") / path_key(path)):
            shutil.rmtree(folder, ignore_errors=True)
        (path / FILE).unlink()  # from here on it is not an index
    shutil.rmtree(path)
    return result


def _thumbnails(path: Path) -> list[Path]:
    return list(folders.cache("thumbs").glob(f"{path_key(path)}/*/*.jpg"))


def _caches(path: Path, manifest: Manifest) -> list[Path]:
    """Cache entries about the images of an index: facts, features and pixels of its tables."""
    from lookalike.data import Table
    from lookalike.searching.image_facts import cache_files

    tables = [Table.load(file) for file in path.glob(f"generations/*/{TABLE}")]
    fingerprints = {table.fingerprint() for table in tables}
    roots = {Index(path, generation.number).root for generation in manifest.generations}
    entries = {file for root in roots | {table.root for table in tables} for file in cache_files(root)}
    for about in (*folders.cache("features").glob("*/info.json"), *folders.cache("pixels").glob("*/about.json")):
        document = read_json(about, "cache entry")
        if document.get("table", document.get("about", {}).get("table")) in fingerprints:
            entries.add(about.parent)
    return sorted(entries)
