"""Tables and lists of images: CSV, TSV, JSON lines and Parquet (with paths or images), `path label` lines."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import track
from lookalike.data.parquet_images import leaf, locate_images, other_columns
from lookalike.data.readers.base import SPLITS, Columns, files_of_shards, from_rows, lines, open_text, split_in_name
from lookalike.data.readers.columns import (
    NAMES,
    OWN,
    ColumnMap,
    guess,
    holds_bytes,
    image_column,
    listed,
    named,
    plain,
    require,
    with_class_labels,
)
from lookalike.data.scan import changed_ns, kind_of, readable_name
from lookalike.data.table import BOX, TYPES, as_array, check_width, is_saved_table, read_parquet

# A table with one of these names speaks for the folder it lies in, if it has a column of paths.
IN_FOLDER = ("table.parquet", "table.csv", "df.csv", "metadata.csv", "metadata.jsonl", "metadata.parquet")

MAX_HEAD = 1_000_000  # letters of a table's first line
_PARQUET = (".parquet", ".pq")
_BY_NAME = ColumnMap()
_TRUE = pa.array(["true", "1", "1.0", "yes"])


def read_file(path: Path, columns: ColumnMap = _BY_NAME) -> tuple[Path, Columns, dict[str, Any]]:
    """Return the root, the columns of a table file under our names, and notes."""
    if path.suffix.lower() in _PARQUET:
        return read_parquet_files([path], path.parent, columns)
    arrow = _read_jsonl(path) if path.suffix.lower() == ".jsonl" else _read_csv(path, columns)
    return path.parent, our_columns(arrow, columns, str(path)), {"layout": "table"}


def read_parquet_files(
    files: Sequence[Path], root: Path, columns: ColumnMap = _BY_NAME, *, progress: bool = False
) -> tuple[Path, Columns, dict[str, Any]]:
    """Return the root, the columns and notes of Parquet files that hold images or paths of images."""
    parts: list[pa.Table] = []
    notes: dict[str, Any] = {"layout": "table"}
    missing = 0
    for file in track(files, "Reading tables", shown=progress and len(files) > 1):
        schema = read_parquet_schema(file)
        check_width(len(schema), file)
        image = image_column(schema, columns, str(file))
        if image is None or not holds_bytes(schema.field(image).type):
            part = read_parquet(file)
        else:
            part = read_parquet(file, list(other_columns(schema, image)))
            part, without = _with_places(part, file, root, image, leaf(schema, image))
            missing += without
            if "shard" not in part.column_names:
                columns = dataclasses.replace(columns, image=image)
        part = part.replace_schema_metadata(schema.metadata)
        columns = with_class_labels(columns, part)
        parts.append(named(part))
    try:
        arrow = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise LookalikeError(
            f"The Parquet files under `{root}` have columns of different types ({str(error).splitlines()[0]}): "
            "name one of them, or a folder of its own."
        ) from None
    if missing:
        notes["warnings"] = [left_out(missing, files[0] if len(files) == 1 else root)]
    inside = "shard" in arrow.column_names
    return root, our_columns(arrow, columns, str(files[0]), located=inside), notes


def parquet_files(root: Path) -> list[Path]:
    """Return the Parquet files of a folder and its subfolders if they hold images, and no images lie beside them."""
    files = [path for path in files_of_shards(root, ".parquet") if has_paths(path) and not is_saved_table(path)]
    return files if files and any(holds_bytes(field.type) for field in read_parquet_schema(files[0])) else []


def split_metadata(root: Path) -> list[Path]:
    """Return the files `train/metadata.csv` and the like of a folder whose splits have a table each."""
    folders = [root / name for name in SPLITS if (root / name).is_dir()]
    candidates = (next((folder / name for name in IN_FOLDER if (folder / name).is_file()), None) for folder in folders)
    return [file for file in candidates if file is not None and has_paths(file)]


def read_split_metadata(root: Path, files: Sequence[Path], columns: ColumnMap) -> Columns:
    """Return the columns of tables that lie in the folder of their split each."""
    parts = []
    for file in files:
        base, fields, _ = read_file(file, columns)
        fields["path"] = [(base.relative_to(root) / path).as_posix() for path in fields["path"]]
        fields.setdefault("split", [SPLITS[base.name.lower()]] * len(fields["path"]))
        parts.append(pa.table({name: as_array(name, values) for name, values in fields.items()}))
    whole = pa.concat_tables(parts, promote_options="permissive")
    return {**dict(zip(whole.column_names, whole.columns, strict=True)), "path": whole["path"].to_pylist()}


def read_parquet_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file."""
    try:
        with path.open("rb") as file:
            schema = pq.read_schema(file)
    except (pa.ArrowException, UnicodeError, OSError) as error:
        raise LookalikeError(f"`{path}` is not a complete Parquet file: {str(error).splitlines()[0]}.") from None
    if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
        raise LookalikeError(f"`{path}` has several columns `{twice[0]}`.")
    return schema


def _with_places(part: pa.Table, file: Path, root: Path, image: str, column: str) -> tuple[pa.Table, int]:
    """Replace the image column by where its bytes lie; also returns the number of rows without an image.

    A column with paths alone, as `datasets` writes it without embedding the files, becomes a column of paths.
    """
    offsets, lengths = locate_images(file, column)
    rows = np.arange(len(offsets))
    names: list[str | None] = [None] * len(rows)
    if image in part.column_names:
        paths = as_array("path", pc.struct_field(part[image], "path"))
        names = paths.to_pylist()
        part = part.drop_columns([image])
        if any(names) and not (lengths >= 0).any():
            return part.append_column(image, paths), 0
    shard, status = file.relative_to(root).as_posix(), file.stat()
    grouped = (offsets < 0) & (lengths >= 0)
    own = {f"input_{name}" if name in OWN or name == "path" else name: plain(part[name]) for name in part.column_names}
    places: dict[str, Any] = {
        "path": row_paths(readable_name(shard), names),
        "shard": pa.array([readable_name(shard)] * len(rows), pa.string()),
        "size": np.full(len(rows), status.st_size),
        "mtime_ns": np.full(len(rows), changed_ns(status)),
        "offset": pa.array(offsets, pa.int64(), mask=grouped),
        "length": pa.array(lengths, pa.int64(), mask=grouped),
    }
    if readable_name(shard) != shard:
        places["raw_path"] = pa.array([os.fsencode(shard)] * len(rows), pa.binary())
    if grouped.any():
        places["shard_row"] = pa.array(rows, pa.int64(), mask=~grouped)
        places["shard_column"] = pa.array(np.full(len(rows), column), pa.string(), mask=~grouped)
    if "split" not in own and (split := split_in_name(shard)):
        places["split"] = pa.array([split] * len(rows), pa.string())
    present = np.flatnonzero(lengths >= 0)
    return pa.table({**places, **own}).take(present), len(rows) - len(present)


def left_out(count: int, where: object) -> str:
    """Return a sentence on rows without an image."""
    noun, verb = ("row", "is") if count == 1 else ("rows", "are")
    return f"{count:,} {noun} without an image in `{where}` {verb} left out."


def row_paths(where: str, names: Sequence[str | None]) -> pa.Array:
    """Return a path for every row of a file or frame: its number, and the name that the image had."""
    lasts = (f"/{readable_name(name.replace(chr(92), '/').rpartition('/')[2])}" if name else "" for name in names)
    return pa.array([f"{where}/row-{row}{last}" for row, last in enumerate(lasts)], pa.string())


def our_columns(arrow: pa.Table, columns: ColumnMap, where: str, *, located: bool = False) -> Columns:
    """Return the columns of a table under our names.

    Args:
        arrow: The columns.
        columns: Which of them were named by the user.
        where: Name of the table for messages.
        located: `path` and the further columns of `OWN` are ours already.
    """
    check_width(arrow.num_columns, where)
    out: Columns = dict(zip((name.strip() for name in arrow.column_names), arrow.columns, strict=True))
    mapped = {"label": columns.label, "split": columns.split} | ({} if located else {"path": columns.image})
    image = "path"
    for ours, names in NAMES.items():
        if (theirs := mapped.get(ours)) is not None:
            require(theirs, out, where)
        elif not (located and ours == "path"):
            theirs = next((name for name in names if name in out), None)
        if theirs is not None and theirs != ours:
            if ours in out:
                out[f"input_{ours}"] = out.pop(ours)
            out = {ours if name == theirs else name: values for name, values in out.items()}
            image = theirs if ours == "path" else image
    if "path" not in out:
        likely = guess(arrow).get("image")
        seems = f"; `{likely}` looks like images: --image-column {likely}" if likely else ""
        raise LookalikeError(f"`{where}` has no column of images; its columns are {listed(out)}{seems}.")
    if not arrow.num_rows:
        raise LookalikeError(f"`{where}` is a table without rows.")
    if not located:
        out = {f"input_{name}" if name in OWN else name: values for name, values in out.items()}
    paths = as_array(image, out["path"], like="path")
    if paths.null_count:
        raise LookalikeError(f"`{where}` has {paths.null_count:,} rows without a path.")
    out["path"] = paths if located else paths.to_pylist()
    if "split" in out:
        out["split"] = [columns.split_name(text) for text in as_array("split", out["split"]).to_pylist()]
    for name in ("is_query", "is_gallery"):
        if name in out and not pa.types.is_boolean(out[name].type):
            out[name] = pc.is_in(pc.utf8_lower(as_array(name, out[name], like="split")), value_set=_TRUE)
    return out | {name: _whole(out[name], name, where) for name in BOX if name in out}


def has_paths(path: Path) -> bool:
    """Return whether a file is a table of images, from its header."""
    try:
        if path.suffix in _PARQUET:
            schema = read_parquet_schema(path)
            names = schema.names
            if any(holds_bytes(field.type) for field in schema):
                return True
        elif path.suffix == ".jsonl":
            names = [*_json_row(next(lines(path), ""))]
        else:
            head, delimiter = _head(path)
            names = next(csv.reader([head], delimiter=delimiter), [])
    except (LookalikeError, pa.ArrowException, ValueError, RecursionError):
        return False
    return any(name.strip() in NAMES["path"] for name in names)


def _head(path: Path) -> tuple[str, str]:
    """Return the first line of a text table and its delimiter."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline(MAX_HEAD)
    except UnicodeDecodeError:
        raise LookalikeError(f"`{path}` is not a table in UTF-8 text; save it as UTF-8 CSV or as Parquet.") from None
    return head, max(",;\t", key=head.count)


def _read_jsonl(path: Path) -> pa.Table:
    """Read JSON lines; not by Arrow, whose reader crashes at values that are nested deeply."""
    rows: list[dict[str, Any]] = []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            try:
                rows += [_json_row(line)] if line.strip() else []
            except (ValueError, RecursionError):
                message = f"Line {number:,} of `{path}` is not a JSON object, or nested too deeply."
                raise LookalikeError(message) from None
    names = dict.fromkeys(name for row in rows for name in row)
    check_width(len(names), path)
    return pa.table({name: as_array(name, [row.get(name) for row in rows], like="value") for name in names})


def _json_row(line: str) -> dict[str, Any]:
    """The fields of a JSON object that hold single values or lists of them."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return {name: value for name, value in row.items() if not _is_nested(value)}


def _is_nested(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(isinstance(one, (dict, list)) for one in values)


def _read_csv(path: Path, columns: ColumnMap) -> pa.Table:
    _, delimiter = _head(path)
    mapped = [name for name in (columns.image, columns.label, columns.split) if name is not None]
    texts = [name for names in NAMES.values() for name in names] + ["domain", "is_query", "is_gallery", *mapped]
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
        raise LookalikeError(f"`{path}` is not a table: {str(error).splitlines()[0][:300].rstrip('.')}.") from None


def _whole(values: Any, name: str, path: str) -> Any:
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
    return columns


def _path_and_label(line: str) -> tuple[str, str | None]:
    if kind_of(line) in ("image", "HEIC"):
        return line, None
    for sign in ("\t", ",", " "):
        name, separator, label = line.rpartition(sign)
        if separator and kind_of(name.rstrip()) in ("image", "HEIC"):
            return name.rstrip(), label.strip() or None
    return line, None
