"""``PgvectorStore``: tables of a PostgreSQL server with the extension pgvector.

A store has three tables: rows (number, key, payload and vector), texts and numbers (inverted indexes of the columns).
Its local folder holds the address, the name of the tables and the measured search width. What the server has committed
is durable; readers see each commit as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import numpy as np

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.locks import Locked
from lookalike.store import protocol
from lookalike.store.graph import PROBES
from lookalike.store.protocol import ROW_ID, Condition, Neighbors, Payload, Record, Rows, Vectors, Where
from lookalike.store.shards import MARGIN, Collection, Shards

GRAPH_ROWS = 5000  # below, the server compares every row
GROWTH = 0.2  # fraction of rows added or deleted after which the width is measured again
MAX_WIDTH = 1000  # of pgvector
DIMENSIONS = 2000  # of pgvector's graph of float32 vectors; half precision up to twice as many
DEFAULT_WIDTH = 100
COMPARED = 3000  # selected rows that are compared rather than searched by the graph
REFUSALS = ("DiskFull", "InsufficientPrivilege", "FeatureNotSupported", "UndefinedFile")
MAX_MEMORY = 2000  # megabytes of the server for building the graph; beyond, it takes longer
SESSION_END = 5.0  # seconds that a server may take to end the session of a writer that closed or was killed
COUNTED = 60.0  # seconds for which a filter's count decides on the plan
HEAD = 256  # bytes of a text that are indexed
PARAMETERS = {"host", "sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout"}

SCHEMA = """
CREATE TABLE {t} (row bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key uuid NOT NULL UNIQUE, payload text NOT NULL,
    vector vector({dim}) NOT NULL);
ALTER TABLE {t} ALTER COLUMN vector SET STORAGE {storage};
CREATE TABLE {t}_texts (col bigint NOT NULL, value bytea NOT NULL, row bigint NOT NULL);
CREATE INDEX ON {t}_texts (col, substring(value, 1, {head}), row);
CREATE INDEX ON {t}_texts (row);
CREATE TABLE {t}_numbers (col bigint NOT NULL, value float8 NOT NULL, row bigint NOT NULL);
CREATE INDEX ON {t}_numbers (col, value, row);
CREATE INDEX ON {t}_numbers (row);
"""


def parse_address(text: str) -> str:
    """Return the canonical form of an address.

    Args:
        text: ``postgresql://[USER@]HOST[:PORT]/DATABASE``, with libpq's parameters for TLS or a socket's folder.

    Returns:
        The address.

    Raises:
        LookalikeError: If it is not an address, or contains a password (which would be stored and shown).

    Example:
        >>> parse_address("postgresql://shop@localhost/images")
        'postgresql://shop@localhost:5432/images'
    """
    parts = urlsplit(text)
    if parts.password or "password" in parts.query:
        raise LookalikeError(
            "An address must not contain a password, because it is stored and shown: leave it out, and use PGPASSWORD, "
            "~/.pgpass or a service file."
        )
    parameters = dict(parse_qsl(parts.query))
    try:
        host, port = parts.hostname or "", parts.port or 5432
    except ValueError:
        host, port, parameters = "", 0, {}
    database = unquote(parts.path.strip("/"))
    valid = (host or "host" in parameters) and database and "/" not in database and not set(parameters) - PARAMETERS
    if parts.scheme != "postgresql" or not valid or parts.fragment:
        raise LookalikeError(
            f"`{parts.scheme}://{parts.netloc}` is not the address of a PostgreSQL database: write "
            "postgresql://[USER@]HOST[:PORT]/DATABASE."
        )
    user = f"{quote(unquote(parts.username), safe='')}@" if parts.username else ""
    shown = f"[{host}]" if ":" in host else host
    server = f"{shown}:{port}" if host else f":{port}" if parts.port else ""
    query = f"?{urlencode(sorted(parameters.items()))}" if parameters else ""
    return f"postgresql://{user}{server}/{quote(database, safe='')}{query}"


class Connections:
    """Connections to a database for any number of threads, with errors explained in one line.

    Args:
        address: Address of the database.
    """

    def __init__(self, address: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise LookalikeError("PostgreSQL needs a client library: pip install 'lookalike[postgres]'.") from error
        self.address, self._psycopg = address, psycopg
        self._idle: list[Any] = []
        self._closed = False

    def connect(self) -> Any:
        """Return a new connection."""
        pg = self._psycopg
        with self.explained():
            connection = pg.connect(
                self.address, prepare_threshold=None, connect_timeout=10, application_name="lookalike"
            )
            info = pg.types.TypeInfo.fetch(connection, "vector")
            if info is None:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                info = pg.types.TypeInfo.fetch(connection, "vector")
            connection.commit()

        class VectorDumper(pg.adapt.Dumper):  # type: ignore[name-defined]
            format, oid = pg.pq.Format.BINARY, info.oid

            def dump(self, value: Any) -> bytes:
                return _to_bytes(value)

        connection.adapters.register_dumper(np.ndarray, VectorDumper)
        return connection

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Yield a cursor with binary results in a transaction of its own."""
        connection = self._idle.pop() if self._idle else self.connect()
        try:
            with self.explained(), connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor
        finally:
            if connection.closed or connection.broken:  # the server was restarted: the others are lost too
                self._drop_idle()
            if self._closed or connection.closed or connection.broken:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the server into one line, without the address's user or parameters."""
        pg, server = self._psycopg, urlsplit(self.address).netloc.rpartition("@")[2] or "its socket"
        try:
            yield
        except pg.errors.UndefinedTable as error:
            raise LookalikeError(
                f"The tables of this index are no longer at {server}: purge the index and make it again."
            ) from error
        except tuple(getattr(pg.errors, name) for name in REFUSALS) as error:
            raise LookalikeError(f"PostgreSQL at {server} refuses: {str(error).splitlines()[0]}.") from error
        except pg.OperationalError as error:
            lines = str(error).strip().splitlines() or ["no answer"]
            raise Unavailable(
                f"PostgreSQL at {server} does not answer: {lines[0].rpartition(': ')[2].strip()}."
            ) from error


class Tables(Collection):
    """One collection: three tables. Dimensions above 4,000 are searched by comparison only; see :class:`Collection`."""

    kind = "postgresql"

    def __init__(self, place: str, connections: Connections, meta: dict[str, Any]) -> None:
        super().__init__(place, connections, meta)
        self._connections, self._table = connections, _name(meta["table"])
        self._writing = threading.RLock()
        self._counts: dict[Where, tuple[int, float]] = {}
        half = f"halfvec({self.dim})" if self.dim > DIMENSIONS else ""
        self._graph = f"((vector::{half}) halfvec_ip_ops)" if half else "(vector vector_ip_ops)"
        self._order = f"(vector::{half}) <#> %s::{half}" if half else "vector <#> %s"

    @classmethod
    def _named(cls, dim: int) -> dict[str, Any]:
        if dim > 16_000:
            raise LookalikeError(f"pgvector stores at most 16,000 dimensions, not {dim:,}.")
        return {"table": f"lookalike_{secrets.token_hex(12)}"}

    @classmethod
    def _connected(cls, meta: dict[str, Any], beside: Self | None) -> contextlib.AbstractContextManager[Connections]:
        if beside is not None:
            return contextlib.nullcontext(beside._connections)
        return contextlib.closing(Connections(parse_address(meta["address"])))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock of the folder, and one of the server for writers on other machines."""
        with super()._locked(), contextlib.closing(self._connections.connect()) as connection:
            connection.autocommit = True
            deadline = time.monotonic() + SESSION_END
            while not connection.execute("SELECT pg_try_advisory_lock(%s)", (_number(self._table),)).fetchone()[0]:
                if time.monotonic() > deadline:
                    raise Locked(f"The store `{self.place}`: another process on another machine is writing to it.")
                time.sleep(0.05)
            yield

    def _create(self) -> None:
        storage = "PLAIN" if self.dim <= 1900 else "EXTERNAL"  # a page holds 8 kB
        with self._connections.use() as cursor:
            for statement in SCHEMA.format(t=self._table, dim=self.dim, storage=storage, head=HEAD).split(";")[:-1]:
                cursor.execute(statement)

    def _check(self) -> None:
        self.count()

    @classmethod
    def _drop(cls, connection: Connections, meta: dict[str, Any]) -> None:
        table = _name(meta["table"])
        with connection.use() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}, {table}_texts, {table}_numbers")

    def _sql(self, text: str) -> str:
        """A statement with this store's tables: `$rows`, `$texts`, `$numbers`."""
        return text.replace("$rows", self._table).replace("$", f"{self._table}_")

    def _all(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._connections.use() as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(self._sql(text), values).fetchall()
            return rows

    def upsert(self, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        names, matrix, lines = protocol.checked(ids, vectors, payloads, self.dim)
        if not names:
            return
        keys = [protocol.point_id(name) for name in names]
        with self._writing, self._connections.use() as cursor:
            self._delete(cursor, keys)
            take = self._sql("SELECT nextval(pg_get_serial_sequence('$rows', 'row')) FROM generate_series(1, %s)")
            numbers = [row for (row,) in cursor.execute(take, (len(names),)).fetchall()]
            binary = "(FORMAT BINARY)"
            rows = [
                (struct.pack(">q", row), bytes.fromhex(key.replace("-", "")), _encode(name, line), _to_bytes(vector))
                for row, key, name, line, vector in zip(numbers, keys, names, lines, matrix, strict=True)
            ]
            _copy(cursor, self._sql(f"COPY $rows(row, key, payload, vector) FROM STDIN {binary}"), rows)
            texts, points = _terms(zip(numbers, lines, strict=True))
            _copy(cursor, self._sql(f"COPY $texts(col, value, row) FROM STDIN {binary}"), texts)
            _copy(cursor, self._sql(f"COPY $numbers(col, value, row) FROM STDIN {binary}"), points)

    def delete(self, ids: Sequence[str]) -> None:
        if len(ids):
            with self._writing, self._connections.use() as cursor:
                self._delete(cursor, [protocol.point_id(name) for name in ids])

    def _delete(self, cursor: Any, keys: list[str]) -> None:
        self._counts.clear()
        text = "DELETE FROM $rows WHERE key = ANY(%s::uuid[]) RETURNING row"
        gone = [row for (row,) in cursor.execute(self._sql(text), (keys,)).fetchall()]
        if gone:
            for table in ("$texts", "$numbers"):
                cursor.execute(self._sql(f"DELETE FROM {table} WHERE row = ANY(%s)"), (gone,))

    def build(self) -> dict[str, Any]:
        """Build the graph if there are enough rows, and measure how many candidates a search must keep.

        The server adds later rows to the graph as they are written.
        """
        rows = self.count()
        with self._writing, self._connections.use() as cursor:
            if rows >= GRAPH_ROWS and self.dim <= 2 * DIMENSIONS and not self._has_graph(cursor):
                memory = min(400 + rows * 6 // 1000, MAX_MEMORY)
                cursor.execute("SELECT set_config('maintenance_work_mem', %s, true)", (f"{memory}MB",))
                cursor.execute(self._sql(f"CREATE INDEX ON $rows USING hnsw {self._graph}"))
        with self._connections.use() as cursor:
            for table in ("$rows", "$texts", "$numbers"):
                cursor.execute(self._sql(f"ANALYZE {table}"))
            graph = self._has_graph(cursor)

        def sample() -> Vectors:  # by the order of keys, which are hashes: at random
            lines = self._all(f"SELECT vector FROM $rows ORDER BY key LIMIT {PROBES}")
            return np.stack([_from_bytes(data) for (data,) in lines])

        return self._measured(rows, sample if graph else None, GROWTH)

    def _has_graph(self, cursor: Any) -> bool:
        text = "SELECT 1 FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%USING hnsw%%'"
        return cursor.execute(text, (self._table,)).fetchone() is not None

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[Record | None]:
        text = f"SELECT payload{', vector' * vectors} FROM $rows WHERE key = ANY(%s::uuid[])"
        lines = self._all(text, [protocol.point_id(name) for name in ids])
        by_id = {record.id: record for record in (_record(*line) for line in lines)}
        return list(map(by_id.get, ids))

    def records(self, rows: Rows, *, vectors: bool = False) -> list[Record | None]:
        """Return rows by number, ``None`` for those that are gone."""
        numbers = np.asarray(rows).tolist()
        lines = self._all(f"SELECT row, payload{', vector' * vectors} FROM $rows WHERE row = ANY(%s)", numbers)
        by_row = {row: _record(*line) for row, *line in lines}
        return list(map(by_row.get, numbers))

    def search(self, queries: Vectors, k: int, *, where: Where = (), exact: bool = False) -> Neighbors:
        """Return row numbers and scores of the k nearest rows; see :class:`Store`.

        Under a filter the graph's candidates are filtered. Where too few of the nearest remain, the server compares
        the query with all selected rows: what a graph finds far away from a query is not complete.
        """
        unit = protocol.unit_rows(queries, self.dim)
        rows, scores = np.full((len(unit), k), -1, np.int64), np.full((len(unit), k), -np.inf, np.float32)
        condition, values = self._condition(where)
        width = max(self.width or DEFAULT_WIDTH, -(-3 * k // 2))
        near = max(width // MARGIN, 2 * k)  # candidates that are complete, if the search is wider
        compare = exact or self.width is None or width > MAX_WIDTH or not len(unit)
        if where and not compare:
            selected = self._recent_count(tuple(where))
            width = min(MAX_WIDTH, -(-width * self._recent_count(()) // max(selected, 1)))
            compare = selected <= COMPARED
        left = np.arange(len(unit))
        if not compare:
            usable = f", ({condition})" if where else ", true"
            text = f"SELECT row, -(vector <#> %s) {usable} FROM $rows t ORDER BY {self._order} LIMIT %s"
            with self._connections.use() as cursor:
                cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(width),))
                lists = _run_many(cursor, self._sql(text), [[q, *values, q, width] for q in unit])
            for i, hits in enumerate(lists):
                good = [(row, score) for row, score, meets in hits if meets]
                if where and sum(meets for *_, meets in hits[:near]) < k:
                    continue
                for j, (row, score) in enumerate(sorted(good[: 2 * k], key=lambda hit: (-hit[1], hit[0]))[:k]):
                    rows[i, j], scores[i, j] = row, score
                left = left[left != i]
        if len(left):
            select = f"FROM $rows t WHERE {condition or 'true'} ORDER BY (vector <#> %s) + 0, row LIMIT %s"
            with self._connections.use() as cursor:
                text = self._sql(f"SELECT row, -(vector <#> %s) {select}")
                lists = _run_many(cursor, text, [[unit[i], *values, unit[i], k] for i in left])
            for i, hits in zip(left.tolist(), lists, strict=True):
                for j, (row, score) in enumerate(hits):
                    rows[i, j], scores[i, j] = row, score
        return Neighbors(rows, np.clip(scores, -np.inf, 1).astype(np.float32))

    def _recent_count(self, where: Where) -> int:
        """Rows that meet a filter, a minute ago at most: it decides how they are searched, not what is found."""
        count, when = self._counts.get(where, (0, -math.inf))
        if time.monotonic() - when > COUNTED:
            if len(self._counts) > 100:
                self._counts.clear()
            count = self.count(where)
            self._counts[where] = (count, time.monotonic())
        return count

    def _condition(self, where: Where) -> tuple[str, list[Any]]:
        """A filter as SQL on the table `t`, and its values."""
        parts = [(condition.negate, *_conditions(condition)) for condition in where]
        text = " AND ".join(f"{'NOT ' * negate}({text})" for negate, text, _ in parts)
        return self._sql(text), [value for *_, values in parts for value in values]

    def scan(self, *, where: Where = (), vectors: bool = False, batch: int = 1000) -> Iterator[list[Record]]:
        condition, values = self._condition(where)
        last = -1
        while True:
            text = f"SELECT row, payload{', vector' * vectors} FROM $rows t WHERE row > %s"
            text += f" AND {condition}" * bool(where) + " ORDER BY row LIMIT %s"
            lines = self._all(text, last, *values, batch)
            if lines:
                yield [_record(*line) for _, *line in lines]
                last = lines[-1][0]
            if len(lines) < batch:
                return

    def facets(self, column: str, *, where: Where = (), limit: int = 100) -> list[tuple[str, int]]:
        if column.startswith("_"):
            return []
        condition, values = self._condition(where)
        text = "SELECT value, count(*) FROM $texts x WHERE col = %s AND value <> ''"
        if where:
            text += f" AND EXISTS (SELECT 1 FROM $rows t WHERE t.row = x.row AND {condition})"
        text += " GROUP BY value ORDER BY 2 DESC, 1 LIMIT %s"
        lines = self._all(text, _number(column), *values, limit)
        return [(bytes(value).decode(), count) for value, count in lines]

    def count(self, where: Where = ()) -> int:
        condition, values = self._condition(where)
        return int(self._all(f"SELECT count(*) FROM $rows t WHERE {condition or 'true'}", *values)[0][0])


class PgvectorStore(Shards):
    """A store on a PostgreSQL server with pgvector; see :class:`Shards`. One process writes, from whichever machine."""

    collection, parse, example = Tables, staticmethod(parse_address), "postgresql://[USER@]HOST/DATABASE"


def _name(table: object) -> str:
    if not (isinstance(table, str) and table.isidentifier() and table.isascii()):
        raise LookalikeError("The store's file `store.json` is damaged: it does not name its tables.")
    return table


def _number(text: str) -> int:
    """A column's number: a hash, so that no table of columns is needed."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _to_bytes(vector: Vectors) -> bytes:
    """A vector in pgvector's binary format."""
    return struct.pack(">HH", len(vector), 0) + np.ascontiguousarray(vector, ">f4").tobytes()


def _from_bytes(data: bytes) -> Vectors:
    return np.frombuffer(data, ">f4", offset=4).astype(np.float32)


def _encode(name: str, payload: Payload) -> bytes:
    line = {column: value for column, value in payload.items() if value is not None}
    return json.dumps([name, line], separators=(",", ":")).encode()  # ASCII: PostgreSQL's texts have no NUL


def _record(payload: str, vector: bytes | None = None) -> Record:
    name, line = json.loads(payload)
    return Record(name, line, None if vector is None else _from_bytes(vector))


def _terms(rows: Iterable[tuple[int, Payload]]) -> tuple[list[tuple[bytes, ...]], list[tuple[bytes, ...]]]:
    """Entries of the inverted indexes, as fields of a binary copy."""
    texts: list[tuple[bytes, ...]] = []
    numbers: list[tuple[bytes, ...]] = []
    for row, line in rows:
        for name, value in line.items():
            if name.startswith("_") or value is None:
                continue
            column, number = struct.pack(">q", _number(name)), struct.pack(">q", row)
            values = value if isinstance(value, list) else [value] if isinstance(value, str) else []
            texts += [(column, text.encode(), number) for text in dict.fromkeys(values) if protocol.is_text(text)]
            for kind, x in protocol.points_of(value):
                numbers.append((struct.pack(">q", _number(f"{kind} {name}")), struct.pack(">d", x), number))
    return texts, numbers


def _copy(cursor: Any, statement: str, rows: Sequence[tuple[bytes, ...]]) -> None:
    """Write rows of binary fields."""
    if not rows:
        return
    start = struct.pack(">h", len(rows[0]))
    with cursor.copy(statement) as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
        for at in range(0, len(rows), 1000):
            lines = (start + b"".join(struct.pack(">i", len(f)) + f for f in row) for row in rows[at : at + 1000])
            copy.write(b"".join(lines))
        copy.write(struct.pack(">h", -1))


def _run_many(cursor: Any, statement: str, values: list[list[Any]]) -> list[list[tuple[Any, ...]]]:
    """Results of a statement for several values, in one round trip."""
    cursor.executemany(statement, values, returning=True)
    results = []
    while True:
        results.append(cursor.fetchall())
        if not cursor.nextset():
            return results


def _conditions(condition: Condition) -> tuple[str, list[Any]]:
    """A condition, not negated, as SQL on the table `t`, and its values."""
    parts: list[str] = []
    values: list[Any] = []
    exists = "EXISTS (SELECT 1 FROM {} x WHERE x.row = t.row AND col = %s AND {})"
    if condition.is_range:
        for kind, (low, high) in condition.intervals().items():
            parts.append(exists.format("$numbers", "value BETWEEN %s AND %s"))
            values += [_number(f"{kind} {condition.column}"), low, high]
        return " OR ".join(parts) or "false", values
    if condition.column == ROW_ID:
        return "t.key = ANY(%s::uuid[])", [[protocol.point_id(name) for name in condition.values]]
    texts = [text for text in condition.values if protocol.is_text(text)]
    head = f"substring(value, 1, {HEAD})"
    for text in texts if condition.prefix else ():
        start, end = text.encode(), protocol.prefix_end(text).encode()
        part = f"{head} >= %s AND substring(value, 1, %s) = %s"
        values += [_number(condition.column), start[:HEAD], len(start), start]
        if end:
            part += f" AND {head} < %s"
            values.append(end)
        parts.append(exists.format("$texts", part))
    if texts and not condition.prefix:
        encoded = [text.encode() for text in texts]
        part = f"{head} = ANY(%s) AND value = ANY(%s)"
        values += [_number(condition.column), [text[:HEAD] for text in encoded], encoded]
        parts.append(exists.format("$texts", part))
    return " OR ".join(parts) or "false", values
