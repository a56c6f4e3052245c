"""WebDataset shards: plain tar files, indexed once so that every image is read by seeking to it."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import TarReader, open_regular, printable, read_part
from lookalike.core.progress import track, warn
from lookalike.data.readers.base import SPLITS, Columns, split_in_name
from lookalike.data.readers.columns import OWN
from lookalike.data.scan import changed_ns, is_ignored, kind_of, readable_name
from lookalike.data.table import check_width

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
MAX_SIDECAR = 16_000_000  # bytes of a file beside an image
_SIDECARS = ("cls", "cls.txt", "json", "txt")


def read_shards(
    source: Path, files: Sequence[Path] = (), *, progress: bool = False
) -> tuple[Path, Columns, dict[str, Any]]:
    """Return the root, the columns and notes of one tar file, a folder of them, or some files of a folder."""
    root, shards = (source, list(files)) if source.is_dir() else (source.parent, [source])
    shards = shards or sorted(path for path in source.rglob("*.tar") if path.is_file())  # no pipes
    if not shards:
        raise LookalikeError(f"`{source}` holds no tar shards.")
    rows: list[dict[str, Any]] = []
    for shard in track(shards, "Indexing shards", shown=progress):
        rows += _read_shard(shard, shard.relative_to(root).as_posix())
    if not rows:
        raise LookalikeError(f"The tar shards of `{source}` hold no images.")
    names = dict.fromkeys(name for row in rows for name in row)
    check_width(len(names), source)
    columns: Columns = {name: _same_type([row.get(name) for row in rows]) for name in names}
    if (texts := columns.pop("txt", None)) is not None:
        # A text beside an image is its label if texts recur, a caption if nearly every one is its own.
        present = [text for text in texts if text is not None]
        columns["label" if "label" not in columns and len(set(present)) * 2 <= len(present) else "caption"] = texts
    return root, columns, {"layout": "webdataset"}


def _read_shard(shard: Path, name: str) -> Iterator[dict[str, Any]]:
    status = shard.stat()
    shared = {"shard": readable_name(name), "size": status.st_size, "mtime_ns": changed_ns(status)}
    if shared["shard"] != name:
        shared["raw_path"] = os.fsencode(name)
    if split := split_in_name(name):
        shared["split"] = split
    with open_regular(shard) as file:
        if file.read(6).startswith(_COMPRESSED):
            raise LookalikeError(
                f"`{shard}` is compressed, so that no image in it can be reached by itself: unpack it, "
                "or pack it again without compression."
            )
    sidecars: dict[str, dict[str, Any]] = {}
    images: list[tuple[str, str, int, int]] = []
    try:
        with TarReader(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar, open_regular(shard) as side:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else every header stays in memory
                if member.size < 0:  # the next header would be before this one, for ever
                    raise tarfile.ReadError("a negative size")
                if member.isreg() and member.size > status.st_size - member.offset_data:
                    raise tarfile.ReadError(f"{member.name} is larger than the file")
                folder, _, base = member.name.rpartition("/")
                if not member.isreg() or not base or is_ignored(base):
                    continue
                stem, _, ending = base.partition(".")
                key = f"{folder}/{stem}"
                if kind_of(base) == "image":
                    images.append((key, member.name, member.offset_data, member.size))
                elif ending.lower() in _SIDECARS:
                    text = read_part(side, offset=member.offset_data, length=member.size, limit=MAX_SIDECAR)
                    sidecars.setdefault(key, {}).update(_facts(ending.lower(), text, f"{shard}: {member.name}"))
            if tar.offset + tarfile.BLOCKSIZE > status.st_size:
                warn(f"`{shard}` ends without the mark of its end: images may be missing.")
    except (tarfile.ReadError, OSError, ValueError, OverflowError) as error:
        raise LookalikeError(f"`{shard}` is not a tar file, or it is cut off or damaged ({error}).") from None
    for key, member_name, offset, length in images:
        path = f"{shared['shard']}/{readable_name(member_name.removeprefix('./'))}"
        yield {"path": path, **shared, "offset": offset, "length": length, **sidecars.get(key, {})}


def _facts(ending: str, data: bytes, where: str) -> dict[str, Any]:
    """Return what a file beside an image says about it, as columns."""
    text = data.decode("utf-8", "replace").strip()
    if ending in ("cls", "cls.txt"):
        return {"label": text}
    if ending == "txt":
        return {"txt": text}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise LookalikeError(f"`{where}` is not JSON, or nested too deeply.") from None
    if not isinstance(document, dict):
        document = {"label": document}
    out: dict[str, Any] = {}
    for name, value in document.items():
        if not isinstance(value, (str, int, float)) or value != value:  # NaN is no value
            continue
        if isinstance(value, str):
            value = printable(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            value = str(value)
        name = "label" if name in ("class", "cls") and "label" not in document else name
        if name in ("label", "coarse", "domain", "split"):
            out[name] = SPLITS.get(str(value).lower(), str(value)) if name == "split" else str(value)
        else:
            out[f"input_{name}" if name in (*OWN, "path", "txt") else name] = value
    return out


def _same_type(values: list[Any]) -> list[Any]:
    kinds = {type(v) for v in values if v is not None}
    if kinds == {int, float}:
        return [None if v is None else float(v) for v in values]
    return values if len(kinds) < 2 else [None if v is None else str(v) for v in values]
