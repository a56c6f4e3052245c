"""``LocalStore``: the default store. Rows in SQLite, vectors in a mapped file, and a graph that is derived from them.

Several stores share the database of an index: ``INDEX/generations/3`` is store 3 of ``INDEX/lookalike.db``; any other
folder has a database of its own. Vectors are appended to one file and synced before the rows that name them are
committed, so a kill leaves at most a tail without rows, which the next write overwrites. Rows get ascending numbers
that are never used again. See docs/design/index-and-stores.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lookalike.core import folders
from lookalike.core.database import FILE, Database, marks
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, hash_file, sync_folder
from lookalike.core.locks import Locked, hold
from lookalike.core.progress import warn
from lookalike.store.graph import NEAR_FRACTION, Graph, GraphInfo, build_graph
from lookalike.store.protocol import (
    Condition,
    Damaged,
    Neighbors,
    Payload,
    Queries,
    Record,
    Rows,
    Vectors,
    Where,
    checked,
    is_text,
    points_of,
    prefix_end,
    unit_rows,
)
from lookalike.store.scan import GATHERED, merge_neighbors, nearest

GRAPH_ROWS = 50_000  # below, comparing with every row is fast enough
CHANGED = 0.2  # fraction of rows added or deleted after which the graph is built again, and deleted rows are dropped
RESCORED = 2  # candidates per hit that are scored in float32
SELECTIONS = 32  # results of filters that are kept in memory
BLOCK = 4096  # rows copied at a time
CHUNK = 500  # ids or values in one statement

SCHEMA = """
CREATE TABLE IF NOT EXISTS store(
    number INTEGER PRIMARY KEY, dim INTEGER, version INTEGER, base INTEGER, rows INTEGER, removed INTEGER, graph TEXT);
CREATE TABLE IF NOT EXISTS name(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)
"""
INVERTED = "(col INTEGER, value {}, row INTEGER, PRIMARY KEY (col, value, row)) WITHOUT ROWID"
TABLES = {
    # Row number, id and payload (JSON) of every row.
    "rows": "(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL)",
    # Inverted indexes of the columns: texts; numbers (column 2c) and dates in seconds (column 2c + 1).
    "terms": INVERTED.format("TEXT"),
    "numbers": INVERTED.format("REAL"),
    # Deleted rows in the order of deletion, and hashes of the vectors that were written together.
    "deleted": "(seq INTEGER PRIMARY KEY, row INTEGER NOT NULL)",
    "blocks": "(start INTEGER PRIMARY KEY, stop INTEGER NOT NULL, hash BLOB NOT NULL)",
}


@dataclass(frozen=True)
class _State:
    """What one transaction sees of a store; positions in the vector file are row numbers less `base`."""

    version: int
    base: int
    rows: int  # the next row number
    removed: int  # number of deletions
    graph: GraphInfo | None
    vectors: Vectors
    live: NDArray[np.bool_] | None  # None if no row was deleted
    count: int


@dataclass(frozen=True)
class _Selection:
    """Rows that meet a filter, as a mask and as positions."""

    mask: NDArray[np.bool_]
    rows: Rows


class LocalStore(Queries):
    """A store in a folder; see :class:`Store`. Any number of processes read it while one writes.

    Readers see each commit as a whole, at their next call. Open it with :meth:`open` or :meth:`create`.

    Args:
        place: Folder of the store.
        write: Whether to open it for writing.

    Example:
        >>> with contextlib.closing(LocalStore.create("vectors", 2)) as store:
        ...     store.upsert(["a", "b"], np.eye(2, dtype=np.float32), [{"width": 800}, {"width": 1200}])
        ...     [(hit.id, round(hit.score, 2)) for hit in store.query(np.array([3.0, 4.0]), 2)]
        ...     store.count([Condition("width", low="1000")])
        [('b', 0.8), ('a', 0.6)]
        1
    """

    def __init__(self, place: str, *, write: bool) -> None:
        self.place = Path(place)
        self._number, file = _collection(self.place)
        if not file.exists():
            raise LookalikeError(f"There is no store at `{place}`.")
        self._held = contextlib.ExitStack()
        self._guard, self._writing = threading.Lock(), threading.RLock()
        self._state: _State | None = None
        self._selections: OrderedDict[Any, _Selection] = OrderedDict()
        self._names: dict[str, int] = {}
        self._graph: tuple[int, Graph] | None = None  # with the version of the vectors
        self._attempt: tuple[int, str, bool] | None = None  # the last one to load or build a graph
        self._loader = threading.Thread()
        self._width: int | None = None
        with self._held:
            if write:
                self._held.enter_context(hold(self.place / ".lock", f"The store `{place}`"))
            self._database = Database(file, write=write)
            self._held.callback(self._database.close)
            has_table = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'store'"
            known = (
                self._database.connection.execute(has_table).fetchone()[0]
                and self._database.connection.execute(
                    "SELECT dim FROM store WHERE number = ?", (self._number,)
                ).fetchone()
            )
            if not known:
                raise LookalikeError(f"There is no store at `{place}`.")
            self.dim = int(known[0])
            if write:
                self._drop_lost_rows()
            with self._read() as (_, state):
                if write:
                    self._remove_old_files(state, "vectors-*.f32", "graph-*", ".graph-*.part")
            self._held = self._held.pop_all()

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        number, file = _collection(Path(place))
        folders.private_folder(Path(place))
        with contextlib.closing(Database(file, write=True, schema=SCHEMA)) as database:
            with database.transaction() as connection:
                if connection.execute("SELECT 1 FROM store WHERE number = ?", (number,)).fetchone():
                    raise LookalikeError(f"`{place}` already holds a store.")
                connection.execute("INSERT INTO store VALUES (?, ?, 1, 0, 0, 0, NULL)", (number, dim))
                for name, columns in TABLES.items():
                    connection.execute(f"CREATE TABLE {name}_{number}{columns}")
            (Path(place) / "vectors-1.f32").touch(mode=0o600)
            sync_folder(Path(place))
        return cls(place, write=True)

    @classmethod
    def open(cls, place: str, *, write: bool = False) -> Self:
        return cls(place, write=write)

    @classmethod
    def drop(cls, place: str) -> None:
        """Delete the rows of a store from the database that it shares; its files stay."""
        number, file = _collection(Path(place))
        if file.exists():
            database = Database(file, write=True, schema=SCHEMA)
            with contextlib.closing(database), database.transaction() as connection:
                connection.execute("DELETE FROM store WHERE number = ?", (number,))
                for name in TABLES:
                    connection.execute(f"DROP TABLE IF EXISTS {name}_{number}")

    def _sql(self, text: str) -> str:
        """A statement with this store's tables: `$rows` stands for `rows_1`."""
        for name in TABLES:
            text = text.replace(f"${name}", f"{name}_{self._number}")
        return text

    # -- state -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _read(self) -> Iterator[tuple[sqlite3.Connection, _State]]:
        """One transaction, and what it sees."""
        for attempt in range(5):
            with self._database.transaction(write=False) as connection:
                try:
                    state = self._snapshot(connection)
                except FileNotFoundError:  # compacted between the two; the next transaction sees the new file
                    if attempt == 4:
                        raise Damaged(f"The store `{self.place}` is damaged: its vectors are missing.") from None
                    continue
                yield connection, state
                return

    def _snapshot(self, connection: sqlite3.Connection) -> _State:
        version, base, rows, removed, graph = connection.execute(
            "SELECT version, base, rows, removed, graph FROM store WHERE number = ?", (self._number,)
        ).fetchone() or (0, 0, 0, 0, None)
        old = self._state
        if old is not None and (version, rows, removed) == (old.version, old.rows, old.removed):
            if graph and (old.graph is None or old.graph.file not in graph):
                old = self._state = replace(old, graph=GraphInfo(**json.loads(graph)))
            return old
        if not version:
            raise LookalikeError(f"The store `{self.place}` was deleted.")
        size = rows - base
        path = self.place / f"vectors-{version}.f32"
        if path.stat().st_size < 4 * self.dim * size:
            raise Damaged(f"The store `{self.place}` is damaged: {path.name} is too short.")
        vectors = np.memmap(path, np.float32, "r", shape=(size, self.dim)) if size else None
        live: NDArray[np.bool_] | None = None
        if removed:
            live, seq = np.ones(size, dtype=bool), 0
            known = old is not None and old.version == version and old.rows <= rows and old.removed <= removed
            if known and old is not None and old.live is not None:
                live[: len(old.live)], seq = old.live, old.removed
            gone = connection.execute(self._sql("SELECT row FROM $deleted WHERE seq > ?"), (seq,)).fetchall()
            live[np.array(gone, dtype=np.int64).ravel() - base] = False
        count = size if live is None else int(live.sum())
        info = GraphInfo(**json.loads(graph)) if graph else None
        plain = np.empty((0, self.dim), np.float32) if vectors is None else vectors.view(np.ndarray)
        state = _State(version, base, rows, removed, info, plain, live, count)
        if old is None or (version, rows, removed) > (
            old.version,
            old.rows,
            old.removed,
        ):  # else a transaction of before
            self._state = state
        return state

    def _columns(self, connection: sqlite3.Connection, names: Iterable[str], *, add: bool = False) -> dict[str, int]:
        """Numbers of columns; unknown ones are added or left out."""
        missing = [name for name in names if name not in self._names]
        if missing:
            if add:
                connection.executemany("INSERT OR IGNORE INTO name(name) VALUES (?)", [(name,) for name in missing])
            known = dict(connection.execute("SELECT name, number FROM name"))
            if add:  # another transaction may be undone
                return known
            self._names = known
        return self._names

    def _select(self, connection: sqlite3.Connection, state: _State, where: Where) -> _Selection | None:
        """The rows that are not deleted and meet every condition; None for all rows of the file."""
        if not where and state.live is None:
            return None
        key = (state.version, state.rows, state.removed, tuple(where))
        with self._guard:
            if key in self._selections:
                self._selections.move_to_end(key)
                return self._selections[key]
        size = state.rows - state.base
        mask = np.ones(size, dtype=bool) if state.live is None else state.live.copy()
        columns = self._columns(connection, [condition.column for condition in where])
        for condition in where:
            meets = np.zeros(size, dtype=bool)
            if condition.column in columns:
                for statement, values in _statements(condition, columns[condition.column]):
                    text = f"SELECT group_concat(row) FROM ({statement})"  # far faster than a Python integer each
                    numbers = connection.execute(self._sql(text), values).fetchone()[0]
                    if numbers:
                        meets[np.fromstring(numbers, np.int64, sep=",") - state.base] = True
            mask &= ~meets if condition.negate else meets
        selection = _Selection(mask, np.flatnonzero(mask))
        with self._guard:
            self._selections[key] = selection
            while len(self._selections) > SELECTIONS:
                self._selections.popitem(last=False)
        return selection

    def _remove_old_files(self, state: _State, *patterns: str) -> None:
        """Delete what compactions, rebuilt graphs and kills have left; only the writer may delete vectors."""
        keep = {f"vectors-{state.version}.f32", state.graph.file if state.graph else ""}
        for file in (file for pattern in patterns for file in self.place.glob(pattern)):
            if file.name not in keep:
                with contextlib.suppress(OSError):  # Windows keeps mapped files
                    file.unlink()

    # -- writing ---------------------------------------------------------------------------------------------

    def _drop_lost_rows(self) -> None:
        """Delete the rows whose vectors a damaged file no longer has."""
        with self._database.transaction() as connection:
            columns = "version, base, rows, removed FROM store WHERE number = ?"
            version, base, rows, removed = connection.execute(f"SELECT {columns}", (self._number,)).fetchone()
            path, size = self.place / f"vectors-{version}.f32", 4 * self.dim * (rows - base)
            left = path.stat().st_size if path.exists() else 0
            if left >= size:
                return
            warn(f"`{path}` is too short: the rows that it has lost are dropped.")
            first = base + left // (4 * self.dim)
            lost = connection.execute(self._sql("SELECT id FROM $rows WHERE row >= ?"), (first,)).fetchall()
            removed = self._delete_rows(connection, [name for (name,) in lost], removed)
            connection.execute(self._sql("DELETE FROM $blocks WHERE stop > ?"), (first,))
            connection.execute("UPDATE store SET removed = ? WHERE number = ?", (removed, self._number))
            with path.open("ab") as file:
                file.truncate(size)

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, matrix, lines = checked(ids, vectors, payloads, self.dim)
        if not names:
            return
        with self._writing, self._database.transaction() as connection:
            state = self._snapshot(connection)
            self._write_vectors(self.place / f"vectors-{state.version}.f32", state.rows - state.base, matrix)
            removed = self._delete_rows(connection, names, state.removed)
            first, last = state.rows, state.rows + len(names)
            numbered = list(zip(range(first, last), names, map(_encode, lines), strict=True))
            connection.executemany(self._sql("INSERT INTO $rows VALUES (?, ?, ?)"), numbered)
            self._change_terms(connection, zip(range(first, last), lines, strict=True), add=True)
            block = (first, last, _block_hash(matrix))
            connection.execute(self._sql("INSERT INTO $blocks VALUES (?, ?, ?)"), block)
            connection.execute("UPDATE store SET rows = ?, removed = ? WHERE number = ?", (last, removed, self._number))

    def _write_vectors(self, path: Path, position: int, vectors: Vectors) -> None:
        with disk_errors(path), path.open("rb+") as file:
            file.seek(4 * self.dim * position)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            file.flush()
            os.fsync(file.fileno())

    def delete(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        with self._writing, self._database.transaction() as connection:
            removed = self._delete_rows(connection, ids, self._snapshot(connection).removed)
            connection.execute("UPDATE store SET removed = ? WHERE number = ?", (removed, self._number))

    def _delete_rows(self, connection: sqlite3.Connection, ids: Sequence[str], removed: int) -> int:
        """Delete rows by id; returns the number of deletions so far."""
        for start in range(0, len(ids), CHUNK):
            part = [name for name in dict.fromkeys(ids[start : start + CHUNK]) if is_text(name)]
            rows = connection.execute(self._sql(f"SELECT row, payload FROM $rows WHERE id IN ({marks(part)})"), part)
            payloads = [(row, json.loads(text)) for row, text in rows.fetchall()]
            self._change_terms(connection, payloads, add=False)
            numbers = [(row,) for row, _ in payloads]
            connection.executemany(self._sql("DELETE FROM $rows WHERE row = ?"), numbers)
            marked = [(removed + 1 + i, row) for i, (row,) in enumerate(numbers)]
            connection.executemany(self._sql("INSERT INTO $deleted VALUES (?, ?)"), marked)
            removed += len(numbers)
        return removed

    def _change_terms(self, connection: sqlite3.Connection, rows: Iterable[tuple[int, Payload]], *, add: bool) -> None:
        """Add the values of rows to the inverted indexes, or delete them."""
        lines = list(rows)
        columns = self._columns(connection, {name for _, line in lines for name in line}, add=add)
        terms: list[tuple[int, str, int]] = []
        numbers: list[tuple[int, float, int]] = []
        for row, line in lines:
            for name, value in line.items():
                if not name.startswith("_") and value is not None:
                    col = columns[name]
                    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
                    terms += [(col, text, row) for text in texts]
                    numbers += [(2 * col + (kind == "date"), x, row) for kind, x in points_of(value)]
        for table, values in (("$terms", terms), ("$numbers", numbers)):
            insert, delete = (
                "INSERT OR IGNORE INTO {} VALUES (?, ?, ?)",
                "DELETE FROM {} WHERE (col, value, row) = (?, ?, ?)",
            )
            connection.executemany(self._sql((insert if add else delete).format(table)), values)

    def build(self) -> dict[str, Any]:
        """Drop deleted rows if they are more than a fifth, and build the graph if a fifth has changed."""
        with self._writing:
            with self._read() as (_, state):
                pass
            if state.rows - state.base - state.count > CHANGED * (state.rows - state.base):
                self._compact(state)
            with self._read() as (_, state):
                pass
            if self._is_stale(state):
                with contextlib.suppress(Locked), hold(self.place / ".graph", "graph"):  # if no other builds it
                    self._build_graph(self._database, state)
            with self._read() as (_, state):
                info = state.graph
        facts: dict[str, Any] = {"rows": state.count, "indexed": 0, "recall": 1.0, "width": None}
        return facts if info is None else facts | {"indexed": info.rows, "recall": info.recall, "width": info.width}

    def _compact(self, state: _State) -> None:
        """Write the rows that are left to a new file, under new numbers, and switch to it in one transaction."""
        rows = np.arange(len(state.vectors)) if state.live is None else np.flatnonzero(state.live)
        path = self.place / f"vectors-{state.version + 1}.f32"
        path.unlink(missing_ok=True)
        blocks = []
        with disk_errors(path):
            path.touch(mode=0o600)
            for start in range(0, len(rows), BLOCK):
                part = state.vectors[rows[start : start + BLOCK]]
                self._write_vectors(path, start, part)
                blocks.append((state.rows + start, state.rows + start + len(part), _block_hash(part)))
            sync_folder(self.place)
        with self._database.transaction() as connection:
            connection.execute("CREATE TEMP TABLE moved(old INTEGER PRIMARY KEY, new INTEGER)")
            numbers = zip((rows + state.base).tolist(), range(state.rows, state.rows + len(rows)), strict=True)
            connection.executemany("INSERT INTO moved VALUES (?, ?)", numbers)
            for table in ("$rows", "$terms", "$numbers"):
                connection.execute(self._sql(f"UPDATE {table} SET row = (SELECT new FROM moved WHERE old = row)"))
            connection.execute("DROP TABLE moved")
            connection.execute(self._sql("DELETE FROM $deleted"))
            connection.execute(self._sql("DELETE FROM $blocks"))
            connection.executemany(self._sql("INSERT INTO $blocks VALUES (?, ?, ?)"), blocks)
            values = (state.version + 1, state.rows, state.rows + len(rows), self._number)
            connection.execute(
                "UPDATE store SET version = ?, base = ?, rows = ?, removed = 0, graph = NULL WHERE number = ?", values
            )
        with self._read() as (_, state):
            self._remove_old_files(state, "vectors-*.f32", "graph-*")

    def verify(self) -> list[str]:
        """Compare vectors and graph with the hashes of when they were written, waiting for the graph.

        Returns:
            What is damaged, one sentence each.
        """
        problems = []
        with self._read() as (connection, state):
            blocks = connection.execute(self._sql("SELECT start, stop, hash FROM $blocks")).fetchall()
        for start, stop, expected in blocks:
            if _block_hash(state.vectors[start - state.base : stop - state.base]) != expected:
                problems.append(
                    f"Vectors {start - state.base:,} to {stop - state.base - 1:,} of `{self.place}` are damaged."
                )
        if state.graph is not None:
            path = self.place / state.graph.file
            if not path.exists() or hash_file(path) != state.graph.hash:
                problems.append(f"The graph of `{self.place}` is damaged; it is built again at the next search.")
            else:
                self.load_graph()
        return problems

    def flush(self) -> None:
        """Do nothing: every write is on disk when it returns."""

    def close(self) -> None:
        self._held.close()

    # -- graph -----------------------------------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """Number of candidates that a search of the graph keeps; chosen by ``build``, and can be set."""
        info = None if self._state is None else self._state.graph
        return self._width or (info.width if info else None)

    @width.setter
    def width(self, width: int | None) -> None:
        self._width = width

    def _is_stale(self, state: _State) -> bool:
        """Whether there are enough rows for a graph, and it is missing or a fifth of the rows has changed."""
        if state.count < GRAPH_ROWS:
            return False
        info = state.graph
        if info is None:
            return True
        return state.rows - state.base - info.rows + state.removed - info.removed > CHANGED * state.count

    def _build_graph(self, database: Database, state: _State) -> None:
        rows = np.arange(len(state.vectors)) if state.live is None else np.flatnonzero(state.live)
        number = 1 + max((int(file.name.split("-")[2]) for file in self.place.glob("graph-*-*")), default=0)
        path = self.place / f"graph-{state.version}-{number}"
        info = build_graph(path, state.vectors, rows, state.removed)
        self._graph = (state.version, Graph(path, info))
        with database.transaction() as connection:
            connection.execute(
                "UPDATE store SET graph = ? WHERE number = ? AND version = ?",
                (json.dumps(info.to_json()), self._number, state.version),
            )
        with self._read() as (_, state):
            self._remove_old_files(state, "graph-*")

    def load_graph(self) -> Graph | None:
        """Return the graph, waiting until it is checked; ``None`` if there is none."""
        for _ in range(2):  # the first attempt may only have built it
            with self._read() as (_, state):
                graph = self._ready_graph(state)
            if self._loader.ident is not None:
                self._loader.join()
        return graph or self._ready_graph(state)

    def _ready_graph(self, state: _State) -> Graph | None:
        """The graph if it is loaded; otherwise it is checked and loaded, or built, in the background."""
        if state.graph is None and state.count < GRAPH_ROWS:
            return None
        attempt = (state.version, state.graph.file if state.graph else "", self._is_stale(state))
        if attempt != self._attempt and not self._loader.is_alive():
            with self._guard:
                if attempt != self._attempt:
                    self._attempt = attempt
                    self._loader = threading.Thread(target=self._load, args=(state,), daemon=True)
                    self._loader.start()
        return self._graph[1] if self._graph is not None and self._graph[0] == state.version else None

    def _load(self, state: _State) -> None:
        """Check and load the graph, so that damage is never searched; a missing, damaged or old one is built again."""
        try:
            with self._read() as (_, state):  # another process may have built it since
                pass
            good = state.graph is not None and self._open_graph(state.version, state.graph)
            if not good or self._is_stale(state):
                with (
                    hold(self.place / ".graph", "graph"),
                    contextlib.closing(Database(self._database.path, write=True)) as own,
                ):
                    self._build_graph(own, state)
        except (LookalikeError, OSError, ValueError, sqlite3.Error):
            return  # closed, read-only, or being built by another process: rows are compared instead

    def _open_graph(self, version: int, info: GraphInfo) -> bool:
        path = self.place / info.file
        if path.exists() and hash_file(path) == info.hash:
            self._graph = (version, Graph(path, info))
            return True
        warn(f"the graph of `{self.place}` is damaged; every row is compared until it is built again.")
        return False

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        records: dict[str, Record] = {}
        with self._read() as (connection, state):
            for start in range(0, len(ids), CHUNK):
                part = [name for name in ids[start : start + CHUNK] if is_text(name)]
                lines = connection.execute(
                    self._sql(f"SELECT row, id, payload FROM $rows WHERE id IN ({marks(part)})"), part
                )
                records.update({line[1]: _record(line, state, vectors) for line in lines})
        return [records.get(name) for name in ids]

    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]:
        """Return rows by number, ``None`` for those that are gone; one statement fetches them all."""
        with self._read() as (connection, state):
            return self._records(connection, state, rows, vectors)

    def _records(
        self, connection: sqlite3.Connection, state: _State, rows: Rows, vectors: bool = False
    ) -> list[Record | None]:
        numbers = rows.tolist()
        text = self._sql("SELECT row, id, payload FROM $rows WHERE row IN (SELECT value FROM json_each(?))")
        lines = connection.execute(text, (json.dumps(numbers),)).fetchall()
        records = {line[0]: _record(line, state, vectors) for line in lines}
        return [records.get(number) for number in numbers]

    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors:
        """Return row numbers and scores of the k nearest rows; see :class:`Store`.

        The rows are compared one by one, or the graph proposes candidates, whichever costs less for this filter.
        """
        unit = unit_rows(queries, self.dim)
        with self._read() as (connection, state):
            selection = self._select(connection, state, where)
        return self._neighbors(unit, k, state, selection, exact)

    def _search_records(
        self, queries: Vectors, k: int, where: Where, exact: bool
    ) -> tuple[Neighbors, dict[int, Record | None]]:
        """In one transaction: compaction in between would give the rows new numbers."""
        unit = unit_rows(queries, self.dim)
        with self._read() as (connection, state):
            near = self._neighbors(unit, k, state, self._select(connection, state, where), exact)
            rows = np.unique(near.rows[near.rows >= 0])
            return near, dict(zip(rows.tolist(), self._records(connection, state, rows), strict=True))

    def _neighbors(
        self, queries: Vectors, k: int, state: _State, selection: _Selection | None, exact: bool
    ) -> Neighbors:
        rows, scores = self._nearest(queries, k, state, selection, exact)
        if rows.shape[1] < k:
            missing = ((0, 0), (0, k - rows.shape[1]))
            rows = np.pad(rows, missing, constant_values=-1)
            scores = np.pad(scores, missing, constant_values=-np.inf)
        return Neighbors(np.where(rows >= 0, rows + state.base, -1) if state.base else rows, scores)

    def _nearest(
        self, queries: Vectors, k: int, state: _State, selection: _Selection | None, exact: bool
    ) -> tuple[Rows, Vectors]:
        """Positions and scores, from the graph for the rows it covers and by comparison for those added since."""
        vectors, rows = state.vectors, None if selection is None else selection.rows
        graph = None if exact else self._ready_graph(state)
        covered = graph.info.rows if graph is not None else 0
        inside = covered if rows is None else int(np.searchsorted(rows, covered))
        if graph is None or covered > len(vectors) or not self._plan(graph, queries, k, inside):
            return nearest(queries, vectors, k, rows)
        found = self._by_graph(graph, queries, k, vectors, selection, inside)
        if len(vectors) == covered:
            return found
        later, scores = nearest(queries, vectors[covered:], k, None if rows is None else rows[inside:] - covered)
        return merge_neighbors([found, (later + covered, scores)], k)

    def _plan(self, graph: Graph, queries: Vectors, k: int, selected: int) -> bool:
        """Whether searching the graph is expected to cost less than comparing the selected rows."""
        info, count = graph.info, len(queries)
        width = self._start_width(info, k, selected / info.rows)
        searching = (info.base_seconds + info.candidate_seconds * width) * count / min(threads(), max(count, 1))
        comparing = info.scan_seconds * min(GATHERED * selected, info.rows) * (1 + (count - 1) * info.batch_fraction)
        return searching < comparing and (selected >= info.rows or width <= info.max_width)

    def _start_width(self, info: GraphInfo, k: int, fraction: float) -> int:
        width = max(self._width or info.width, math.ceil(1.5 * k))
        return math.ceil(width / min(max(fraction, 1e-6), 1.0))

    def _by_graph(
        self, graph: Graph, queries: Vectors, k: int, vectors: Vectors, selection: _Selection | None, inside: int
    ) -> tuple[Rows, Vectors]:
        """The k nearest selected rows among those of the graph.

        A query whose own neighborhood is filtered out finds too few of them and is compared with all selected rows:
        what a graph finds far away from a query is not complete.
        """
        width = self._start_width(graph.info, k, inside / graph.info.rows)
        candidates = graph.candidates(queries, width)
        if selection is None:
            return self._score(queries, candidates, k, vectors)
        usable = (candidates >= 0) & selection.mask[candidates]
        done = usable[:, : int(NEAR_FRACTION * width)].sum(axis=1) >= k
        chosen = np.where(usable, candidates, -1)
        chosen = np.take_along_axis(chosen, np.argsort(chosen < 0, axis=1, kind="stable"), 1)
        if done.all():
            return self._score(queries, chosen, k, vectors)
        rows, scores = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
        rows[done], scores[done] = self._score(queries[done], chosen[done], k, vectors)
        found = nearest(queries[~done], vectors, k, selection.rows[:inside])
        rows[~done, : found[0].shape[1]], scores[~done, : found[0].shape[1]] = found
        return rows, scores

    @staticmethod
    def _score(queries: Vectors, candidates: Rows, k: int, vectors: Vectors) -> tuple[Rows, Vectors]:
        """The k best of the first candidates by their float32 cosines; int8 scores would swap the last hits."""
        candidates = candidates[:, : max(RESCORED * k, k + 14)]
        scores = np.matmul(vectors[candidates], queries[:, :, None])[..., 0]
        scores[candidates < 0] = -np.inf
        order = np.lexsort((candidates, -scores), axis=1)[:, :k]
        return np.take_along_axis(candidates, order, 1), np.minimum(np.take_along_axis(scores, order, 1), 1.0)

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        with self._database.snapshot() as connection:
            state = self._snapshot(connection)
            selection = self._select(connection, state, where)
            lines = connection.execute(self._sql("SELECT row, id, payload FROM $rows ORDER BY row"))
            records: list[Record] = []
            if where and selection is not None and 3 * len(selection.rows) < state.count:
                text = self._sql("SELECT row, id, payload FROM $rows WHERE row IN (SELECT value FROM json_each(?))")
                lines = connection.execute(
                    f"{text} ORDER BY row", (json.dumps((selection.rows + state.base).tolist()),)
                )
            for line in lines:
                if selection is None or selection.mask[line[0] - state.base]:
                    records.append(_record(line, state, vectors))
                    if len(records) >= batch:
                        yield records
                        records = []
            if records:
                yield records

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        with self._read() as (connection, state):
            col = self._columns(connection, [column]).get(column)
            if col is None:
                return []
            condition = ""
            if where:
                selection = self._select(connection, state, where)
                assert selection is not None
                flags, base = selection.mask.tolist(), state.base
                connection.create_function("selected", 1, lambda row: flags[row - base])
                condition = "AND selected(row)"
            text = f"SELECT value, COUNT(*) FROM $terms WHERE col = ? AND value > '' {condition} GROUP BY value"
            return connection.execute(self._sql(f"{text} ORDER BY 2 DESC, 1 LIMIT ?"), (col, limit)).fetchall()

    def count(self, where: Where = ()) -> int:
        with self._read() as (connection, state):
            selection = self._select(connection, state, where) if where else None
        return state.count if selection is None else len(selection.rows)


def _collection(place: Path) -> tuple[int, Path]:
    """Number of a store, and the database it is in."""
    if place.parent.name == "generations" and place.name.isdigit():
        return int(place.name), place.parent.parent / FILE
    return 1, place / FILE


def _statements(condition: Condition, col: int) -> Iterator[tuple[str, list[Any]]]:
    """Statements that select the rows of a condition, whether it is negated or not, by the inverted indexes."""
    if condition.is_range:
        for kind, bounds in condition.intervals().items():
            yield (
                "SELECT row FROM $numbers WHERE col = ? AND value BETWEEN ? AND ?",
                [2 * col + (kind == "date"), *bounds],
            )
        return
    values = [value for value in condition.values if is_text(value)]
    if not condition.prefix:
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            yield f"SELECT row FROM $terms WHERE col = ? AND value IN ({marks(part)})", [col, *part]
        return
    for first in values:
        end = prefix_end(first)
        text = "SELECT row FROM $terms WHERE col = ? AND value >= ?"
        yield (f"{text} AND value < ?", [col, first, end]) if end else (text, [col, first])


def _encode(payload: Payload) -> str:
    line = {name: value for name, value in payload.items() if value is not None}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _record(line: tuple[int, str, str], state: _State, vectors: bool) -> Record:
    row, name, payload = line
    return Record(name, json.loads(payload), np.array(state.vectors[row - state.base]) if vectors else None)


def _block_hash(vectors: Vectors) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(vectors, "<f4").data, digest_size=16).digest()
