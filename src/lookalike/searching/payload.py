"""Between a row of the table and what the store carries for it."""

from __future__ import annotations

import json
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes

# Columns that say how to open an image or how it was found: carried for us, nothing to filter by.
_OWN = ("found", "shard", "offset", "length", "x_1", "y_1", "x_2", "y_2", "size", "mtime_ns", "official_split")
_IDS = ("row_id", "content_id")
PROTOTYPE = "prototype"
"""The facet that a model with prototypes gives every image."""
_STAT = ("_size", "_mtime_ns")


@lru_cache(maxsize=16)
def column_names(columns: tuple[str, ...]) -> dict[str, str]:
    """What the columns of a table are called in a store, without ours: names with a `_` in front are not a user's
    there, and no two columns become one."""
    free = [name for name in columns if name not in (*_OWN, *_IDS)]
    out = {name: name for name in free if name and not name.startswith("_")}
    for name in free:
        if name not in out:
            key = name.lstrip("_") or "column"
            while key in out.values() or key in _IDS:
                key += "_"
            out[name] = key
    return out


def to_payload(row: dict[str, Any]) -> dict[str, Any]:
    """What the store carries for a row of the table; every other column becomes text that can be filtered by."""
    out: dict[str, Any] = {}
    names = column_names(tuple(row))
    for name, value in row.items():
        if value is None or name in _IDS:
            continue
        if name in _OWN:
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
    """What a user sees of a payload."""
    return {name: value for name, value in payload.items() if not name.startswith("_")}


def labels_of(payload: dict[str, Any]) -> list[str]:
    label = payload.get("label")
    return label if isinstance(label, list) else [label] if label else []


def payload_box(payload: dict[str, Any]) -> tuple[int, int, int, int] | None:
    corners = tuple(payload.get(f"_{name}") for name in ("x_1", "y_1", "x_2", "y_2"))
    return None if None in corners else corners  # type: ignore[return-value]


def open_image(root: Path, payload: dict[str, Any]) -> bytes:
    """The encoded image of a row; only ordinary files inside `root`, links out of it not followed."""
    found = payload.get("_found")
    name = os.fsdecode(bytes.fromhex(found)) if found else payload.get("_shard") or payload["path"]
    path = root / name
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root.resolve()) or not stat.S_ISREG(real.stat().st_mode):
            raise LookalikeError(f"`{payload['path']}` does not lie inside the indexed folder.")
        with real.open("rb") as file:
            if "_offset" not in payload:
                return file.read()
            file.seek(int(payload["_offset"]))
            return file.read(int(payload["_length"]))
    except OSError as error:
        raise LookalikeError(f"`{payload['path']}` cannot be opened ({error.strerror}).") from error
