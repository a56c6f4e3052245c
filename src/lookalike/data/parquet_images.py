"""Images inside Parquet files: where their bytes lie in the file, and reading those that are compressed.

In a column without compression every image lies in the file as it is, so a row is found once, from the headers of the
pages, and then read by offset like a file inside a tar. What is compressed is read by row group, of which the last few
are kept.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes
from lookalike.core.storage import RemoteFile, RemotePath

KEPT_BYTES = 256_000_000
"""Memory for row groups that were read last; one is kept however large it is."""
MAX_UNPACKED, MAX_RATIO = 2_000_000_000, 30
"""Memory that columns may fill when they are read, and what each of their bytes in the file adds to it."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_PLAIN, _DICTIONARY = 0, (2, 8)  # encodings
TEXTS = ("string", "large_string", "string_view")  # types of Arrow
_DATA, _DICTIONARY_PAGE, _DATA_V2 = 0, 2, 3  # kinds of pages


def locate_images(path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Find the bytes of every image in a Parquet file.

    Args:
        path: The file.
        column: Dotted path of the column of bytes, as `image.bytes`.

    Returns:
        Offset and length by row: length −1 where there is no image, offset −1 where it must be read by row group.

    Raises:
        LookalikeError: The pages are damaged.
    """
    offsets, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    remote = isinstance(path, RemotePath)  # finding the pages would take a request for each
    try:
        with (
            path.open("rb") as file,
            contextlib.nullcontext() if remote else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            about = pq.ParquetFile(file)
            place = [about.schema.column(i).path for i in range(len(about.schema))].index(column)
            levels = about.schema.column(place)
            for number in range(about.metadata.num_row_groups):
                group = about.metadata.row_group(number)
                chunk = group.column(place)
                exact = chunk.compression == "UNCOMPRESSED" and levels.physical_type == "BYTE_ARRAY"
                if data is not None and exact and not levels.max_repetition_level:
                    where, size = _chunk(data, chunk, group.num_rows, levels.max_definition_level)
                else:
                    where, size = np.full(group.num_rows, -1), np.zeros(group.num_rows, np.int64)
                    known = chunk.statistics if chunk.is_stats_set else None
                    nulls = known.null_count if known is not None and known.has_null_count else None
                    if nulls == group.num_rows:
                        size[:] = -1
                    elif levels.max_definition_level and nulls != 0:
                        size[~read_group(file, column, number, path).is_valid().to_numpy()] = -1
                offsets.append(where)
                lengths.append(size)
    except (struct.error, LookupError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise LookalikeError(f"`{path}` is not a complete Parquet file: its pages are damaged ({error}).") from None
    return np.concatenate(offsets), np.concatenate(lengths)


def _chunk(data: mmap.mmap, chunk: Any, rows: int, max_level: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of one column in one row group."""
    position = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        position = min(position, chunk.dictionary_page_offset)
    end = position + chunk.total_compressed_size
    if not 0 < position <= end <= len(data):
        raise ValueError("a column lies outside of the file")
    dictionary: tuple[np.ndarray, np.ndarray] | None = None
    where, size = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    row = 0
    while row < rows:
        header, start = _thrift(data, position, end)
        position = start + header[3]
        if header[3] < 0 or position > end:
            raise ValueError("a page ends outside of its column")
        if header[1] == _DICTIONARY_PAGE:
            dictionary = _plain(data, start, position, header[7][1])
            continue
        if header[1] == _DATA:
            count, encoding, level_bytes = header[5][1], header[5][2], 0
            if max_level:
                (level_bytes,) = struct.unpack_from("<I", data, start)
                start += 4
        elif header[1] == _DATA_V2:
            count, encoding, level_bytes = header[8][1], header[8][4], header[8][5]
        else:
            continue  # an index page
        if count <= 0 or count > rows - row or start + level_bytes > position:
            raise ValueError("a page holds more rows than its row group")
        present = np.ones(count, bool)
        if max_level and level_bytes:
            bits = max_level.bit_length()
            present = _hybrid(data[start : start + level_bytes], bits, count) == max_level
        start += level_bytes
        known = int(present.sum())
        if encoding == _PLAIN:
            positions = _plain(data, start, position, known)
        elif encoding in _DICTIONARY and dictionary is not None:
            codes = _hybrid(data[start + 1 : position], data[start], known)
            positions = dictionary[0][codes], dictionary[1][codes]
        else:  # another encoding: by row group
            positions = np.full(known, -1), np.zeros(known, np.int64)
        where[row : row + count][present], size[row : row + count][present] = positions
        row += count
    return where, size


def _plain(data: mmap.mmap, position: int, end: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of values that follow each other, each behind its length."""
    where, size = np.empty(count, np.int64), np.empty(count, np.int64)
    for number in range(count):
        (length,) = struct.unpack_from("<I", data, position)
        where[number], size[number] = position + 4, length
        position += 4 + length
        if position > end:
            raise ValueError("an image ends outside of its page")
    return where, size


def _hybrid(data: bytes, bits: int, count: int) -> np.ndarray:
    """Decode Parquet's mixture of runs and packed numbers of so many bits."""
    out, position, filled = np.zeros(count, np.int64), 0, 0
    while filled < count and bits:
        head, position = _varint(data, position)
        if head & 1:
            packed = np.frombuffer(data, np.uint8, (head >> 1) * bits, position)
            position += len(packed)
            values = np.unpackbits(packed, bitorder="little").reshape(-1, bits) @ (1 << np.arange(bits))
        else:
            wide = (bits + 7) // 8
            value = int.from_bytes(data[position : position + wide], "little")
            position += wide
            values = np.full(min(head >> 1, count - filled), value)
        taken = min(len(values), count - filled)
        if not taken:
            raise ValueError("an empty run")
        out[filled : filled + taken] = values[:taken]
        filled += taken
    return out


def _varint(data: Any, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number is too long")


def _thrift(data: mmap.mmap, position: int, end: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol: numbers and structs by field, the rest is passed over."""
    out: dict[int, Any] = {}
    field = 0
    while position < end and depth < 5:
        head, kind, position = data[position] >> 4, data[position] & 15, position + 1
        if not kind:
            return out, position
        if head:
            field += head
        else:
            number, position = _varint(data, position)
            field = (number >> 1) ^ -(number & 1)
        if kind == 12:
            out[field], position = _thrift(data, position, end, depth + 1)
        elif kind in (4, 5, 6, 8):
            number, position = _varint(data, position)
            out[field] = (number >> 1) ^ -(number & 1)
            position += number if kind == 8 else 0  # texts
        else:
            position += {1: 0, 2: 0, 3: 1, 7: 8}[kind]  # true, false, a byte, a double
    raise ValueError("a header does not end")


class RowGroups:
    """Reads single values of compressed columns, keeping the row groups that were read last.

    Of a file in a bucket that is read in order, the next group is read ahead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[tuple, tuple[pq.FileMetaData, np.ndarray]] = {}  # with the first row of each group
        self._groups: OrderedDict[tuple, Future[pa.ChunkedArray]] = OrderedDict()
        self._used: dict[tuple, int] = {}  # the group that was used last, by file
        self._readers = ThreadPoolExecutor(2, "lookalike-row-groups")

    def value(self, file: BinaryIO, column: str, row: int) -> bytes:
        """Return the value of a row; an `OSError` if it cannot be read."""
        raw = getattr(file, "raw", None)
        remote = raw if isinstance(raw, RemoteFile) else None
        if remote is not None:
            key: tuple[object, ...] = (remote.name, remote.size, column)
        else:
            status = os.fstat(file.fileno())
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, column)
        try:
            with self._lock:  # the next rows of a group are not read twice
                if key not in self._files:
                    about = pq.ParquetFile(file).metadata
                    sizes = [about.row_group(n).num_rows for n in range(about.num_row_groups)]
                    self._files[key] = about, np.concatenate([[0], np.cumsum(sizes)])
                about, starts = self._files[key]
                group = int(np.searchsorted(starts, row, side="right")) - 1
                in_order = self._used.get(key, -1) == group - 1 and group + 2 < len(starts)
                if remote is not None and in_order and about.row_group(group + 1).total_byte_size < KEPT_BYTES // 2:
                    self._read(key, group + 1, file, remote)
                self._used[key] = group
                reading = self._read(key, group, file, remote)
            values = reading.result()
            value = values[row - int(starts[group])]
            return value.as_buffer().to_pybytes() if value.is_valid else b""
        except TooLarge as error:
            raise OSError("it lies among rows that unpack to far more than they fill in the Parquet file") from error
        except (pa.ArrowException, LookupError, AttributeError) as error:
            raise OSError(f"the Parquet file is damaged ({str(error).partition(chr(10))[0]})") from None

    def _read(self, key: tuple, group: int, file: BinaryIO, remote: RemoteFile | None) -> Future[pa.ChunkedArray]:
        """Return the group, which is being read or was; only files in buckets are read by threads of their own."""
        place, (about, _) = (*key, group), self._files[key]
        reading = self._groups.get(place)
        if reading is None or (reading.done() and reading.exception() is not None):
            if remote is not None:
                source = cast(BinaryIO, RemoteFile(remote.file, remote.name))  # with a place of its own
                reading = self._readers.submit(read_group, source, key[-1], group, "", about)
            else:
                reading = Future()
                reading.set_result(read_group(file, key[-1], group, "", about))
            self._groups[place] = reading
        self._groups.move_to_end(place)
        while len(self._groups) > 1 and sum(map(_bytes_of, self._groups.values())) > KEPT_BYTES:
            self._groups.popitem(last=False)
        return reading


def _bytes_of(reading: Future[pa.ChunkedArray]) -> int:
    return int(reading.result().nbytes) if reading.done() and reading.exception() is None else 0


ROW_GROUPS = RowGroups()


def read_group(
    file: BinaryIO, column: str, group: int, where: object, about: pq.FileMetaData | None = None
) -> pa.ChunkedArray:
    """Read one column of a row group; `column` is a dotted path, `where` names the file in messages."""
    values = read_columns(file, where, [column], group, footer=about).column(0)
    while pa.types.is_struct(values.type):  # of which this column alone was read
        values = pa.chunked_array([chunk.field(0) for chunk in values.chunks], values.type.field(0).type)
    return values


class TooLarge(LookalikeError):
    """A Parquet file whose columns unpack to far more than they fill in the file."""


def read_columns(
    file: BinaryIO,
    where: object,
    columns: list[str] | None = None,
    group: int | None = None,
    *,
    verify: bool = False,
    footer: pq.FileMetaData | None = None,
) -> pa.Table:
    """Read columns of a Parquet file in bounded memory.

    The footer gives the sizes beforehand, but for texts in a dictionary: one of them may stand for a million rows.
    Where those could fill more than the limit, they are read as codes and counted before they are written out.

    Args:
        file: The file.
        where: What to call it in messages.
        columns: Dotted paths; all by default.
        group: Read this row group only.
        verify: Whether to compare the checksums of the pages.
        footer: What the end of the file says, if it was read before.
    """
    about = pq.ParquetFile(file, metadata=footer, page_checksum_verification=verify, pre_buffer=columns is None)
    groups = list(range(about.num_row_groups)) if group is None else [group]
    leaves = {n: about.schema.column(n) for n in range(len(about.schema))}
    if columns is not None:
        leaves = {n: x for n, x in leaves.items() if any(f"{x.path}.".startswith(f"{name}.") for name in columns)}
    packed = least = most = largest = 0
    for number in groups:
        row_group = about.metadata.row_group(number)
        for place, leaf in leaves.items():
            chunk = row_group.column(place)
            packed += chunk.total_compressed_size
            fixed = chunk.num_values * (_WIDTHS.get(leaf.physical_type) or leaf.length)
            size = chunk.total_uncompressed_size if leaf.physical_type == "BYTE_ARRAY" else 0
            repeats = chunk.num_values if any("DICTIONARY" in encoding for encoding in chunk.encodings) else 1
            least, most, largest = least + fixed + size, most + fixed + size * repeats, max(largest, size)
    packed = min(packed, file.seek(0, os.SEEK_END))
    limit = MAX_UNPACKED + MAX_RATIO * packed
    error = TooLarge(
        f"The columns of `{where}` fill {format_bytes(packed)} and unpack to more than {format_bytes(limit)}: leave "
        "out those that repeat long texts."
    )
    if least > limit:
        raise error
    if most <= limit:
        return about.read_row_groups(groups, columns, use_threads=group is None)
    schema = about.read_row_groups([], columns).schema
    views = {field.name for field in about.schema_arrow if "view" in str(field.type)}  # are never read as codes
    codes = [x.path for x in leaves.values() if x.physical_type == "BYTE_ARRAY" and x.path.split(".")[0] not in views]
    about = pq.ParquetFile(file, metadata=footer, read_dictionary=codes, page_checksum_verification=verify)
    parts, unpacked = [], 0
    rows = max(1, min(65_536, KEPT_BYTES * about.metadata.num_rows // largest))
    for number in groups:  # codes inside of structs and lists are not read across row groups
        for batch in about.iter_batches(rows, [number], columns):
            unpacked += sum(map(_unpacked_bytes, batch.columns))
            if unpacked > limit:
                raise error
            parts.append(batch.cast(schema))
    return pa.Table.from_batches(parts, schema)


def _unpacked_bytes(values: pa.Array) -> int:
    """Size of an array whose texts are codes, once they are written out."""
    if pa.types.is_dictionary(values.type):
        return values.indices.nbytes + int(
            pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0
        )
    if not pa.types.is_nested(values.type):
        return int(values.nbytes)
    if pa.types.is_map(values.type):
        return _unpacked_bytes(values.keys) + _unpacked_bytes(values.items)
    return sum(map(_unpacked_bytes, values.flatten() if pa.types.is_struct(values.type) else [values.flatten()]))


def leaf(schema: pa.Schema, column: str) -> str:
    """Return the dotted path of the bytes of an image column."""
    kind = schema.field(column).type
    while pa.types.is_struct(kind):
        column, kind = f"{column}.bytes", kind.field("bytes").type
    return column


def is_list_of_labels(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are lists of texts or numbers, of any kind of list."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    return str(kind.value_type) in TEXTS or pa.types.is_integer(kind.value_type)


def other_columns(schema: pa.Schema, column: str) -> Iterator[str]:
    """Yield the columns to read beside the images: their own names, and columns of single values or texts."""
    for field in schema:
        if field.name == column:
            if pa.types.is_struct(field.type) and field.type.get_field_index("path") >= 0:
                yield f"{column}.path"
        elif is_list_of_labels(field.type) or not (pa.types.is_nested(field.type) or "binary" in str(field.type)):
            yield field.name
