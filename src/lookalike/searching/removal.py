"""Taking images out of an index, and an index out of the world."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.locks import Locked, hold
from lookalike.searching import manifest as manifests
from lookalike.searching.archive import clear_leftovers, leftovers
from lookalike.searching.filters import Filters, parse, to_rule
from lookalike.searching.index_folder import TABLE, Index, generation_folder, open_store, remove_generations
from lookalike.searching.locate import find_index, index_path, path_key
from lookalike.searching.manifest import Generation, Manifest
from lookalike.searching.payload import PROTOTYPE
from lookalike.store import Condition, Store


def remove_rows(index: Index, rows: Sequence[str]) -> int:
    """Take rows, whose files are gone, out of the generation that answers; how many were there."""
    return _take_out(index, lambda _, store: _among(store, rows), every=False)


def remove(*, index: str | os.PathLike[str] | None, filters: Filters, dry_run: bool = False) -> int:
    """Take images that meet a filter out of an index, and keep them out; the files stay. How many there were."""
    with Index(find_index(index)) as opened:  # whatever decoder it was made with: nothing is decoded
        where = parse(filters, opened.columns)
        if not where:
            raise LookalikeError("Say which images to remove, as in `path=sea/*`; `lookalike purge` removes all.")
        columns = {condition.column for condition in where}
        opened.check_columns(columns)
        if PROTOTYPE in columns and not opened.table.has(PROTOTYPE):
            raise LookalikeError(
                f"`{PROTOTYPE}` is what the model makes of an image and nothing that could keep it out: "
                "remove by another column, as in `path=sea/*`."
            )
        rows = _matching(opened.store, where)
        if rows and len(rows) == opened.store.count():
            raise LookalikeError("This would remove every image; `lookalike purge` removes a whole index.")
        if dry_run:
            return len(rows)

        def wanted(generation: Generation, store: Store) -> set[str]:
            """Also what only an older generation has; not by columns it does not know."""
            own = _matching(store, where) if columns <= set(generation.columns) else set()
            return own | _among(store, rows)

        return _take_out(opened, wanted, every=True, rule=to_rule(where))


def _matching(store: Store, where: Sequence[Condition]) -> set[str]:
    return {record.id for part in store.scan(where=where) for record in part}


def _among(store: Store, rows: Collection[str]) -> set[str]:
    return {record.id for record in store.get(list(rows)) if record is not None}


def _take_out(
    index: Index, wanted: Callable[[Generation, Store], set[str]], *, every: bool, rule: Sequence[str] = ()
) -> int:
    """Take rows out of one or every generation, its table and its count; how many of the one that answers.

    The rule that keeps them out is written first: the next indexing run ends what a kill left half done.
    """
    from lookalike.data import Table

    removed = 0
    with hold(index.path / ".lock", f"The index `{index.path.name}`"), contextlib.ExitStack() as held:
        manifest = manifests.read(index.path)
        chosen = manifest.generations if every else [manifest.generation()]
        # All are opened before one is changed: a store in use, or a server that is away, leaves all as they were.
        stores = [_writable(index, generation, held) for generation in chosen]
        if rule:
            manifest.without = [*(old for old in manifest.without if old != rule), list(rule)]
        for generation, store in zip(chosen, stores, strict=True):
            names, whole = wanted(generation, store), generation.complete
            generation.complete = False
            manifest.write(index.path)
            store.delete(sorted(names))
            store.flush()
            file = generation_folder(index.path, generation.number) / TABLE
            if file.exists():
                table = Table.load(file)
                table.take([name not in names for name in table.column("row_id")]).save(file)
            generation.images, generation.updated = store.count(), manifests.now()
            generation.complete = whole and generation.images > 0  # nobody switches to one that is empty
            generation.writes += 1
            manifest.write(index.path)
            if generation.number == manifest.live:
                removed = len(names)
    return removed


def _writable(index: Index, generation: Generation, held: contextlib.ExitStack) -> Store:
    """The store of a generation; the one that is open already where it cannot be opened twice."""
    try:
        store = open_store(index.path, generation, write=True)
    except Locked:
        if generation.number != index.generation.number:
            raise
        return index.store
    held.callback(store.close)
    return store


@dataclass
class Purged:
    """What `purge` deleted."""

    name: str
    images: int
    bytes: int
    thumbnails: int
    queries: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def purge(*, index: str | os.PathLike[str], dry_run: bool = False) -> Purged:
    """Delete an index with all that was made from its images: vectors, model copies, calibration, map, thumbnails,
    kept uploads, and what caches hold of them. The images themselves are not touched."""
    try:
        named = find_index(index)
    except LookalikeError:
        path = index_path(index)
        parts = leftovers(path)
        if not parts:
            raise
        made = Purged(path.name, 0, sum(map(folders.size_of, parts)), 0, 0)
        if not dry_run:
            clear_leftovers(path)
        return made
    path = named.resolve()
    manifest = manifests.read(path)
    with hold(path / ".lock", f"The index `{path.name}`"):
        parts, thumbs, caches = leftovers(path), _thumbnails(path), _caches(path, manifest)
        uploads = [folders.home() / "queries" / name for name in {path_key(path), hash_bytes(str(named))[:12]}]
        made = Purged(
            manifest.name,
            max((g.images for g in manifest.generations), default=0),
            sum(folders.size_of(place) for place in (path, *parts, *uploads, *caches, *thumbs)),
            len(thumbs),
            sum(len(list(folder.glob("u.*.json"))) for folder in uploads),
        )
        if dry_run:
            return made
        if parts:
            clear_leftovers(path)
        remove_generations(path)
        for file in (*thumbs, *caches):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        for folder in (*uploads, folders.cache("thumbs") / path_key(path)):
            shutil.rmtree(folder, ignore_errors=True)
        (path / manifests.NAME).unlink()  # from here on it is no index any more
    shutil.rmtree(path)
    return made


def _thumbnails(path: Path) -> list[Path]:
    """Small images of an index; and those of earlier versions, which do not tell whose they are and are not used."""
    folder = folders.cache("thumbs")
    return [*folder.glob(f"{path_key(path)}/*/*.jpg"), *folder.glob("[0-9a-f][0-9a-f]/*.jpg")]


def _caches(path: Path, manifest: Manifest) -> list[Path]:
    """What caches hold of the images of an index: looks, features and pixels of its tables."""
    from lookalike.data import Table
    from lookalike.searching.image_facts import cache_files

    tables = [Table.load(file) for file in path.glob(f"generations/*/{TABLE}")]
    marks = {table.fingerprint() for table in tables}
    roots = {Index(path, generation.number).root for generation in manifest.generations}
    found = {file for root in roots | {table.root for table in tables} for file in cache_files(root)}
    for about in (*folders.cache("features").glob("*/info.json"), *folders.cache("pixels").glob("*/about.json")):
        document = read_json(about, "cache entry")
        if document.get("table", document.get("about", {}).get("table")) in marks:
            found.add(about.parent)
    return sorted(found)
