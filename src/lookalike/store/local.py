"""``LocalStore``: the default store. Rows in SQLite, vectors in a mapped file, and a graph that is derived from them.

Several stores share the database of an index: ``INDEX/generations/3`` is store 3 of ``INDEX/lookalike.db``; any other
folder has a database of its own. Vectors are appended to one file and synced before the rows that name them are
committed, so a kill leaves at most a tail without rows, which the next write overwrites. Rows get ascending numbers
that are never used again. See docs/design/index-and-stores.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lookalike.core import folders
from lookalike.core.database import FILE, Database
from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, hash_file, sync_folder
from lookalike.core.locks import Locked, hold
from lookalike.core.progress import warn
from lookalike.store import protocol
from lookalike.store.graph import Graph, GraphInfo
from lookalike.store.local_graph import CHANGED, GraphLoader
from lookalike.store.local_rows import SCHEMA, RowTables, decode
from lookalike.store.protocol import Damaged, Neighbors, Payload, Queries, Record, Rows, Vectors, Where
from lookalike.store.scan import merge_neighbors, nearest

FRESH = 10_000_000  # nanoseconds
SELECTIONS = 32  # results of filters that are kept in memory
BLOCK = 4096  # rows copied at a time
BLOCKS = "SELECT * FROM blocks_$ WHERE typeof(start) = 'integer' AND typeof(stop) = 'integer' ORDER BY start"
STATE = "SELECT version, base, rows, removed, graph FROM store WHERE number = ?"


@dataclass(frozen=True)
class State:
    """What one transaction sees of a store; positions in the vector file are row numbers less ``base``."""

    version: int
    base: int
    rows: int  # next row number
    removed: int  # number of deletions
    text: str | None  # what is known about the graph
    graph: GraphInfo | None
    vectors: Vectors
    live: NDArray[np.bool_] | None  # None if no row was deleted
    count: int

    @property
    def line(self) -> tuple[int, int, int, int, str | None]:
        return (self.version, self.base, self.rows, self.removed, self.text)

    @property
    def key(self) -> tuple[int, ...]:
        """What changes whenever rows do."""
        return (self.version, self.removed, len(self.vectors))

    def positions(self) -> Rows:
        """Return the positions of the rows that are not deleted."""
        return np.arange(len(self.vectors)) if self.live is None else np.flatnonzero(self.live)


class Selection(NamedTuple):
    """Rows that meet a filter, as a mask and as positions."""

    mask: NDArray[np.bool_]
    rows: Rows


class LocalStore(Queries):
    """A store in a folder; see :class:`Store`. Any number of processes read it while one writes.

    Readers see each commit as a whole, another process's within 10 ms. It is made by :meth:`open` or
    :meth:`create`.

    Args:
        place: Folder of the store.
        write: Whether to open it for writing.

    Example:
        >>> from lookalike.store import Condition
        >>> with contextlib.closing(LocalStore.create("vectors", 2)) as store:
        ...     store.upsert(["a", "b"], np.eye(2, dtype=np.float32), [{"width": 800}, {"width": 1200}])
        ...     [(hit.id, round(hit.score, 2)) for hit in store.query(np.array([3.0, 4.0]), 2)]
        ...     store.count([Condition("width", low="1000")])
        [('b', 0.8), ('a', 0.6)]
        1
    """

    def __init__(self, place: str, *, write: bool) -> None:
        self.place = Path(place)
        number, file = _collection(self.place)
        self.tables = RowTables(number)
        self._guard, self._writing = threading.Lock(), threading.RLock()
        self._state: State | None = None
        self._checked_at = (0, 0)  # when the state was last compared with the database
        self._selections: OrderedDict[Any, Selection] = OrderedDict()
        self._graphs = GraphLoader(self)
        with contextlib.ExitStack() as held:
            missing = LookalikeError(f"There is no store at `{place}`.")
            if not file.exists():
                raise missing
            if write:
                held.enter_context(hold(self.place / ".lock", f"The store `{place}`"))
            self.database = Database(file, write=write)
            held.callback(self.database.close)
            with self.database.transaction(write=False) as connection:
                tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'store'").fetchone()
                known = connection.execute("SELECT dim FROM store WHERE number = ?", (number,)) if tables else None
                line = known.fetchone() if known else None
            if line is None:
                raise missing
            self.dim = int(line[0])
            if write:
                self._drop_lost_rows()
                self._remove_old_files()
            self.state()
            self._held = held.pop_all()

    @classmethod
    def create(cls, place: str, dim: int) -> Self:
        number, file = _collection(Path(place))
        folders.private_folder(Path(place))
        database = Database(file, write=True, schema=SCHEMA)
        with contextlib.closing(database), database.transaction() as connection:
            if connection.execute(STATE, (number,)).fetchone():
                raise LookalikeError(f"`{place}` already holds a store.")
            (Path(place) / "vectors-1.f32").touch(mode=0o600)
            sync_folder(Path(place))
            RowTables(number).create(connection, dim)
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
                RowTables(number).drop(connection)

    def state(self) -> State:
        """Return what the store holds now; one statement tells whether it is what is known already.

        Queries take a state for 10 ms, unless this process has written to a database meanwhile.
        """
        old, checked_at = self._state, (time.monotonic_ns() // FRESH, Database.commits)
        if old is not None and checked_at == self._checked_at:
            return old
        lines = self.database.fetch(STATE, (self.tables.number,))
        if old is not None and [old.line] == lines:
            self._checked_at = checked_at
            return old
        with self._read() as (_, state):
            return state

    @contextlib.contextmanager
    def _read(self, *, long: bool = False) -> Iterator[tuple[sqlite3.Connection, State]]:
        """One transaction, and what it sees; a `long` one has a connection of its own."""
        for attempt in range(5):
            with self.database.snapshot() if long else self.database.transaction(write=False) as connection:
                try:
                    state = self._snapshot(connection)
                except FileNotFoundError:  # compacted between the two; the next transaction sees the new file
                    if attempt == 4:
                        raise Damaged(f"The store `{self.place}` is damaged: its vectors are missing.") from None
                    continue
                except (TypeError, ValueError, ArithmeticError) as error:
                    raise Damaged(f"The store `{self.place}` is damaged: its database holds wrong values.") from error
                yield connection, state
                return

    def _snapshot(self, connection: sqlite3.Connection) -> State:
        line = connection.execute(STATE, (self.tables.number,)).fetchone()
        if line is None:
            raise LookalikeError(f"The store `{self.place}` was deleted.")
        old = self._state
        if old is not None and old.line == line:
            return old
        version, base, rows, removed, text = line
        graph = GraphInfo.from_text(text)
        if old is not None and old.line[:4] == line[:4]:
            self._state = replace(old, text=text, graph=graph)
            return self._state
        size, path = rows - base, self.place / f"vectors-{version}.f32"
        if path.stat().st_size < 4 * self.dim * size:
            raise Damaged(f"The store `{self.place}` is damaged: {path.name} is too short.")
        vectors = np.empty((0, self.dim), np.float32)
        if size:
            vectors = np.memmap(path, np.float32, "r", shape=(size, self.dim)).view(np.ndarray)
        live: NDArray[np.bool_] | None = None
        if removed:
            live, seq = np.ones(size, dtype=bool), 0
            if old is not None and old.live is not None and old.version == version and old.rows <= rows:
                live[: len(old.live)], seq = old.live, old.removed
            gone = connection.execute(self.tables.sql("SELECT row FROM deleted_$ WHERE seq > ?"), (seq,)).fetchall()
            live[np.array(gone, dtype=np.int64).ravel() - base] = False
        count = size if live is None else int(live.sum())
        state = State(version, base, rows, removed, text, graph, vectors, live, count)
        if old is None or (version, rows, removed) > (old.version, old.rows, old.removed):  # else one of before
            self._state = state
        return state

    def _select(self, connection: sqlite3.Connection | None, state: State, where: Where) -> Selection | None:
        """The rows that are not deleted and meet every condition; None for all rows of the file."""
        if not where and state.live is None:
            return None
        key = (state.key, tuple(where))
        with self._guard:
            if key in self._selections:
                self._selections.move_to_end(key)
                return self._selections[key]
        mask = np.ones(len(state.vectors), dtype=bool) if state.live is None else state.live.copy()
        for condition in where:
            assert connection is not None
            meets = np.zeros(len(mask), dtype=bool)
            for rows in self.tables.matching(connection, condition, state.key):
                meets[rows - state.base] = True
            mask &= ~meets if condition.negate else meets
        selection = Selection(mask, np.flatnonzero(mask))
        with self._guard:
            self._selections[key] = selection
            while len(self._selections) > SELECTIONS:
                self._selections.popitem(last=False)
        return selection

    def _selected(self, where: Where) -> tuple[State, Selection | None]:
        if not where:
            state = self.state()
            return state, self._select(None, state, ())
        with self._read() as (connection, state):
            return state, self._select(connection, state, where)

    def _remove_old_files(self) -> None:
        """Delete what compactions and kills have left; only the writer may, and no graph that is being built."""
        self.remove_files("vectors-*.f32")
        with contextlib.suppress(Locked), hold(self.place / ".graph", "graph"):
            self.remove_files("graph-*", ".graph-*.part")

    def remove_files(self, *patterns: str) -> None:
        """Delete the files of vectors or graphs that are not in use."""
        self._checked_at = (0, 0)  # another process may have committed a graph a moment ago
        state = self.state()
        keep = {f"vectors-{state.version}.f32", state.graph.file if state.graph else ""}
        for file in (file for pattern in patterns for file in self.place.glob(pattern)):
            if file.name not in keep:
                with contextlib.suppress(OSError):  # Windows keeps mapped files
                    file.unlink()

    def _drop_lost_rows(self) -> None:
        """Delete the rows whose vectors a damaged file no longer has."""
        with self.database.transaction() as connection:
            version, base, rows, removed, _ = connection.execute(STATE, (self.tables.number,)).fetchone()
            path, size = self.place / f"vectors-{version}.f32", 4 * self.dim * (rows - base)
            left = path.stat().st_size if path.exists() else 0
            if left >= size:
                return
            warn(f"`{path}` is too short: the rows that it has lost are dropped.")
            first = base + left // (4 * self.dim)
            lost = connection.execute(self.tables.sql("SELECT id FROM rows_$ WHERE row >= ?"), (first,)).fetchall()
            self._delete(connection, [name for (name,) in lost], removed)
            cut = self.tables.sql("SELECT MIN(start) FROM blocks_$ WHERE stop > ?")
            start = connection.execute(cut, (first,)).fetchone()[0]
            connection.execute(self.tables.sql("DELETE FROM blocks_$ WHERE stop > ?"), (first,))
            with path.open("ab+") as file:
                file.truncate(size)
                file.seek(4 * self.dim * (start - base))
                block = (start, rows, _block_hash(np.frombuffer(file.read(), np.float32)))
            connection.execute(self.tables.sql("INSERT INTO blocks_$ VALUES (?, ?, ?)"), block)

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, matrix, lines = protocol.checked(ids, vectors, payloads, self.dim)
        if not names:
            return
        with self._writing, self.database.transaction() as connection:
            state = self._snapshot(connection)
            self._write_vectors(self.place / f"vectors-{state.version}.f32", len(state.vectors), matrix)
            self._delete(connection, names, state.removed)
            last = state.rows + len(names)
            self.tables.insert(connection, state.rows, names, lines)
            block = (state.rows, last, _block_hash(matrix))
            connection.execute(self.tables.sql("INSERT INTO blocks_$ VALUES (?, ?, ?)"), block)
            connection.execute("UPDATE store SET rows = ? WHERE number = ?", (last, self.tables.number))

    def _write_vectors(self, path: Path, position: int, vectors: Vectors) -> None:
        with disk_errors(path), path.open("rb+") as file:
            file.seek(4 * self.dim * position)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            file.flush()
            os.fsync(file.fileno())

    def delete(self, ids: Sequence[str]) -> None:
        if ids:
            with self._writing, self.database.transaction() as connection:
                self._delete(connection, ids, self._snapshot(connection).removed)

    def _delete(self, connection: sqlite3.Connection, ids: Sequence[str], removed: int) -> None:
        removed = self.tables.delete(connection, ids, removed)
        connection.execute("UPDATE store SET removed = ? WHERE number = ?", (removed, self.tables.number))

    def build(self) -> dict[str, Any]:
        """Drop deleted rows if they are more than a fifth, and build the graph if a fifth has changed."""
        with self._writing:
            state = self.state()
            if len(state.vectors) - state.count > CHANGED * len(state.vectors):
                self._compact(state)
            self._graphs.update()
            state = self.state()
        info, facts = state.graph, {"rows": state.count, "indexed": 0, "recall": 1.0, "width": None}
        return facts if info is None else facts | {"indexed": info.rows, "recall": info.recall, "width": info.width}

    def _compact(self, state: State) -> None:
        """Write the rows that are left to a new file, under new numbers, and switch to it in one transaction."""
        rows, blocks = state.positions(), []
        path = self.place / f"vectors-{state.version + 1}.f32"
        path.unlink(missing_ok=True)
        with disk_errors(path):
            path.touch(mode=0o600)
            for start in range(0, len(rows), BLOCK):
                part = state.vectors[rows[start : start + BLOCK]]
                self._write_vectors(path, start, part)
                blocks.append((state.rows + start, state.rows + start + len(part), _block_hash(part)))
            sync_folder(self.place)
        with self.database.transaction() as connection:
            self.tables.renumber(connection, (rows + state.base).tolist(), state.rows, blocks)
            connection.execute(
                "UPDATE store SET version = ?, base = ?, rows = ?, removed = 0, graph = NULL WHERE number = ?",
                (state.version + 1, state.rows, state.rows + len(rows), self.tables.number),
            )
        self._remove_old_files()

    def verify(self) -> list[str]:
        """Compare vectors, rows and graph with the hashes of when they were written, waiting for the graph.

        Returns:
            What is damaged, one sentence each.
        """
        problems, end = [], 0
        with self.database.snapshot() as connection:
            state = self._snapshot(connection)
            blocks = connection.execute(self.tables.sql(BLOCKS)).fetchall()
            if damage := self.tables.damage(connection, state.positions() + state.base, state.removed):
                problems.append(f"{damage} in `{self.database.path}`.")
        for start, stop, expected in ((a - state.base, b - state.base, h) for a, b, h in blocks):
            if start != end or _block_hash(state.vectors[start:stop]) != expected:
                problems.append(f"Vectors {start:,} to {stop - 1:,} of `{self.place}` are damaged.")
            end = stop
        if end != len(state.vectors):
            problems.append(f"Vectors from {end:,} of `{self.place}` have no hashes.")
        if state.text is not None:
            path = self.place / (state.graph.file if state.graph else "damaged")
            if state.graph is None or not path.exists() or hash_file(path) != state.graph.hash:
                problems.append(f"The graph of `{self.place}` is damaged; it is built again at the next search.")
            else:
                self.load_graph()
        return problems

    def close(self) -> None:
        self._held.close()
        self._checked_at = (0, 0)

    def load_graph(self) -> Graph | None:
        """Return the graph, waiting until it is checked; ``None`` if there is none."""
        return self._graphs.wait()

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        with self._read() as (connection, state):
            lines = self.tables.lines_of(connection, ids)
            records = {line[1]: _record(line, state if vectors else None) for line in lines}
        return list(map(records.get, ids))

    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]:
        """Return rows by number, ``None`` for those that are gone; one statement fetches them all."""
        with self._read() as (connection, state):
            lines = self.tables.lines(connection, rows)
            records = {line[0]: _record(line, state if vectors else None) for line in lines}
        return list(map(records.get, rows.tolist()))

    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors:
        """Return row numbers and scores of the k nearest rows; see :class:`Store`.

        The rows are compared one by one, or the graph proposes candidates, whichever costs less for this filter.
        """
        return self._neighbors(protocol.unit_rows(queries, self.dim), k, *self._selected(where), exact)

    def _search_payloads(
        self, queries: Vectors, k: int, where: Where, exact: bool
    ) -> tuple[Neighbors, dict[int, tuple[str, dict[str, Any]]]]:
        near = self.search(queries, k, where=where, exact=exact)
        rows = list(set(near.rows.ravel().tolist()) - {-1})
        lines = self.database.fetch(*self.tables.selecting(rows))
        if len(lines) < len(rows):  # deleted or renumbered since: once more, in one transaction
            with self._read() as (connection, state):
                selection = self._select(connection, state, where)
                near = self._neighbors(protocol.unit_rows(queries, self.dim), k, state, selection, exact)
                lines = self.tables.lines(connection, near.rows.ravel()).fetchall()
        return near, {row: (name, decode(text)) for row, name, text in lines}

    def _neighbors(self, queries: Vectors, k: int, state: State, selection: Selection | None, exact: bool) -> Neighbors:
        rows, scores = self._nearest(queries, k, state, selection, exact)
        if missing := k - rows.shape[1]:
            rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
            scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
        return Neighbors(np.where(rows >= 0, rows + state.base, -1) if state.base else rows, scores)

    def _nearest(
        self, queries: Vectors, k: int, state: State, selection: Selection | None, exact: bool
    ) -> tuple[Rows, Vectors]:
        """Positions and scores, from the graph for the rows it covers and by comparison for those added since."""
        vectors, rows = state.vectors, None if selection is None else selection.rows
        graph = self._graphs.ready(state)
        if graph is None or graph.info.rows > len(vectors):
            return nearest(queries, vectors, k, rows)
        covered = graph.info.rows
        inside = covered if rows is None else int(np.searchsorted(rows, covered))
        hits = graph.search(queries, k, vectors, rows[:inside] if rows is not None else None,
                             selection.mask if selection is not None else None, exact=exact)  # fmt: skip
        if len(vectors) == covered:
            return hits
        later, scores = nearest(queries, vectors[covered:], k, None if rows is None else rows[inside:] - covered)
        return merge_neighbors([hits, (later + covered, scores)], k)

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        with self._read(long=True) as (connection, state):
            selection = self._select(connection, state, where) if where else None
            few = selection is not None and 3 * len(selection.rows) < state.count
            records: list[Record] = []
            for line in self.tables.lines(connection, selection.rows + state.base if selection and few else None):
                if selection is None or selection.mask[line[0] - state.base]:
                    records.append(_record(line, state if vectors else None))
                    if len(records) >= batch:
                        yield records
                        records = []
            if records:
                yield records

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        with self._read() as (connection, state):
            selection = self._select(connection, state, where) if where else None
            rows = None if selection is None else selection.rows + state.base
            return self.tables.facets(connection, column, limit, rows)

    def count(self, where: Where = ()) -> int:
        state, selection = self._selected(where)
        return state.count if selection is None else len(selection.rows)


def _collection(place: Path) -> tuple[int, Path]:
    """Number of a store, and the database it is in."""
    if place.parent.name == "generations" and place.name.isdigit():
        return int(place.name), place.parent.parent / FILE
    return 1, place / FILE


def _record(line: tuple[int, str, str], state: State | None) -> Record:
    """The record of a line, with its vector if the state is given."""
    vector = None if state is None else np.array(state.vectors[line[0] - state.base])
    return Record(line[1], decode(line[2]), vector)


def _block_hash(vectors: Vectors) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(vectors, "<f4").data, digest_size=16).digest()
