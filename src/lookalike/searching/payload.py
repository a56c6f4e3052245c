"""Payloads: what a store holds for a row besides its vector, and the way back to the image file."""

from __future__ import annotations

import errno
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import MAX_BYTES, FileTooLarge, format_bytes, hash_bytes, open_inside, read_part

# Columns that say how to open an image: stored with a `_` in front, not to filter by.
_INTERNAL = (
    *("raw_path", "shard", "shard_column", "shard_row", "offset", "length", "item", "digest"),
    *("x_1", "y_1", "x_2", "y_2", "size", "mtime_ns", "official_split"),
)
_IDS = ("row_id", "content_id")
PROTOTYPE = "prototype"  # the column that a model with prototypes adds
_STAT = ("_size", "_mtime_ns")


@lru_cache(maxsize=16)
def column_names(columns: tuple[str, ...]) -> dict[str, str]:
    """Return the names of a table's own columns in a store, where names that start with ``_`` are internal.

    Args:
        columns: Columns of the table.

    Returns:
        Names in the store by column; no two are equal.

    Example:
        >>> column_names(("row_id", "path", "_label", "label"))
        {'path': 'path', 'label': 'label', '_label': 'label_'}
    """
    free = [name for name in columns if name not in (*_INTERNAL, *_IDS)]
    out = {name: name for name in free if name and not name.startswith("_")}
    for name in free:
        if name not in out:
            key = name.lstrip("_") or "column"
            while key in out.values() or key in _IDS:
                key += "_"
            out[name] = key
    return out


def to_payload(row: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a row: internal columns, others as text to filter by, and a hash of them (``_row``)."""
    out: dict[str, Any] = {}
    names = column_names(tuple(row))
    for name, value in row.items():
        if value is None or name in _IDS:
            continue
        if name in _INTERNAL:
            out[f"_{name}"] = value.hex() if isinstance(value, bytes) else value
        else:
            out[names[name]] = _text(value)
    out["_row"] = hash_bytes(json.dumps({k: v for k, v in out.items() if k not in _STAT}, sort_keys=True))[:12]
    return out


def _text(value: Any) -> str | list[str]:
    if isinstance(value, list):
        return [str(v) for v in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def public_columns(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a payload that are shown to users."""
    return {name: value for name, value in payload.items() if not name.startswith("_")}


def payload_box(payload: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Return the box of a row that is a part of an image, in pixels."""
    corners = tuple(payload.get(f"_{name}") for name in ("x_1", "y_1", "x_2", "y_2"))
    return None if None in corners else corners  # type: ignore[return-value]


def _file_name(payload: dict[str, Any]) -> str:
    """The name of a row's file on disk, which may not be UTF-8."""
    spelling = payload.get("_raw_path")
    return os.fsdecode(bytes.fromhex(spelling)) if spelling else str(payload.get("_shard") or payload["path"])


def is_indexed_file(root: Path, payload: dict[str, Any]) -> bool | None:
    """Return whether a row's file is the one that was indexed, by size and time or by its bytes; None if it is gone."""
    from lookalike.data.scan import changed_ns

    if not payload.get("path"):  # vectors alone
        return None
    try:
        with open_inside(root, _file_name(payload)) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    if (status.st_size, changed_ns(status)) == (payload.get("_size"), payload.get("_mtime_ns")):
        return True
    return hash_bytes(open_image(root, payload)) == payload.get("_hash")


def open_image(root: Path, payload: dict[str, Any], *, limit: int = MAX_BYTES) -> bytes:
    """Return the encoded image of a row.

    Raises:
        LookalikeError: If the file cannot be opened, is not a regular file, is outside ``root`` (also by a link), or is
            too large (``FileTooLarge``).
    """
    try:
        length = payload.get("_length")
        with open_inside(root, _file_name(payload)) as file:
            if (row := payload.get("_shard_row")) is not None:
                from lookalike.data.parquet_images import ROW_GROUPS  # imports Arrow, which a search does without

                data = ROW_GROUPS.value(file, payload["_shard_column"], int(row))
                if len(data) > limit:
                    raise FileTooLarge(errno.EFBIG, f"the image is larger than {format_bytes(limit)}")
                return data
            offset, length = int(payload.get("_offset") or 0), None if length is None else int(length)
            return read_part(file, offset=offset, length=length, limit=limit)
    except OSError as error:
        raise LookalikeError(f"`{payload['path']}` cannot be opened ({error.strerror or error}).") from error
    except (ValueError, TypeError, KeyError) as error:  # a restored backup may say anything
        raise LookalikeError("The row of this image is damaged: it names no file.") from error
