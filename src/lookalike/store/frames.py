"""The two growing files of an `ExactStore`, and what makes them safe to cut anywhere."""

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
    """Payloads as an Arrow table with the ids in front; a column that holds a list anywhere is a list everywhere."""
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
    """One table of many; a column that is text in one and a list in another becomes a list."""
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
    """`vectors-N.f32` and `rows-N.log`; `rows` is how many vectors whole frames speak of."""

    def __init__(self, place: Path, number: int, dim: int, *, write: bool, anew: bool = False) -> None:
        self.dim, self.rows = dim, 0
        self._paths = (place / f"vectors-{number}.f32", place / f"rows-{number}.log")
        self._kept: list[tuple[str, pa.Table]] = []
        self._log_end = 0
        self._files: tuple[io.FileIO, io.FileIO] | None = None
        self._map: Vectors | None = None
        if anew:
            self.remove()
        self._read()
        if write:
            with disk_errors(place):
                # Without buffers: what a full disk refused would wait in them, and be written later all the same.
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
                    break  # torn by a kill; it was never acknowledged
                table = pa.ipc.open_stream(body).read_all()
                kind = (table.schema.metadata or {}).get(b"kind", b"upsert").decode()
                if kind == "upsert":
                    if self.rows + len(table) > have:
                        raise LookalikeError(
                            f"The store `{vectors.parent}` is damaged: `{vectors.name}` is shorter than its log says. "
                            "Delete the index and make it again."
                        )
                    self.rows += len(table)
                self._kept.append((kind, table))
                self._log_end = file.tell()

    def replay(self) -> Iterator[tuple[str, pa.Table]]:
        """What the frames say, in order; once."""
        kept, self._kept = self._kept, []
        yield from kept

    def _cut(self) -> None:
        """Forget what no whole frame speaks of."""
        if self._files:
            for file, size in zip(self._files, (self.rows * self.dim * 4, self._log_end), strict=True):
                file.truncate(size)
                file.seek(size)

    def append(self, table: pa.Table, vectors: Vectors | None) -> None:
        """One frame, on disk when this returns: an upsert with its vectors, or a deletion without."""
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
        """All rows, memory-mapped, read only."""
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
        rest = rest[file.write(rest) :]  # the last of a full disk takes a part
    os.fsync(file.fileno())
