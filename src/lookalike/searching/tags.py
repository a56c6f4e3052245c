"""Tags: words that users give to images, as rows of the index's database and as a column to filter by."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from lookalike.core.database import FILE, Database, marks
from lookalike.core.errors import LookalikeError
from lookalike.store import ROW_ID, Condition

SCHEMA = """
CREATE TABLE IF NOT EXISTS tag(tag TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tag_id ON tag(id)
"""
MAX_LENGTH, MAX_TAGS = 60, 1000


class Tags:
    """The tags of an index. They belong to rows, whatever model or store the index has.

    Args:
        folder: Folder of the index.
        columns: Columns of the index, whose names are taken.

    Example:
        >>> tags = Tags(Path("photos.index"))
        >>> tags.change(["a.jpg", "b.jpg"], add=["beach"])
        2
        >>> tags.of(["a.jpg", "c.jpg"]), tags.names
        ({'a.jpg': ['beach']}, ['beach'])
    """

    def __init__(self, folder: Path, columns: Collection[str] = ()) -> None:
        self.folder = folder
        self._database: Database | None = None
        self.column = "tags"
        while self.column in columns:
            self.column += "_"

    def _rows(self, query: str, values: Sequence[str] = ()) -> list[tuple[str, ...]]:
        if self._database is None and (self.folder / FILE).exists():
            self._database = Database(self.folder / FILE)
        return [] if self._database is None else self._database.fetch(query, values, optional=True)

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
        self._database = None

    @property
    def names(self) -> list[str]:
        """All tags, in alphabetical order."""
        return [tag for (tag,) in self._rows("SELECT DISTINCT tag FROM tag ORDER BY tag COLLATE NOCASE")]

    def of(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the tags of rows; rows without tags are left out."""
        out: dict[str, list[str]] = {}
        query = "SELECT id, tag FROM tag WHERE id IN (SELECT value FROM json_each(?)) ORDER BY tag"
        for name, tag in self._rows(query, [json.dumps(list(ids))]):
            out.setdefault(name, []).append(tag)
        return out

    def ids(self, condition: Condition) -> list[str]:
        """Return the rows whose tags have one of a condition's values, whether it is negated or not."""
        tags = [tag for tag in self.names if Condition("", condition.values, condition.prefix).matches(tag)]
        query = f"SELECT DISTINCT id FROM tag WHERE tag IN ({marks(tags)}) ORDER BY id"
        return [name for (name,) in self._rows(query, tags)]

    def resolve(self, where: Iterable[Condition]) -> list[Condition]:
        """Return conditions that a store understands: those on tags become conditions on row ids."""
        return [Condition(ROW_ID, tuple(self.ids(c)), negate=c.negate) if c.column == self.column else c for c in where]

    def change(self, ids: Sequence[str], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> int:
        """Add tags to rows and remove tags from them.

        Args:
            ids: The rows.
            add: Tags to add.
            remove: Tags to remove.

        Returns:
            Number of rows.

        Raises:
            LookalikeError: If a tag is empty, too long, or there are too many.
        """
        new = [check(tag) for tag in add]
        if len({*self.names, *new}) > MAX_TAGS:
            raise LookalikeError(f"An index has at most {MAX_TAGS:,} different tags.")
        with contextlib.closing(self._open()) as database, database.transaction() as connection:
            for tag in new:
                connection.executemany("INSERT OR IGNORE INTO tag VALUES (?, ?)", [(tag, name) for name in ids])
            for tag in remove:
                connection.executemany("DELETE FROM tag WHERE (tag, id) = (?, ?)", [(tag, name) for name in ids])
        return len(ids)

    def rename(self, names: Iterable[tuple[str, str]]) -> None:
        """Give the tags of rows, whose files were renamed, to their new ids (pairs of old and new)."""
        pairs = [(new, old) for old, new in names]
        if pairs and self.names:
            with contextlib.closing(self._open()) as database, database.transaction() as connection:
                connection.executemany("UPDATE OR REPLACE tag SET id = ? WHERE id = ?", pairs)

    def _open(self) -> Database:
        return Database(self.folder / FILE, write=True, schema=SCHEMA)


def check(tag: str) -> str:
    """Return a tag without superfluous spaces, or raise if it cannot be one."""
    text = " ".join(tag.split())
    if not 1 <= len(text) <= MAX_LENGTH or not text.isprintable() or text.endswith("*"):
        raise LookalikeError(f"A tag has 1 to {MAX_LENGTH} characters and no * at its end.")
    return text
