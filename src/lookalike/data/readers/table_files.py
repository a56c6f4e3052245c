"""Tables and lists of images: CSV, TSV and Parquet with open-metric-learning's columns, `path label` lines."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import SPLITS, Columns, from_rows, lines
from lookalike.data.scan import kind_of
from lookalike.data.table import BOX, TYPES, as_array, check_width, read_parquet

# A table with one of these names speaks for the folder it lies in, if it has a column of paths.
IN_FOLDER = ("table.parquet", "table.csv", "df.csv", "metadata.csv")

_NAMES = {
    "path": ("path", "file_name", "filename", "image_path", "filepath", "file", "image"),
    "label": ("label", "labels", "class"),
    "coarse": ("coarse", "category"),
}
MAX_HEAD = 1_000_000  # letters of a table's first line
OWN = ("row_id", "raw_path", "shard", "size", "mtime_ns", "offset", "length", "content_id")
_TRUE = pa.array(["true", "1", "1.0", "yes"])


def read_file(path: Path) -> Columns:
    """Return the columns of a table file under our names."""
    arrow = read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    check_width(arrow.num_columns, path)
    columns: Columns = dict(zip((name.strip() for name in arrow.column_names), arrow.columns, strict=True))
    for ours, names in _NAMES.items():
        theirs = next((name for name in names if name in columns), None)
        if theirs is not None and theirs != ours:
            columns = {ours if name == theirs else name: values for name, values in columns.items()}
    if "path" not in columns:
        raise LookalikeError(f"`{path}` has no column `path`; its columns are {', '.join(columns)}.")
    if not arrow.num_rows:
        raise LookalikeError(f"`{path}` is a table without rows.")
    columns = {f"input_{name}" if name in OWN else name: values for name, values in columns.items()}
    paths = as_array("path", columns["path"])
    if paths.null_count:
        raise LookalikeError(f"`{path}` has {paths.null_count:,} rows without a path.")
    columns["path"] = paths.to_pylist()
    if "split" in columns:
        texts = as_array("split", columns["split"]).to_pylist()
        columns["split"] = [SPLITS.get(text.lower(), text) if text else None for text in texts]
    for name in ("is_query", "is_gallery"):
        if name in columns:
            values = columns[name]
            if not pa.types.is_boolean(values.type):
                columns[name] = pc.is_in(pc.utf8_lower(as_array(name, values, like="split")), value_set=_TRUE)
    for name in BOX:
        if name in columns:
            columns[name] = _whole(columns[name], name, path)
    return columns


def has_paths(path: Path) -> bool:
    """Return whether a file is a table of images, from its header."""
    try:
        if path.suffix == ".parquet":
            with path.open("rb") as file:
                names = pq.read_schema(file).names
        else:
            head, delimiter = _head(path)
            names = next(csv.reader([head], delimiter=delimiter), [])
    except (LookalikeError, pa.ArrowException, UnicodeError):
        return False
    return any(name.strip() in _NAMES["path"] for name in names)


def _head(path: Path) -> tuple[str, str]:
    """Return the first line of a text table and its delimiter."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline(MAX_HEAD)
    except UnicodeDecodeError:
        raise LookalikeError(f"`{path}` is not a table in UTF-8 text; save it as UTF-8 CSV or as Parquet.") from None
    return head, max(",;\t", key=head.count)


def _read_csv(path: Path) -> pa.Table:
    _, delimiter = _head(path)
    texts = [*_NAMES["path"], *_NAMES["label"], *_NAMES["coarse"], "split", "domain", "is_query", "is_gallery"]
    options = arrow_csv.ConvertOptions(
        column_types={**dict.fromkeys(texts, pa.string()), **dict.fromkeys(BOX, pa.float64())},
        null_values=[""],
        strings_can_be_null=True,
    )
    try:
        with path.open("rb") as file:
            parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            return arrow_csv.read_csv(file, parse_options=parse, convert_options=options)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise LookalikeError(f"`{path}` is not a table: {str(error).splitlines()[0].rstrip('.')}.") from None


def _whole(values: Any, name: str, path: Path) -> Any:
    try:
        numbers = values.cast(pa.float64())
        numbers = pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)
        return pc.round(numbers).cast(TYPES[name])
    except pa.ArrowException:
        raise LookalikeError(f"Column `{name}` of `{path}` should hold numbers of pixels.") from None


def read_list(path: Path) -> Columns:
    """Read `path label` lines, separated by spaces, a tab or a comma; the label may be missing."""
    columns = from_rows("path label", (_path_and_label(line.strip()) for line in lines(path)))
    if not columns["path"]:
        raise LookalikeError(f"`{path}` is an empty list.")
    if not any(kind_of(name) in ("image", "HEIC") for name in columns["path"][:100]):
        raise LookalikeError(f"`{path}` is not a list of images: its first line reads `{columns['path'][0][:60]}`.")
    if not any(columns["label"]):
        del columns["label"]
    return columns


def _path_and_label(line: str) -> tuple[str, str | None]:
    if kind_of(line) in ("image", "HEIC"):
        return line, None
    for sign in ("\t", ",", " "):
        name, separator, label = line.rpartition(sign)
        if separator and kind_of(name.rstrip()) in ("image", "HEIC"):
            return name.rstrip(), label.strip() or None
    return line, None
