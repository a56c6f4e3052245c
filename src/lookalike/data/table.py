"""`Table`: Arrow columns over rows of images, whatever data set they came from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lookalike.core import artifacts, files
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import atomic_file, check_format, hash_bytes, open_inside, open_regular, read_part, to_json
from lookalike.core.storage import RemotePath, location
from lookalike.data.parquet_images import ROW_GROUPS, read_columns

BOX = ("x_1", "y_1", "x_2", "y_2")

# The columns that other packages know; any further column is a facet.
TYPES: dict[str, pa.DataType] = {
    "row_id": pa.string(),
    "path": pa.string(),
    "raw_path": pa.binary(),  # the name as the disk has it, where `path` alone would not open the file
    "shard": pa.string(),  # the tar, Parquet or Arrow file that holds the image
    "shard_column": pa.string(),  # column and row of the Parquet file, where the image has no offset of its own
    "digest": pa.string(),  # identity of an image that is in no file
    "coarse": pa.string(),
    "split": pa.string(),
    "official_split": pa.string(),
    "domain": pa.string(),
    "content_id": pa.string(),
    "is_query": pa.bool_(),
    "is_gallery": pa.bool_(),
    **{name: pa.int32() for name in BOX},
    **{name: pa.int64() for name in ("size", "mtime_ns", "offset", "length", "shard_row", "item")},
}

MAX_COLUMNS = 1000
_STAMP = b"lookalike"


def natural_key(text: str) -> tuple[list[Any], str]:
    """Sort key that puts `class 2` before `class 10`."""
    parts: list[Any] = re.split(r"(\d+)", text)
    parts[::2] = map(str.casefold, parts[::2])
    parts[1::2] = [(len(digits), digits) for digits in (part.lstrip("0") for part in parts[1::2])]
    return parts, text


def as_array(name: str, values: Any, *, like: str = "") -> pa.Array | pa.ChunkedArray:
    """Return the values of a column as Arrow, in the type that its name (or `like`) calls for."""
    typed = like or name
    try:
        if not isinstance(values, (pa.Array, pa.ChunkedArray)):
            plain = values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values
            values = pa.array(plain, from_pandas=True)  # NaN among texts is no label
        dtype = TYPES.get(typed)
        if typed == "label":
            dtype = pa.list_(pa.string()) if pa.types.is_list(values.type) else pa.string()
        if dtype == pa.string() and pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)  # NaN is no label
        values = values if dtype is None or values.type == dtype else values.cast(dtype)
        return normalized(values) if typed in ("label", "coarse", "domain") else values
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise LookalikeError(f"The column `{name}` cannot be read: {reason}.") from error


def check_width(count: int, source: object) -> None:
    """Raise an error for a table with too many columns: each costs memory and time in every row."""
    if count > MAX_COLUMNS:
        raise LookalikeError(f"`{source}` has {count:,} columns; at most {MAX_COLUMNS:,} are read: leave some out.")


def normalized(values: Any) -> Any:
    """Texts (or lists of them) of an Arrow array in NFC: the two spellings of an accented letter are one class."""
    if not pa.types.is_list(values.type):
        return pc.utf8_normalize(values, form="NFC")
    rows = values.to_pylist()
    return pa.array([r and [text and unicodedata.normalize("NFC", text) for text in r] for r in rows], values.type)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Rows of images with columns, never modified in place.

    `take`, `where` and `with_column` return new tables over the same memory. `TYPES` lists the columns that other
    packages know; any further column is available as a facet.

    Args:
        name: Name of the data set; row ids begin with it.
        root: Folder that paths are relative to.
        arrow: The columns.
        notes: Further facts, such as the layout and what was skipped.
        confined: Whether images outside the root, also behind links, are refused when they are read.
        content: Returns the encoded image of an `item`, for images that are in no file.

    Example:
        >>> table = la.read_table("photos")
        >>> table
        Table('photos', 24 rows: row_id, path, size, mtime_ns, label)
        >>> len(table.where("label", "class-00"))
        6
    """

    name: str
    root: Path | None
    arrow: pa.Table
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    confined: bool = False
    content: Callable[[int], bytes] | None = None

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        *,
        name: str,
        root: str | Path | None = None,
        notes: Mapping[str, Any] | None = None,
        content: Callable[[int], bytes] | None = None,
    ) -> Table:
        """Create a table from columns by name.

        Args:
            columns: The columns; `path` is required, `row_id` is derived from it.
            name: Name of the data set.
            root: Folder that paths are relative to.
            notes: Further facts.
            content: Returns the encoded image of an `item`, for images that are in no file.
        """
        arrays = {key: as_array(key, values) for key, values in columns.items()}
        if "row_id" not in arrays:
            arrays = {"row_id": _row_ids(name, arrays), **arrays}
        arrow = pa.table(arrays).combine_chunks()
        return cls(name, None if root is None else location(root).absolute(), arrow, dict(notes or {}), content=content)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self):,} rows: {', '.join(self.names)})"

    @property
    def names(self) -> list[str]:
        return list(self.arrow.column_names)

    def has(self, name: str) -> bool:
        """Return whether there is such a column with at least one value."""
        return name in self.arrow.column_names and self.arrow[name].null_count < len(self)

    def column(self, name: str) -> np.ndarray:
        """Return a column as NumPy; missing texts are None, missing numbers NaN, missing flags False."""
        values = self.arrow[choose(name, self.names, "a column of the table")]
        if pa.types.is_boolean(values.type):
            values = values.fill_null(False)
        return values.to_numpy()

    def take(self, rows: np.ndarray | Sequence[int] | Sequence[bool]) -> Table:
        """Return some rows, by index or by mask."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool:
            if len(chosen) != len(self):
                raise ValueError(f"a mask of {len(chosen)} for {len(self)} rows")
            chosen = np.flatnonzero(chosen)
        return dataclasses.replace(self, arrow=self.arrow.take(pa.array(chosen, pa.int64())), notes=dict(self.notes))

    def where(self, column: str, value: Any) -> Table:
        """Return the rows whose column has this value."""
        return self.take(np.asarray(self.column(column) == value, bool))

    def with_column(self, name: str, values: Any) -> Table:
        """Return the same rows with a column added or replaced."""
        array = as_array(name, values)
        if len(array) != len(self):
            raise ValueError(f"{len(array)} values for {len(self)} rows")
        if name in self.arrow.column_names:
            arrow = self.arrow.set_column(self.arrow.column_names.index(name), name, array)
        else:
            arrow = self.arrow.append_column(name, array)
        return dataclasses.replace(self, arrow=arrow.combine_chunks(), notes=dict(self.notes))

    def without(self, *names: str) -> Table:
        """Return the same rows without some columns; `without(*BOX)` gives whole images."""
        arrow = self.arrow.select([name for name in self.names if name not in names])
        return dataclasses.replace(self, arrow=arrow, notes=dict(self.notes))

    def labels(self, column: str = "label") -> tuple[np.ndarray, list[str]]:
        """Return the code of each row (−1 for no label) and the names in natural order."""
        if not self.has(column):
            return np.full(len(self), -1, np.int64), []
        values = self._flat(column)
        if pa.types.is_list(values.type):
            raise LookalikeError(f"The images of `{self.name}` have several labels each; this needs one per image.")
        return _natural_codes(values.cast(pa.string()))

    def label_matrix(self, column: str = "label") -> tuple[np.ndarray, list[str]]:
        """Return which row has which labels as a boolean matrix, and the names; rows may have several labels."""
        if not self.has(column) or not pa.types.is_list(self.arrow[column].type):
            codes, names = self.labels(column)
            return codes[:, None] == np.arange(len(names)), names
        values = self._flat(column)
        codes, names = _natural_codes(pc.list_flatten(values))
        matrix = np.zeros((len(self), len(names)), bool)
        matrix[pc.list_parent_indices(values).to_numpy()[codes >= 0], codes[codes >= 0]] = True
        return matrix, names

    def row(self, i: int) -> dict[str, Any]:
        """Return all columns of one row."""
        return {name: self.arrow[name][i].as_py() for name in self.names}

    def file(self, i: int) -> Path | None:
        """Return the file of a row; None for one inside a shard or in memory."""
        inside = self._value("shard", i) or self._value("item", i) is not None
        return None if inside else (self.root or Path()) / self._relative(i)

    def open_bytes(self, i: int) -> bytes:
        """Return the encoded image of a row, from its file, from inside its shard, or from memory."""
        if (item := self._value("item", i)) is not None:
            if self.content is None:
                raise LookalikeError(f"The images of `{self.name}` were in memory: pass the same object once more.")
            return self.content(item)
        with self._open(i) as file:
            if (row := self._value("shard_row", i)) is not None:
                return ROW_GROUPS.value(file, self._value("shard_column", i), row)
            return read_part(file, offset=self._value("offset", i) or 0, length=self._value("length", i))

    def box(self, i: int) -> tuple[int, int, int, int] | None:
        """Return x1, y1, x2, y2 of the part of the image that the row is about; None for the whole image."""
        corners = tuple(self._value(name, i) for name in BOX)
        return None if None in corners else corners

    def fingerprint(self) -> str:
        """Return a hash of what the images are: row ids, sizes, times and boxes."""
        return self._fingerprint

    def save(self, path: str | Path) -> None:
        """Save the table as one Parquet file that `Table.load` and any other Parquet reader understands."""
        about = {"name": self.name, "root": None if self.root is None else str(self.root), "notes": self.notes}
        text = json.dumps(files.stamp("table", about), default=to_json)
        write_parquet(path, self.arrow.replace_schema_metadata({_STAMP: text.encode()}))

    @classmethod
    def load(cls, path: str | Path) -> Table:
        path = location(path)
        arrow = read_parquet(path)
        text = (arrow.schema.metadata or {}).get(_STAMP)
        try:
            about = check_format("table", json.loads(text) if text else None, path)
            root = None if about["root"] is None else location(about["root"])
            arrow, notes = _checked(arrow.replace_schema_metadata(None).combine_chunks()), {**about["notes"]}
            texts = [notes.get("layout", ""), *notes.get("warnings", ()), *notes.get("unreadable", ())]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("its notes are no texts")
            return cls(str(about["name"]), root, arrow, notes)
        except (LookupError, ValueError, TypeError, RecursionError, pa.ArrowException) as error:
            raise LookalikeError(f"The table `{path}` is damaged, or was not written by lookalike.") from error

    @cached_property
    def _fingerprint(self) -> str:
        parts: list[bytes] = []
        for name in filter(self.has, ("size", "mtime_ns", "offset", *BOX)):
            parts += [name.encode(), self._flat(name).cast(pa.int64()).fill_null(-1).to_numpy().tobytes()]
        if self.has("digest"):
            parts.append("".join(self._flat("digest").fill_null("").to_pylist()).encode())
        ids = self._flat("row_id")
        lengths = pc.binary_length(ids).to_numpy().tobytes()
        return hash_bytes(*parts, lengths, "".join(ids.to_pylist()))

    def _flat(self, name: str) -> pa.Array:
        return self.arrow[name].combine_chunks()

    def _value(self, name: str, i: int) -> Any:
        return self.arrow[name][i].as_py() if name in self.arrow.column_names else None

    def _relative(self, i: int) -> str:
        raw_path = self._value("raw_path", i)
        return str(self._value("shard", i) or self._value("path", i)) if raw_path is None else os.fsdecode(raw_path)

    def _open(self, i: int) -> BinaryIO:
        from lookalike.data.decoding import UnreadableImage

        path = (self.root or Path()) / self._relative(i)
        if isinstance(path, RemotePath):
            return cast(BinaryIO, path.open("rb", shared=self._value("shard", i) is not None))
        if self.root is None or not self.confined:
            return open_regular(path)
        try:
            return open_inside(self.root, self._relative(i))
        except LookalikeError as error:
            raise UnreadableImage("it leads out of the folder of images") from error


def _natural_codes(values: pa.Array) -> tuple[np.ndarray, list[str]]:
    """The code of each text (−1 for none) and the distinct texts in natural order."""
    encoded = values.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: natural_key(names[i]))
    rank = np.full(len(names) + 1, -1, np.int64)  # its last place answers for the code −1
    rank[order] = np.arange(len(names))
    return rank[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], [names[i] for i in order]


def _row_ids(name: str, arrays: Mapping[str, Any]) -> pa.Array:
    ids = pc.binary_join_element_wise(pa.scalar(name), arrays["path"], "/")
    if not {*BOX} <= arrays.keys():
        return ids
    corners = [arrays[corner].cast(pa.string()) for corner in BOX]
    crops = pc.binary_join_element_wise(ids, pc.binary_join_element_wise(*corners, ","), "#")
    return pc.coalesce(crops, ids)  # a row without a box is a whole image


def _checked(arrow: pa.Table) -> pa.Table:
    """A saved table as it was read, unless its columns are not those that `Table` writes."""
    if len(set(arrow.column_names)) < arrow.num_columns:
        raise ValueError("several columns have one name")
    for name in ("row_id", "path"):
        if arrow[name].null_count:
            raise ValueError(f"`{name}` is missing in some rows")
    for name in ("label", *TYPES):
        if name in arrow.column_names and arrow[name].type != as_array(name, arrow[name].slice(0, 0)).type:
            raise ValueError(f"`{name}` is of another type")
    return arrow


def read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some columns of it."""
    # An open file instead of its name: Arrow reads columns out of names such as `split=train/`,
    # and takes no names that are not UTF-8.
    try:
        with path.open("rb") as file:
            table = read_columns(file, path, columns, verify=True)
        table.validate(full=True)  # texts that are not UTF-8 would fail wherever they are used first
        return table
    except FileNotFoundError:
        raise LookalikeError(f"There is no table at `{path}`.") from None
    except (pa.ArrowException, UnicodeError, OSError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise LookalikeError(f"`{path}` is not a complete Parquet file: {reason}.") from None


def write_parquet(path: str | Path, arrow: pa.Table) -> None:
    """Write a Parquet file atomically, with checksums that `read_parquet` compares."""
    with atomic_file(path) as part, part.open("wb") as file:
        pq.write_table(arrow, file, compression="zstd", write_page_checksum=True)


def read_cached(path: Path) -> pa.Table | None:
    """Return an Arrow table of the artifact cache; None if it is missing or damaged."""
    content = artifacts.read(path)
    return None if content is None else pq.read_table(pa.BufferReader(content))


def write_cached(path: Path, table: pa.Table) -> None:
    """Write an Arrow table to the artifact cache."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    artifacts.write(path, sink.getvalue().to_pybytes())


def is_saved_table(path: Path) -> bool:
    """Return whether a Parquet file was written by `Table.save`."""
    try:
        with path.open("rb") as file:
            return _STAMP in (pq.read_schema(file).metadata or {})
    except (pa.ArrowException, UnicodeError, OSError):
        return False
