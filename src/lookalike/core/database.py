"""SQLite databases: many readers beside one writer (WAL), acknowledged writes on disk, one-line errors."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from lookalike.core import folders
from lookalike.core.errors import DiskError, LookalikeError, Unavailable
from lookalike.core.files import disk_errors, free_bytes, to_json
from lookalike.core.folders import home, private_folder
from lookalike.core.locks import Locked

BUSY_SECONDS = 30.0  # a write transaction waits so long for another one
FILE = "lookalike.db"  # in an index: its rows; in the user's folder: keys, uploads, dismissed duplicates, moves
# Whether statements of this context are to end: set by a server, for requests that it or their client gives up.
CANCELLED: ContextVar[Callable[[], bool]] = ContextVar("cancelled", default=lambda: False)
_DAMAGES = ("malformed", "not a database", "no such", "Could not decode", "no column named")


class DamagedDatabase(LookalikeError):
    """A database that cannot be read."""


class Database:
    """A SQLite database, safe to use from several threads; there are as many connections as transactions at a time.

    Args:
        path: The file.
        write: Whether it may be written to; a missing file is created then.
        schema: Statements that create missing tables.

    Raises:
        LookalikeError: If there is no database, or it is damaged.

    Example:
        >>> database = Database("notes.db", write=True, schema="CREATE TABLE IF NOT EXISTS note(text TEXT)")
        >>> with database.transaction() as connection:
        ...     _ = connection.execute("INSERT INTO note VALUES ('gull')")
        >>> database.connection.execute("SELECT text FROM note").fetchall()
        [('gull',)]
        >>> database.close()
    """

    commits: ClassVar[int] = 0  # by this process, to any database: a hint that what was read may be old

    def __init__(self, path: str | Path, *, write: bool = False, schema: str = "") -> None:
        self.path, self.write = Path(path), write
        self._guard = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._read_only = not write and not all(os.access(place, os.W_OK) for place in (self.path, self.path.parent))
        self._still: tuple[int, ...] | None = None  # the state of the file, if it is read as one that does not change
        refuse_network_drive(self.path.parent)
        if write and not self.path.exists():
            with disk_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # only its owner may read it
        if not self.path.exists():
            raise LookalikeError(f"There is no database at `{self.path}`.")
        with self.errors():
            if schema:
                self.connection.executescript(f"BEGIN IMMEDIATE;{schema};COMMIT")
            try:
                self.connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            except (sqlite3.Error, DiskError):
                if write or self._read_only or free_bytes(self.path.parent) > 1 << 16:
                    raise
                self._read_only = True  # a full disk has no room for what readers share
                self.__dict__.pop("connection", None)
                self.connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()

    @cached_property
    def connection(self) -> sqlite3.Connection:
        """A connection for the thread that opened the database; every statement is a transaction."""
        return self.connect()

    def connect(self) -> sqlite3.Connection:
        """Return a further connection, which is closed with the database.

        Who cannot write reads what a writer shares with all (the log and its index). Without a log nobody has written
        since the last writer ended; the file is then read as one that does not change, until it does.
        """
        self._renew()
        mode = "mode=rw" if not self._read_only else "mode=ro" if self._still is None else "immutable=1"
        with self.errors():
            address = f"{self.path.absolute().as_uri()}?{mode}"
            connection = sqlite3.connect(
                address, BUSY_SECONDS, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            try:
                first = "SELECT 1 FROM sqlite_master" if self._read_only else "PRAGMA journal_mode=WAL"
                connection.execute(first).fetchone()
            except sqlite3.OperationalError as error:
                if mode == "mode=ro" and "unable to open" in str(error):
                    raise LookalikeError(
                        f"`{self.path}` was not closed and cannot be written to: copy its folder to a writable disk."
                    ) from error
                raise
            connection.execute("PRAGMA synchronous=FULL")
            connection.set_progress_handler(lambda: CANCELLED.get()(), 100_000)
            if not self.write:
                connection.execute("PRAGMA query_only=1")
        with self._guard:
            if self._closed:
                connection.close()
                raise ValueError("the database is closed")
            self._connections.append(connection)
        return connection

    def _log_size(self) -> int:
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _state(self) -> tuple[int, ...]:
        """What a writer changes about the files."""
        status = self.path.stat()
        return (status.st_ino, status.st_size, status.st_mtime_ns, self._log_size())

    def _renew(self) -> None:
        """Leave connections behind that know an earlier state of the file."""
        still = self._state() if self._read_only and not self._log_size() else None
        if still != self._still:
            self._still, self._idle = still, []

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses."""
        if self._still is not None:
            self._renew()
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection, idle = self.connect(), self._idle
        try:
            with self.errors():
                yield connection
        finally:
            idle.append(connection)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction; an error undoes it."""
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
                Database.commits += write
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def fetch(self, statement: str, values: Sequence[Any] = (), *, optional: bool = False) -> list[Any]:
        """Return the rows of a query, a transaction of its own; with ``optional``, none if its table is missing."""
        with self._use() as connection:
            try:
                return connection.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                if optional and "no such table" in str(error):
                    return []
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Run a block in one read transaction of a connection of its own, whatever this thread does meanwhile."""
        connection = self.connect()
        try:
            with self.errors():
                connection.execute("BEGIN")
                yield connection
        finally:
            with self._guard:
                if connection in self._connections:
                    self._connections.remove(connection)
            connection.close()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn known errors of SQLite into one-line errors, and refuse what was read while the file changed."""
        still = self._still
        try:
            yield
            if still is not None and still != self._state():
                raise sqlite3.OperationalError("locked")
        except UnicodeDecodeError as error:  # in the message of an error about a damaged schema
            raise self._damaged("text that is not UTF-8") from error
        except sqlite3.Error as error:
            text = str(error)
            if "locked" in text or (still is not None and still != self._state()):
                raise Locked(f"`{self.path}` is being written to by another process: try again.") from error
            if "is full" in text or "disk I/O error" in text:
                raise DiskError(
                    f"The disk that holds `{self.path}` is full or failing; what was acknowledged is safe."
                ) from error
            if "interrupted" in text:
                raise Unavailable("This takes too long. Use fewer filters, or try again later.") from error
            if "unable to open" in text:
                os.close(os.open(os.devnull, os.O_RDONLY))  # without free file handles this is the error to raise
            if "readonly" in text or "unable to open" in text:
                raise DiskError(f"`{self.path}` cannot be written to ({text}).") from error
            if isinstance(error, sqlite3.DatabaseError) and any(words in text for words in _DAMAGES):
                raise self._damaged(text) from error
            raise

    def _damaged(self, text: str) -> LookalikeError:
        return DamagedDatabase(f"`{self.path}` is damaged ({text}): restore a backup, or make it again.")

    def close(self) -> None:
        """Close all connections."""
        with self._guard:
            self._closed = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._idle.clear()


def refuse_network_drive(folder: Path) -> None:
    """Raise if a folder, in which there is or shall be a database, is on a network drive."""
    reason = "a database, whose log (SQLite's WAL) needs shared memory that network drives do not have,"
    folders.refuse_network_drive(folder, reason)


DOCUMENTS = "CREATE TABLE IF NOT EXISTS document(name TEXT PRIMARY KEY, body TEXT NOT NULL, sum INTEGER NOT NULL)"


def read_document(folder: Path, name: str) -> Any:
    """Return a JSON document of a folder's database, or ``None`` if there is none."""
    if not (folder / FILE).exists():
        return None
    with contextlib.closing(Database(folder / FILE)) as database:
        rows = database.fetch("SELECT body, sum FROM document WHERE name = ?", (name,), optional=True)
    if not rows:
        return None
    body, total = rows[0]
    try:
        if zlib.crc32(f"{name}\0{body}".encode()) != total:
            raise ValueError("another checksum")
        return json.loads(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedDatabase(f"`{folder / FILE}` is damaged: its {name} is not what was written.") from error


def write_document(folder: Path, name: str, document: Any) -> None:
    """Write a JSON document to a folder's database, or delete it if it is ``None``."""
    database = Database(folder / FILE, write=True, schema=DOCUMENTS)
    with contextlib.closing(database), database.transaction() as connection:
        if document is None:
            connection.execute("DELETE FROM document WHERE name = ?", (name,))
        else:  # JSON's escapes also write bytes of file names that are not UTF-8
            body = json.dumps(document, default=to_json, allow_nan=False)
            connection.execute(
                "INSERT OR REPLACE INTO document VALUES (?, ?, ?)", (name, body, zlib.crc32(f"{name}\0{body}".encode()))
            )


def user_database(schema: str) -> Database:
    """Open the database in the user's folder, with the tables of a schema."""
    return Database(private_folder(home()) / FILE, write=True, schema=schema)


def user_rows(query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the rows of a query in the user's database; reading does not create it."""
    if not (home() / FILE).exists():
        return []
    with contextlib.closing(Database(home() / FILE)) as database:
        return database.fetch(query, values, optional=True)


def marks(values: Any) -> str:
    """Return as many placeholders as there are values, as in ``?,?,?``."""
    return ",".join("?" * len(values))
