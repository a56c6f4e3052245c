"""Facts about image files (hashes, thumbnail, size, date, compression) that duplicates are found by, cached on disk."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import artifacts
from lookalike.core.files import hash_bytes
from lookalike.core.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from lookalike.data import Table

SHORT_SIDE = 256  # images are compared at about this size, so a photo need not be decoded in full
ANIMATED = ("GIF", "WEBP", "PNG")
LOSSLESS = ("PNG", "TIFF", "BMP", "GIF", "PPM")
CACHE = "image_facts"
_FIELDS = (
    "reason", "bytes", "mtime", "hash", "content", "phash", "thumb", "width", "height", "date", "has_location",
    "compression", "frames",
)  # fmt: skip


@dataclass(frozen=True)
class ImageFacts:
    """Facts about one readable image file.

    Of the location only its presence is stored, never the coordinates.

    Args:
        row: Row number in the table.
        id: Row id.
        path: Path relative to the table's root.
        bytes: File size.
        mtime: Modification time in seconds.
        hash: Hash of the file's bytes.
        content: Hash of the decoded pixels.
        phash: 64-bit perceptual hash.
        thumb: Thumbnail of 12 × 12 colors, flattened.
        width: Width in pixels.
        height: Height in pixels.
        date: When the image was taken, as ISO 8601, or ``None``.
        has_location: Whether the file holds GPS coordinates.
        compression: Mean of the JPEG luminance quantization table; 0 for lossless formats, ``None`` if unknown.
        frames: Number of frames of an animation; 1 for a still image.
        enlarged: Whether it was only scaled up from a smaller copy.
    """

    row: int
    id: str
    path: str
    bytes: int
    mtime: float
    hash: str
    content: str
    phash: int
    thumb: np.ndarray
    width: int
    height: int
    date: str | None
    has_location: bool
    compression: float | None
    frames: int = 1
    enlarged: bool = False


def read_image_facts(table: Table, *, progress: bool = True) -> tuple[list[ImageFacts], int]:
    """Read the facts of all images of a table, opening only new or changed files; parts of images are left out.

    Facts from earlier scans are valid while the size and modification time of a file are unchanged.

    Returns:
        The facts of the readable images, and the number of unreadable ones.
    """
    from lookalike.data.decoding import DECODER
    from lookalike.data.image_reader import ReadFailure, read_images
    from lookalike.data.table import read_cached

    rows = [i for i in range(len(table)) if table.box(i) is None]
    ids, paths = table.column("row_id"), table.column("path")
    sizes, times = (table.column(n) if table.has(n) else [None] * len(table) for n in ("size", "mtime_ns"))
    about = {"decoder": DECODER, "fields": _FIELDS, "root": str(table.root), "table": table.name}
    cache = artifacts.artifact(CACHE, about, group=cache_group(table.root))
    cached = read_cached(cache)
    known = {} if cached is None else {entry.pop("key"): entry for entry in cached.to_pylist()}
    keys = {i: f"{ids[i]}\0{sizes[i]}\0{times[i]}" for i in rows if sizes[i] is not None}  # others are read each time
    facts = {i: known[key] for i, key in keys.items() if key in known}
    missing = [i for i in rows if i not in facts]
    try:
        with Progress("Reading", len(missing), shown=progress) as bar:
            results = read_images(lambda row: _examine(table, row), missing)
            for row, result in zip(missing, results, strict=True):
                own = {"reason": result.reason} if isinstance(result, ReadFailure) else result
                facts[row] = dict.fromkeys(_FIELDS) | own
                bar.advance()
    finally:  # what was read before a Ctrl-C is not read again
        if missing:
            _write_cache(cache, [{"key": key, **facts[i]} for i, key in keys.items() if i in facts])
    images = []
    for i in rows:
        if facts[i].pop("reason") is None:
            thumb = np.frombuffer(facts[i].pop("thumb"), np.uint8)
            images.append(ImageFacts(row=i, id=str(ids[i]), path=str(paths[i]), thumb=thumb, **facts[i]))
    return images, len(rows) - len(images)


def _examine(table: Table, row: int) -> dict[str, Any]:
    from lookalike.data import content_id, decode
    from lookalike.data.near_duplicates import perceptual_hash

    data, file = table.open_bytes(row), table.file(row)
    pixels = decode(data, min_side=SHORT_SIDE)
    phash, thumb = perceptual_hash(pixels)
    return {
        "bytes": len(data),
        "mtime": file.stat().st_mtime if file else 0.0,
        "hash": hash_bytes(data),
        "content": content_id(pixels),
        "phash": phash,
        "thumb": thumb.tobytes(),
        **read_header(data, pixels.shape),
    }


def read_header(data: bytes, shape: tuple[int, ...]) -> dict[str, Any]:
    """Read size, date, presence of a location, and compression from the header of an encoded image."""
    from PIL import ExifTags, Image

    from lookalike.data.decoding import FORMATS
    from lookalike.data.exif import iso_date

    facts: dict[str, Any] = dict.fromkeys(("date", "compression"))
    facts |= {"width": shape[1], "height": shape[0], "has_location": False, "frames": 1}
    try:
        with Image.open(io.BytesIO(data), formats=list(FORMATS)) as image:
            facts["width"], facts["height"] = image.size
            facts["frames"] = getattr(image, "n_frames", 1) if image.format in ANIMATED else 1
            tables = getattr(image, "quantization", None)
            if tables:
                facts["compression"] = float(np.mean(tables[min(tables)]))
            elif image.format in LOSSLESS:
                facts["compression"] = 0.0
            exif = image.getexif()
            inner = exif.get_ifd(ExifTags.IFD.Exif)
            date = inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime)
            facts["date"] = iso_date(date)
            facts["has_location"] = bool(exif.get_ifd(ExifTags.IFD.GPSInfo).get(ExifTags.GPS.GPSLatitude))
    except Exception:  # the pixels could be read; a broken header only means that less is known
        return facts
    return facts


def cache_group(root: Path | None) -> str:
    """Return the group of the artifacts about images below a root, whichever decoder made them."""
    return hash_bytes(str(root))[:16]


def _write_cache(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    from lookalike.data.table import write_cached

    types: dict[str, pa.DataType] = {
        "bytes": pa.int64(), "mtime": pa.float64(), "phash": pa.uint64(), "thumb": pa.binary(),
        "width": pa.int32(), "height": pa.int32(), "has_location": pa.bool_(), "compression": pa.float64(),
        "frames": pa.int32(),
    }  # fmt: skip
    schema = pa.schema([(name, types.get(name, pa.string())) for name in ("key", *_FIELDS)])
    write_cached(path, pa.Table.from_pylist(rows, schema))
