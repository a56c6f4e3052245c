"""Data sets that are Python objects: `datasets`, frames, lists of paths, and a torch `Dataset` of (image, label).

Images stay where they are, in memory or in the files that an object maps. Nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_bytes
from lookalike.core.progress import Progress
from lookalike.data.readers.base import Columns, locate
from lookalike.data.readers.columns import ColumnMap, holds_bytes, image_column, named, with_class_labels
from lookalike.data.readers.table_files import left_out, our_columns, row_paths
from lookalike.data.table import as_array, check_width

_ONE_AT_A_TIME = threading.Lock()  # nothing is known of how safe such an object is among threads
Read = tuple[Path, Columns, dict[str, Any], Callable[[int], bytes] | None]


def _stored_image(values: pa.ChunkedArray, item: int) -> bytes:
    """An encoded image of a column of bytes in memory."""
    value = values[item]
    return value.as_buffer().to_pybytes() if value.is_valid else b""


def _drawn_image(dataset: Any, item: int) -> bytes:
    """An image of an object with `dataset[i]` of (image, label), encoded when it is read."""
    with _ONE_AT_A_TIME:
        return encode_image(dataset[item][0])


def encode_image(image: Any) -> bytes:
    """Return an image as bytes: encoded ones as they are, files as read, a PIL image, array or tensor as PNG.

    Arrays are (H, W) or (H, W, 3), tensors also (3, H, W); floats are from 0 to 1.
    """
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if isinstance(image, (str, os.PathLike)):
        return read_bytes(image)
    if not isinstance(image, Image.Image):
        pixels = np.asarray(image)
        if hasattr(image, "detach") and pixels.ndim == 3 and len(pixels) in (1, 3, 4):
            pixels = pixels.transpose(1, 2, 0)
        if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
            raise LookalikeError(f"A {type(image).__name__} of shape {pixels.shape} is no image of height and width.")
        if pixels.dtype.kind == "f":
            if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 1:
                raise LookalikeError("Images of the data set are normalized already: leave out its `Normalize`.")
            pixels = np.round(pixels * 255)
        image = Image.fromarray(pixels.astype(np.uint8).squeeze())
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def read_object(source: Any, columns: ColumnMap, labels: Any = None, *, progress: bool = False) -> Read:
    """Return root, columns, notes and in-memory images of an object; see `read_table` for what it may be."""
    kind = f"{type(source).__module__}.{type(source).__name__}"
    source = source if labels is None else (source, labels)
    if kind.startswith("datasets."):
        return _read_datasets(source, columns)
    source = source.to_list() if hasattr(source, "to_list") else source  # a series
    if hasattr(source, "__arrow_c_stream__") or isinstance(source, Mapping):
        return _read_arrow(_to_arrow(source), columns, kind.partition(".")[0])
    if isinstance(source, (list, tuple, np.ndarray)):
        return _read_arrow(_listed(source), columns, "list")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _read_torch(source, progress)
    raise LookalikeError(
        f"A {kind} is no data set: give a folder, a table, a `datasets.Dataset`, a frame, a list of paths, or an "
        "object with `len()` and `[i]` of (image, label)."
    )


def _to_arrow(source: Any) -> pa.Table:
    try:
        if not isinstance(source, Mapping):
            with contextlib.suppress(pa.ArrowException):  # a column of pandas may hold objects, as paths
                arrow = pa.table(source.to_arrow() if hasattr(source, "to_arrow") else source)
                return arrow.select([name for name in arrow.column_names if not name.startswith("__index_level_")])
        columns = {str(name): list(map(_plain, values)) for name, values in source.items()}
        return pa.table({name: as_array(name, values, like="value") for name, values in columns.items()})
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise LookalikeError(
            f"The frame cannot be read ({str(error).partition(chr(10))[0]}): its images are paths, encoded bytes, PIL "
            "images or arrays."
        ) from None


def _plain(value: Any) -> Any:
    """A value as Arrow takes it: paths as texts, images encoded, numbers of NumPy and torch as plain ones."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return encode_image(value) if _is_image(value) else getattr(value, "item", lambda: value)()


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or getattr(value, "ndim", 0) in (2, 3)


def _listed(source: Any) -> pa.Table:
    """A list of paths, a list of (path, label), or a pair of two lists, as a table."""
    rows = list(source)

    def is_row(value: Any) -> bool:
        return isinstance(value, (str, os.PathLike, bytes)) or _is_image(value)

    if not rows:
        raise LookalikeError("The list of images is empty.")
    if isinstance(source, tuple) and len(rows) == 2 and not is_row(rows[0]):
        if len(rows[0]) != len(rows[1]):
            raise LookalikeError(f"There are {len(rows[0]):,} paths and {len(rows[1]):,} labels: give one for each.")
        return _to_arrow({"path": rows[0], "label": rows[1]})
    if all(map(is_row, rows)):
        return _to_arrow({"path": rows})
    if all(isinstance(row, (tuple, list)) and len(row) == 2 for row in rows):
        return _to_arrow(dict(zip(("path", "label"), zip(*rows, strict=True), strict=True)))
    raise LookalikeError("A list of images holds paths, bytes or PIL images, or pairs of one of these and a label.")


def _read_arrow(arrow: pa.Table, columns: ColumnMap, where: str, marks: Sequence[str] | None = None) -> Read:
    """Read columns in memory; `marks` are the identities of the rows, by default hashes of the images."""
    check_width(arrow.num_columns, where)
    image = image_column(arrow.schema, columns, where)
    values = None if image is None else arrow[image]
    names: Sequence[str | None] = [None] * len(arrow)
    if values is not None and pa.types.is_struct(values.type) and values.type.get_field_index("bytes") >= 0:
        if values.type.get_field_index("path") >= 0:
            names = as_array("path", pc.struct_field(values, "path")).to_pylist()
        values = pc.struct_field(values, "bytes")
        if values.null_count == len(values):
            values = pa.chunked_array([pa.array(names, pa.string())])
    plain = [f.name for f in arrow.schema if not (pa.types.is_struct(f.type) or holds_bytes(f.type) or f.name == image)]
    rest = named(arrow.select(plain))
    if values is None or not holds_bytes(values.type):
        if values is not None:  # `append_column` would fail beside no other column
            rest = pa.table([*rest.columns, values], [*rest.column_names, image])
        return *locate(Path.cwd(), our_columns(rest, columns, where), where), None
    rest = rest.rename_columns([f"input_{n}" if n in ("path", "item", "digest") else n for n in rest.column_names])
    present = np.flatnonzero(values.is_valid().to_numpy())
    if marks is None:
        marks = [hash_bytes(value.as_buffer()) if value.is_valid else "" for value in values]
    own = {"path": row_paths(where, names), "item": np.arange(len(arrow)), "digest": pa.array(marks, pa.string())}
    out = pa.table({**own, **dict(zip(rest.column_names, rest.columns, strict=True))}).take(present)
    lost = len(arrow) - len(out)
    notes = {"warnings": [left_out(lost, where)]} if lost else {}
    return Path.cwd(), our_columns(out, columns, where, located=True), notes, partial(_stored_image, values)


def _read_datasets(source: Any, columns: ColumnMap) -> Read:
    """A `Dataset` or `DatasetDict`: its columns are mapped from files already, and are left there."""
    parts = {str(split): part for split, part in source.items()} if isinstance(source, Mapping) else {"": source}
    if not parts:
        raise LookalikeError("The `DatasetDict` holds no data sets.")
    if any("Iterable" in type(part).__name__ for part in parts.values()):
        raise LookalikeError("A streamed data set cannot be read row by row: load it without `streaming=True`.")
    tables, orders = [], []
    marks: list[str] = []
    for split, part in parts.items():
        table = part.data.table
        if split and "split" not in table.column_names and columns.split in (None, "split"):
            table = table.append_column("split", pa.array([split] * len(table), pa.string()))
        order = np.arange(len(table)) if part._indices is None else part._indices.column(0).to_numpy()
        orders.append(order.astype(np.int64) + len(marks))
        marks += [f"{part._fingerprint}:{i}" for i in range(len(table))]
        tables.append(table)
    whole = pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(tables[0].schema.metadata)
    root, fields, notes, images = _read_arrow(whole, with_class_labels(columns, whole), "dataset", marks)
    rows, order = pa.table(fields), np.concatenate(orders)
    if images is not None:  # rows without an image were left out
        place = np.full(len(marks), -1)
        place[rows["item"].to_numpy()] = np.arange(len(rows))
        order = place[order]
        lost = int((order < 0).sum())
        notes, order = {"warnings": [left_out(lost, "dataset")]} if lost else {}, order[order >= 0]
    ordered = rows.take(pa.array(order))
    return root, dict(zip(ordered.column_names, ordered.columns, strict=True)), notes, images


def _read_torch(source: Any, progress: bool) -> Read:
    """A torch `Dataset`: the files it lists, or the images it gives, read once for their labels."""
    named = source if getattr(source, "classes", None) else getattr(source, "dataset", None)  # of a `Subset`
    classes, where = [str(name) for name in getattr(named, "classes", None) or ()], type(source).__name__
    labels: list[str | None] = []
    marks: list[str] = []

    def label(value: Any) -> str | None:
        if getattr(value, "ndim", 0):
            raise LookalikeError(
                f"A label of the data set has the shape {tuple(value.shape)}: it is a name or a number."
            )
        value = _plain(value)
        if value is None:
            return None
        return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)

    if not len(source):
        raise LookalikeError("The data set is empty.")
    listed = getattr(source, "samples", None)
    if listed and len(listed) == len(source) and isinstance(listed[0][0], (str, os.PathLike)):
        return _read_arrow(_listed([(path, label(value)) for path, value in listed]), ColumnMap(), where)
    with Progress("Reading the data set", len(source), shown=progress) as bar:
        for item in range(len(source)):
            bar.advance()
            try:
                row = source[item]
            except OSError:  # an image that Pillow cannot read: its row stays, and says so when it is read
                labels.append(None)
                marks.append(f"unreadable {item}")
                continue
            if not isinstance(row, (tuple, list)) or len(row) < 2:
                raise LookalikeError(f"Item {item} of the data set is a {type(row).__name__}, not (image, label).")
            labels.append(label(row[1]))
            marks.append(hash_bytes(encode_image(row[0])))
    places = {"path": row_paths(where, [None] * len(labels)), "item": np.arange(len(labels)), "digest": marks}
    return Path.cwd(), {**places, "label": labels}, {}, partial(_drawn_image, source)
