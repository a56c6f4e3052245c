"""Which columns of a table hold images, labels and split: as mapped by the user, by their names, or guessed.

Commands hand the mapping on inside the layout, as `auto?label=species`, so that whatever keeps a layout (a run, an
index) reads its images again in the same way.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError
from lookalike.data.parquet_images import TEXTS, is_list_of_labels
from lookalike.data.readers.base import SPLITS
from lookalike.data.scan import KINDS, kind_of

NAMES = {
    "path": ("path", "file_name", "filename", "image_path", "filepath", "file", "image", "img", "picture"),
    "label": ("label", "labels", "class", "fine_label"),
    "coarse": ("coarse", "category", "coarse_label"),
    "split": ("split",),
}
"""Names under which a column is recognized, by ours."""
OWN = (
    *("row_id", "raw_path", "shard", "shard_row", "shard_column", "item", "digest"),
    *("size", "mtime_ns", "offset", "length", "content_id"),
)
"""Columns that readers write; those of a user's table of the same name are kept as `input_NAME`."""
INTERNAL = {*OWN, "path", "official_split"}
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_SAMPLE = 10_000  # rows that a guess is made from


@dataclasses.dataclass(frozen=True)
class ColumnMap:
    """The columns that the user named, and the split that each value of the split column stands for.

    Args:
        image: Column with the images: paths, bytes, or structs of both.
        label: Column with the labels.
        split: Column with the split.
        values: Our name of the split by value of the column, as `{"0": "train"}`.
    """

    image: str | None = None
    label: str | None = None
    split: str | None = None
    values: dict[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.image, self.label, self.split))

    def split_name(self, value: str | None) -> str | None:
        """Return the split that a value of the split column stands for."""
        if value is None or value == "":
            return None
        return self.values.get(value) if self.values else SPLITS.get(value.lower(), value)


def with_columns(
    layout: str, image_column: str | None = None, label_column: str | None = None, split_column: str | None = None
) -> str:
    """Return the layout with a mapping of columns; what is None is left as it is.

    Args:
        layout: A layout, with or without a mapping.
        image_column: Column with the images.
        label_column: Column with the labels.
        split_column: Column with the split, and the values of its parts: `fold:train=0,1,test=2`.

    Example:
        >>> with_columns("auto", label_column="species")
        'auto?label=species'
    """
    name, _, query = layout.partition("?")
    mapping = {"image": image_column, "label": label_column, "split": split_column}
    mapped = dict(parse_qsl(query)) | {key: value for key, value in mapping.items() if value is not None}
    return f"{name}?{urlencode(mapped, safe=':,=')}" if mapped else name


def parse_layout(layout: str) -> tuple[str, ColumnMap]:
    """Return the name of a layout and its mapping of columns."""
    name, _, query = layout.partition("?")
    options = dict(parse_qsl(query))
    split, _, rules = (options.pop("split", None) or "").partition(":")
    values: dict[str, str] = {}
    side = ""
    for part in filter(None, rules.split(",")):
        before, sign, value = part.partition("=")
        if sign and before.strip().lower() in SPLITS:
            side, part = SPLITS[before.strip().lower()], value
        if not side:
            raise LookalikeError(f"`{split}:{rules}` is no mapping of a split: write `{split}:train=A,B,test=C`.")
        values[part.strip()] = side
    if options.keys() - {"image", "label"}:
        raise LookalikeError(f"`{layout}` maps what is no column: there are image, label and split.")
    return name, ColumnMap(options.get("image"), options.get("label"), split or None, values)


def class_names(arrow_metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names by column that `datasets` writes into the metadata of a schema."""
    try:
        features = json.loads((arrow_metadata or {})[b"huggingface"])["info"]["features"]
        inner = {name: about.get("feature", about) for name, about in features.items()}  # of a list, what it holds
        pairs = ((name, about.get("names")) for name, about in inner.items() if about.get("_type") == "ClassLabel")
        return {name: list(map(str, names)) for name, names in pairs if names and isinstance(names, list)}
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def plain(values: Any) -> Any:
    """Return a column in one of the types that are read: texts and lists come in several, and with a dictionary."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return plain(values.cast(kind.value_type))
    if is_list_of_labels(kind):
        return values.cast(pa.list_(kind.value_type if pa.types.is_integer(kind.value_type) else pa.string()))
    return values.cast(pa.string()) if str(kind) in TEXTS else values


def named(arrow: pa.Table) -> pa.Table:
    """Return the columns in plain types, with class names in place of the numbers that stand for them."""
    columns, classes = {}, class_names(arrow.schema.metadata)
    for place, field in enumerate(arrow.schema):
        values = plain(arrow.column(place))
        names = dict(enumerate(classes.get(field.name, ())))  # −1 is no label
        if names and pa.types.is_integer(values.type):
            values = pa.array(map(names.get, values.to_pylist()), pa.string())
        elif names and is_list_of_labels(values.type):
            rows = (row and [names[code] for code in row if code in names] for row in values.to_pylist())
            values = pa.array(rows, pa.list_(pa.string()))
        columns[field.name.strip()] = values
    return pa.table(columns)


def with_class_labels(columns: ColumnMap, arrow: pa.Table) -> ColumnMap:
    """Return the mapping with the only column of class names as labels, unless one is mapped or called so."""
    classes = [*class_names(arrow.schema.metadata)]
    if columns.label is None and len(classes) == 1 and not {*NAMES["label"]} & {*arrow.column_names}:
        return dataclasses.replace(columns, label=classes[0])
    return columns


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type can be encoded images."""
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and holds_bytes(kind.field("bytes").type)
    return str(kind) in ("binary", "large_binary", "binary_view") or pa.types.is_fixed_size_binary(kind)


def image_column(schema: pa.Schema, columns: ColumnMap, where: str) -> str | None:
    """Return the name of the column with the images, as mapped, by name or by type; None if there is none."""
    if columns.image is not None:
        return require(columns.image, schema.names, where)
    structs = [field.name for field in schema if pa.types.is_struct(field.type) and holds_bytes(field.type)]
    blobs = [field.name for field in schema if holds_bytes(field.type)]
    known = [name for name in (*NAMES["path"], "bytes", *KINDS) if name in schema.names]
    if len(structs) == 1:
        return structs[0]
    if not known and len(blobs) > 1:
        raise LookalikeError(f"`{where}` has several columns of images ({listed(blobs)}): --image-column {blobs[0]}.")
    return next((name for name in known if name in blobs), None) or next(iter([*known, *blobs]), None)


def require(column: str, names: Iterable[str], where: str) -> str:
    """Return a mapped column; raise with the columns there are if it is missing."""
    there = [name for name in names if name not in INTERNAL]
    if column not in (*there, "path", "content_id"):
        near = difflib.get_close_matches(column, there, 1, 0.5)
        mean = f"; did you mean `{near[0]}`?" if near else "."
        raise LookalikeError(f"`{where}` has no column `{column}`: it has {listed(there)}{mean}")
    return column


def listed(names: Iterable[str]) -> str:
    """Return names of columns as text of a bounded length."""
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in names]
    return ", ".join(shown[:20]) + (", …" if len(shown) > 20 else "") if shown else "no columns"


def guess(arrow: pa.Table) -> dict[str, str]:
    """Guess from names and values which columns hold the image, label and split; for error messages."""
    out: dict[str, str] = {}
    best = 0.0
    for name, values in zip(arrow.column_names, arrow.slice(0, _SAMPLE).columns, strict=True):
        is_text = pa.types.is_string(values.type)
        if holds_bytes(values.type):
            some = (pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values).drop_null()
            if len(some) and some[0].as_py().startswith(_MAGIC):
                out.setdefault("image", name)
        elif is_text or pa.types.is_integer(values.type):
            distinct, count = [str(value) for value in pc.unique(values.drop_null()).to_pylist()], len(values)
            if is_text and distinct and all(kind_of(text) in ("image", "HEIC") for text in distinct[:50]):
                out.setdefault("image", name)
            elif distinct and {text.lower() for text in distinct} <= SPLITS.keys():
                out.setdefault("split", name)
            elif 2 <= len(distinct) <= max(2, count // 2):
                # Names that say so first, texts before numbers, then the column with most classes.
                says = re.search(r"label|class|species|categor|breed|target|name|product|type", name, re.I)
                score = 4 * bool(says) + 2 * is_text + len(distinct) / (count + 1)
                if score > best:
                    out["label"], best = name, score
    return out


def hint(table: Any, what: str) -> str:
    """Return a sentence on the columns of a table that lacks labels or a split, with a guess; empty for folders."""
    names = [name for name in table.names if name not in INTERNAL]
    likely = guess(table.arrow.select(names)).get(what)
    seems = f"; `{likely}` looks like {what}s: --{what}-column {likely}" if likely else ""
    return f" Its columns are {listed(names)}{seems}." if names else ""


def unused_split(table: Any) -> str:
    """Return a sentence on a split whose parts have names of their own, and so are not used; empty for others."""
    there = sorted({str(value) for value in table.column("split") if value is not None}) if table.has("split") else []
    if len(there) < 2 or {*there} <= {*SPLITS.values()} or {"train", "test"} <= {*there}:
        return ""
    train, test = sorted(there, key=lambda name: name != "train")[:2]
    return (
        f"The parts of `{table.name}` ({', '.join(there)}) are not called `train` and `test`, so that the split is not "
        f"used: --split-column split:train={train},test={test} says what they stand for."
    )


def split_counts(values: Any) -> str:
    """Return how many images each split has, as `800 train, 200 test`."""
    counts = Counter(sorted(value for value in values if value is not None)).most_common()
    return ", ".join(f"{count:,} {name}" for name, count in counts)
