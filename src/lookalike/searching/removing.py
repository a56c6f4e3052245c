"""Taking pictures out of an index, and an index out of the world."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.locks import hold
from lookalike.searching import manifest as manifests
from lookalike.searching.filters import Filters, parse
from lookalike.searching.folder import Index, find, remove_generation
from lookalike.searching.writing import open_writer


def remove_rows(index: Index, rows: Sequence[str]) -> int:
    """Take rows out of the live generation, its table and its count; how many were there."""
    with (
        hold(index.path / ".lock", f"The index `{index.path.name}`"),
        open_writer(index.path, index.source, None, None, explicit=False, opened=index.store) as writer,
    ):
        there = [record.id for record in writer.store.get(list(rows)) if record is not None]
        writer.begin()
        writer.store.delete(there)
        table = index.table
        kept = [name not in set(there) for name in table.column("row_id")]
        table.take(kept).save(writer.folder / "table.parquet")
        writer.finish(live=False)
    return len(there)


def remove(*, index: str | os.PathLike[str] | None, filters: Filters, dry_run: bool = False) -> int:
    """Take pictures that meet a filter out of an index, and keep them out; the files stay. How many there were."""
    where = parse(filters)
    if not where:
        raise LookalikeError("Say which pictures to remove, as in `path=sea/*`; `lookalike purge` removes an index.")
    with Index.open(index) as opened:
        opened.check_columns(condition.column for condition in where)
        rows = [record.id for part in opened.store.scan(where=where) for record in part]
        if rows and len(rows) == opened.store.count():
            raise LookalikeError("This would remove every picture; `lookalike purge` removes a whole index.")
        if not dry_run:
            remove_rows(opened, rows)
            manifest = manifests.read(opened.path)
            rule = [f"{c.column}{'!' * c.negate}={value}{'*' * c.prefix}" for c in where for value in c.values]
            manifest.without = [*(old for old in manifest.without if old != rule), rule]
            manifest.write(opened.path)
    return len(rows)


@dataclass
class Purged:
    """What `purge` deleted."""

    name: str
    pictures: int
    bytes: int
    thumbnails: int
    queries: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def purge(*, index: str | os.PathLike[str], dry_run: bool = False) -> Purged:
    """Delete an index with all that was made from its pictures: vectors, model copies, calibration, map, thumbnails,
    kept uploads, and what caches hold of them. The pictures themselves are not touched."""
    path = find(index)
    manifest = manifests.read(path)
    with hold(path / ".lock", f"The index `{path.name}`"):
        contents = _contents(path)
        thumbs = [file for file in _thumbnails(contents) if file.exists()]
        queries = folders.home() / "queries" / hash_bytes(str(path))[:12]
        caches = _caches(path)
        made = Purged(
            manifest.name,
            max((g.pictures for g in manifest.generations), default=0),
            sum(folders.size_of(place) for place in (path, queries, *caches)) + sum(f.stat().st_size for f in thumbs),
            len(thumbs),
            len(list(queries.glob("u.*.json"))) if queries.is_dir() else 0,
        )
        if dry_run:
            return made
        for generation in manifest.generations:
            remove_generation(path, generation.number)
        for file in (*thumbs, *caches):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        shutil.rmtree(queries, ignore_errors=True)
        (path / manifests.NAME).unlink()  # from here on it is no index any more
    shutil.rmtree(path)
    return made


def _contents(path: Path) -> set[str]:
    """Every content that a generation's table speaks of."""
    from lookalike.data import Table

    tables = list(path.glob("generations/*/table.parquet"))
    return {str(name) for file in tables for name in Table.load(file).column("content_id") if name}


def _thumbnails(contents: set[str]) -> list[Path]:
    folder = folders.cache("thumbs")
    return [file for content in contents for file in (folder / content[:2]).glob(f"{content}-*.jpg")]


def _caches(path: Path) -> list[Path]:
    """What caches hold of the pictures of an index: looks, features and pixels of its tables."""
    from lookalike.data import Table
    from lookalike.searching.looks import entry

    tables = [Table.load(file) for file in path.glob("generations/*/table.parquet")]
    marks = {table.fingerprint() for table in tables}
    found = {file for table in tables if (file := entry(table)).exists()}
    for about in (*folders.cache("features").glob("*/info.json"), *folders.cache("pixels").glob("*/about.json")):
        document = read_json(about, "cache entry")
        if document.get("table", document.get("about", {}).get("table")) in marks:
            found.add(about.parent)
    return sorted(found)
