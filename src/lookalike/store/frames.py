"""The two append-only files of an ``ExactStore``, which survive a kill at any byte."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors
from lookalike.store.protocol import Payload, Vectors

HEAD = struct.Struct("<II")  # length and CRC-32 of the frame that follows


def columns(ids: Sequence[str], payloads: Sequence[Payload]) -> pa.Table:
    """Return payloads as an Arrow table with the ids in ``_id``; a column with a list anywhere is a list everywhere."""
    out = {"_id": pa.array(ids, pa.string())}
    for name in dict.fromkeys(name for line in payloads for name in line):
        values = [line.get(name) for line in payloads]
        if any(isinstance(v, list) for v in values):
            values = [v if isinstance(v, list) or v is None else [str(v)] for v in values]
            out[name] = pa.array(values, pa.list_(pa.string()))
        else:
            out[name] = pa.array(values)
    return pa.table(out)


def unify(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; a column that is text in one and a list in another becomes a list."""
    lists = {f.name for table in tables for f in table.schema if pa.types.is_list(f.type)}
    parts = []
    for table in tables:
        for place, f in enumerate(table.schema):
            if f.name in lists and not pa.types.is_list(f.type):
                values = [None if v is None else [str(v)] for v in table[f.name].to_pylist()]
                table = table.set_column(place, f.name, pa.array(values, pa.list_(pa.string())))
        parts.append(table)
    return pa.concat_tables(parts, promote_options="permissive").combine_chunks()


class Frames:
    """The files ``vectors-N.f32`` and ``rows-N.log``.

    Args:
        place: Folder of the store.
        number: N.
        dim: Dimension of the vectors.
        write: Whether to open them for writing.
        anew: Whether to delete existing files first.
    """

    def __init__(self, place: Path, number: int, dim: int, *, write: bool, anew: bool = False) -> None:
        self.dim, self.rows = dim, 0
        self._paths = (place / f"vectors-{number}.f32", place / f"rows-{number}.log")
        self._unread: list[tuple[str, pa.Table]] = []
        self._log_end = 0
        self._files: tuple[io.FileIO, io.FileIO] | None = None
        self._map: Vectors | None = None
        if anew:
            self.remove()
        self._read()
        if write:
            with disk_errors(place):
                # Unbuffered: data that a full disk refused would stay in the buffer and be written later.
                self._files = (self._paths[0].open("ab+", buffering=0), self._paths[1].open("ab+", buffering=0))
                for path in self._paths:
                    path.chmod(0o600)
                self._cut()

    def _read(self) -> None:
        vectors, log = self._paths
        if not log.exists():
            return
        have = vectors.stat().st_size // (4 * self.dim) if vectors.exists() else 0
        with log.open("rb") as file:
            while len(head := file.read(HEAD.size)) == HEAD.size:
                length, check = HEAD.unpack(head)
                body = file.read(length)
                if len(body) < length or zlib.crc32(body) != check:
                    break  # torn by a kill, so never acknowledged
                table = pa.ipc.open_stream(body).read_all()
                kind = (table.schema.metadata or {}).get(b"kind", b"upsert").decode()
                if kind == "upsert":
                    if self.rows + len(table) > have:
                        raise LookalikeError(
                            f"The store `{vectors.parent}` is damaged: `{vectors.name}` is shorter than its log says. "
                            "Delete the index and make it again."
                        )
                    self.rows += len(table)
                self._unread.append((kind, table))
                self._log_end = file.tell()

    def replay(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the frames in order, once: ``"upsert"`` or ``"delete"``, and the table."""
        frames, self._unread = self._unread, []
        yield from frames

    def _cut(self) -> None:
        """Cut off what is not in a complete frame."""
        if self._files:
            for file, size in zip(self._files, (self.rows * self.dim * 4, self._log_end), strict=True):
                file.truncate(size)
                file.seek(size)

    def append(self, table: pa.Table, vectors: Vectors | None) -> None:
        """Append a frame, on disk when this returns: an upsert with vectors, or a deletion without."""
        if self._files is None:
            raise LookalikeError(f"The store `{self._paths[0].parent}` was opened for reading only.")
        kind = "delete" if vectors is None else "upsert"
        table = table.replace_schema_metadata({"kind": kind})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        data, log = self._files
        try:
            with disk_errors(self._paths[0].parent):
                if vectors is not None:
                    _write(data, np.ascontiguousarray(vectors, dtype="<f4").tobytes())
                _write(log, HEAD.pack(len(body), zlib.crc32(body)) + body)
        except BaseException:
            self._cut()
            raise
        self.rows += 0 if vectors is None else len(vectors)
        self._log_end += HEAD.size + len(body)
        self._map = None if vectors is not None else self._map

    def vectors(self) -> Vectors:
        """Return all vectors, memory-mapped and read-only."""
        if self._map is None:
            if not self.rows:
                return np.empty((0, self.dim), dtype=np.float32)
            self._map = np.memmap(self._paths[0], dtype="<f4", mode="r", shape=(self.rows, self.dim))
        return self._map

    def close(self) -> None:
        for file in self._files or ():
            file.close()
        self._files = self._map = None

    def remove(self) -> None:
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


def _write(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]  # a disk that is nearly full writes a part
    os.fsync(file.fileno())
