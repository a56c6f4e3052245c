"""``RowTables``: ids and payloads of a local store in SQLite, with inverted indexes of their columns for filters."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from lookalike.core.database import marks
from lookalike.store.protocol import ROW_ID, Condition, Damaged, Payload, Rows, is_text, points_of, prefix_end

CHUNK = 500  # ids or values in one statement
FEW = 10  # a range that keeps at most one in so many rows is read by itself
SCHEMA = """
CREATE TABLE IF NOT EXISTS store(
    number INTEGER PRIMARY KEY, dim INTEGER, version INTEGER, base INTEGER, rows INTEGER, removed INTEGER, graph TEXT);
CREATE TABLE IF NOT EXISTS name(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)
"""
INVERTED = "(col INTEGER, value {}, row INTEGER, PRIMARY KEY (col, value, row)) WITHOUT ROWID"
TABLES = {
    # Row number, id and payload (JSON) of every row, and a checksum of both.
    "rows": "(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL, sum INTEGER NOT NULL)",
    # Inverted indexes of the columns: texts; numbers (column 2c) and dates in seconds (column 2c + 1).
    "terms": INVERTED.format("TEXT"),
    "numbers": INVERTED.format("REAL"),
    # Deleted rows in the order of deletion, and hashes of the vectors that were written together.
    "deleted": "(seq INTEGER PRIMARY KEY, row INTEGER NOT NULL)",
    "blocks": "(start INTEGER PRIMARY KEY, stop INTEGER NOT NULL, hash BLOB NOT NULL)",
}
LINES = "SELECT row, id, payload FROM rows_$"
LISTED = "(SELECT value FROM json_each(?))"
Terms = list[tuple[int, str | float, int]]


class RowTables:
    """The tables of one store in a database that several share; every method runs in the caller's transaction.

    Args:
        number: Number of the store.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._columns: dict[str, int] = {}
        self._ordered: dict[tuple[str, int], tuple[tuple[int, ...], Rows]] = {}  # rows of columns, and of which state

    def sql(self, text: str) -> str:
        """Return a statement about this store: ``rows_$`` stands for ``rows_1``."""
        return text.replace("$", str(self.number))

    def create(self, connection: sqlite3.Connection, dim: int) -> None:
        """Create the tables of an empty store."""
        connection.execute("INSERT INTO store VALUES (?, ?, 1, 0, 0, 0, NULL)", (self.number, dim))
        for name, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {name}_{self.number}{columns}")

    def drop(self, connection: sqlite3.Connection) -> None:
        """Delete the tables."""
        connection.execute("DELETE FROM store WHERE number = ?", (self.number,))
        for name in TABLES:
            connection.execute(f"DROP TABLE IF EXISTS {name}_{self.number}")

    def insert(
        self, connection: sqlite3.Connection, first: int, ids: Sequence[str], payloads: Sequence[Payload]
    ) -> None:
        """Insert rows with ascending numbers from ``first``."""
        rows = range(first, first + len(ids))
        texts = [_encode(payload) for payload in payloads]
        lines = [(row, name, text, _sum(name, text)) for row, name, text in zip(rows, ids, texts, strict=True)]
        connection.executemany(self.sql("INSERT INTO rows_$ VALUES (?, ?, ?, ?)"), lines)
        names = {name for payload in payloads for name in payload}
        connection.executemany("INSERT OR IGNORE INTO name(name) VALUES (?)", [(name,) for name in names])
        columns = dict(connection.execute("SELECT name, number FROM name"))  # not kept: this may be undone
        for table, terms in _terms(columns, rows, payloads).items():
            connection.executemany(self.sql(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)"), terms)

    def delete(self, connection: sqlite3.Connection, ids: Sequence[str], removed: int) -> int:
        """Delete rows by id; returns the number of deletions so far."""
        columns = dict(connection.execute("SELECT name, number FROM name"))
        for part in _chunks(list(dict.fromkeys(ids))):
            lines = list(self.lines_of(connection, part))
            rows = [line[0] for line in lines]
            for table, terms in _terms(columns, rows, [decode(line[2]) for line in lines]).items():
                connection.executemany(self.sql(f"DELETE FROM {table} WHERE (col, value, row) = (?, ?, ?)"), terms)
            connection.executemany(self.sql("DELETE FROM rows_$ WHERE row = ?"), [(row,) for row in rows])
            marked = [(removed + 1 + i, row) for i, row in enumerate(rows)]
            connection.executemany(self.sql("INSERT INTO deleted_$ VALUES (?, ?)"), marked)
            removed += len(rows)
        return removed

    def renumber(
        self, connection: sqlite3.Connection, rows: Iterable[int], first: int, blocks: list[tuple[int, int, bytes]]
    ) -> None:
        """Give the rows that are left new numbers from ``first``, and replace the hashes of their vectors."""
        connection.execute("CREATE TEMP TABLE moved(old INTEGER PRIMARY KEY, new INTEGER)")
        connection.executemany("INSERT INTO moved VALUES (?, ?)", ((row, first + i) for i, row in enumerate(rows)))
        for table in ("rows_$", "terms_$", "numbers_$"):
            connection.execute(self.sql(f"UPDATE {table} SET row = (SELECT new FROM moved WHERE old = row)"))
        for table in ("moved", "deleted_$", "blocks_$"):
            connection.execute(self.sql(f"DELETE FROM {table}"))
        connection.execute("DROP TABLE moved")
        connection.executemany(self.sql("INSERT INTO blocks_$ VALUES (?, ?, ?)"), blocks)

    def lines(self, connection: sqlite3.Connection, rows: Rows | None = None) -> sqlite3.Cursor:
        """Return row number, id and payload of some rows, or of all, in ascending order."""
        if rows is None:
            return connection.execute(self.sql(f"{LINES} ORDER BY row"))
        return connection.execute(*self.selecting(rows.tolist()))

    def selecting(self, rows: Sequence[int]) -> tuple[str, tuple[str]]:
        """Return a statement that selects row number, id and payload of some rows in ascending order, and its value."""
        return self.sql(f"{LINES} WHERE row IN {LISTED} ORDER BY row"), (orjson.dumps(rows).decode(),)

    def lines_of(self, connection: sqlite3.Connection, ids: Sequence[str]) -> Iterator[tuple[int, str, str]]:
        """Yield row number, id and payload of the rows with these ids that there are."""
        for part in _chunks(ids):
            yield from connection.execute(self.sql(f"{LINES} WHERE id IN ({marks(part)})"), part)

    def column(self, connection: sqlite3.Connection, name: str) -> int | None:
        """Return the number of a column, or ``None`` if no row has ever had it."""
        if name not in self._columns:
            self._columns = dict(connection.execute("SELECT name, number FROM name"))
        return self._columns.get(name)

    def matching(self, connection: sqlite3.Connection, condition: Condition, state: tuple[int, ...]) -> Iterator[Rows]:
        """Yield the numbers of rows that meet a condition, whether it is negated or not; ``state`` is `State.key`."""
        column = 0 if condition.column == ROW_ID else self.column(connection, condition.column)
        if column is None:
            return
        if condition.is_range:
            for kind, (low, high) in condition.intervals().items():
                yield self._between(connection, state, "numbers_$", 2 * column + (kind == "date"), (low, "<=", high))
        elif condition.prefix:
            for first in filter(is_text, condition.values):
                end = prefix_end(first) or b""  # bytes come after all texts
                yield self._between(connection, state, "terms_$", column, (first, "<", end))
        else:
            for part in _chunks(condition.values):
                if condition.column == ROW_ID:
                    yield self._rows(connection, f"SELECT row FROM rows_$ WHERE id IN ({marks(part)})", part)
                else:
                    text = f"SELECT row FROM terms_$ WHERE col = ? AND value IN ({marks(part)})"
                    yield self._rows(connection, text, [column, *part])

    def _rows(self, connection: sqlite3.Connection, text: str, values: Sequence[Any]) -> Rows:
        """The numbers that a statement selects; joined to a text, which is far faster than a Python integer each."""
        joined = connection.execute(self.sql(f"SELECT group_concat(row) FROM ({text})"), values).fetchone()[0]
        return np.fromstring(joined, np.int64, sep=",") if joined else np.empty(0, np.int64)

    def _between(
        self, connection: sqlite3.Connection, state: tuple[int, ...], table: str, col: int, bounds: tuple[Any, str, Any]
    ) -> Rows:
        """The rows with a value between two bounds.

        If they are many, they are a slice of all rows of the column in the order of its values, which are read once:
        then only those outside are counted.
        """
        low, below, high = bounds
        selected, limit = f"SELECT row FROM {table} WHERE col = ?", max(state[-1] // FEW, 1000)
        rows = self._rows(connection, f"{selected} AND value >= ? AND value {below} ? LIMIT {limit}", (col, low, high))
        if len(rows) < limit:
            return rows
        known, rows = self._ordered.get((table, col), (None, rows))
        if known != state:
            rows = self._rows(connection, f"{selected} ORDER BY value, row", (col,))
            self._ordered[table, col] = (state, rows)
        counted = self.sql(f"SELECT COUNT(*) FROM {table} WHERE col = ? AND value ")
        before = connection.execute(f"{counted} < ?", (col, low)).fetchone()[0]
        after = connection.execute(f"{counted} {'>=' if below == '<' else '>'} ?", (col, high)).fetchone()[0]
        return rows[before : len(rows) - after]

    def facets(
        self, connection: sqlite3.Connection, column: str, limit: int, rows: Rows | None
    ) -> list[tuple[str, int]]:
        """Return the values of a column among all or some rows, with their counts, most frequent first."""
        number, condition = self.column(connection, column), "" if rows is None else f"AND row IN {LISTED}"
        values = [] if rows is None else [orjson.dumps(rows.tolist()).decode()]
        text = f"SELECT value, COUNT(*) FROM terms_$ WHERE col = ? AND value > '' {condition} GROUP BY value"
        return connection.execute(self.sql(f"{text} ORDER BY 2 DESC, 1 LIMIT ?"), (number, *values, limit)).fetchall()

    def damage(self, connection: sqlite3.Connection, rows: Rows, removed: int) -> str:
        """Return what is wrong with the tables, beyond what SQLite's own check can see; empty if nothing is.

        ``rows`` are the numbers that there must be, and ``removed`` is the number of deletions.
        """
        columns = dict(connection.execute("SELECT name, number FROM name"))
        expected, bad = {"terms_$": 0, "numbers_$": 0}, 0
        last = connection.execute(self.sql("SELECT COALESCE(MAX(seq), 0) FROM deleted_$")).fetchone()[0]
        numbers = [row for (row,) in connection.execute(self.sql("SELECT row FROM rows_$ ORDER BY row"))]
        if numbers != rows.tolist() or last != removed:
            return "Rows are missing"
        for row, name, text, total in connection.execute(self.sql("SELECT row, id, payload, sum FROM rows_$")):
            if _sum(name, text) != total:
                bad += 1
                continue
            for table, terms in _terms(columns, [row], [decode(text)]).items():
                expected[table] += sum(map(_term_sum, set(terms)))
        if bad:
            return f"{bad:,} rows are damaged"
        text = self.sql("SELECT col, value, row FROM ")
        stored = {t: sum(map(_term_sum, connection.execute(text + self.sql(t)))) for t in expected}
        return "" if stored == expected else "The indexes of its columns are damaged"


def _terms(columns: dict[str, int], rows: Iterable[int], payloads: Iterable[Payload]) -> dict[str, Terms]:
    """What the inverted indexes hold of rows, by their tables."""
    texts: Terms = []
    numbers: Terms = []
    for row, payload in zip(rows, payloads, strict=True):
        for name, value in payload.items():
            if not name.startswith("_") and value is not None:
                col = columns.get(name, -1)  # a damaged one
                entries = value if isinstance(value, list) else [value]
                texts += [(col, text, row) for text in entries if isinstance(text, str)]
                numbers += [(2 * col + (kind == "date"), x, row) for kind, x in points_of(value)]
    return {"terms_$": texts, "numbers_$": numbers}


def _chunks(values: Sequence[str]) -> Iterator[list[str]]:
    """Values that can be stored, as many at a time as a statement takes."""
    for start in range(0, len(values), CHUNK):
        yield [value for value in values[start : start + CHUNK] if is_text(value)]


def decode(text: str) -> dict[str, Any]:
    """Return a payload from its text."""
    try:
        payload: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:  # NaN, which JSON has no word for
        try:
            payload = json.loads(text)
        except ValueError as error:
            raise Damaged(f"A row of the store is damaged ({error}): `lookalike verify` lists what is.") from error
    return payload


def _encode(payload: Payload) -> str:
    line = {name: value for name, value in payload.items() if value is not None}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _sum(name: str, text: str) -> int:
    return zlib.crc32(f"{name}\0{text}".encode())


def _term_sum(term: tuple[int, str | float, int]) -> int:
    return zlib.crc32(repr(term).encode())
