"""What duplicates are told by: one look at every file, kept, so that the next look reads only what changed."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, hash_bytes
from lookalike.core.formats import CURRENT
from lookalike.core.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from lookalike.data import Table

BATCH = 256
SHORT_SIDE = 256  # images are compared at about this size; a photograph is not decoded whole for it
LOSSLESS = ("PNG", "TIFF", "BMP", "GIF", "PPM")


@dataclass(frozen=True)
class Look:
    """One readable file. Of a place only whether there is one is kept."""

    row: int  # of the table
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
    place: bool
    compression: float | None  # mean step of the JPEG's luminance table; 0: nothing is lost; None: not known


def look_at(table: Table, *, progress: bool = True) -> tuple[list[Look], int]:
    """Every readable image of a table, and how many could not be read. Parts of images (boxes) are left out."""
    rows = [i for i in range(len(table)) if table.box(i) is None]
    names, paths = table.column("row_id"), table.column("path")
    kept = _Kept(table)
    todo = [i for i in rows if kept.get(i) is None]
    with ThreadPoolExecutor(threads()) as pool, Progress("Looking", len(todo), shown=progress) as bar:
        for start in range(0, len(todo), BATCH):
            part = todo[start : start + BATCH]
            kept.add(part, list(pool.map(lambda i: _examine(table, i), part)))
            bar.advance(len(part))
    if todo:
        kept.save()
    looks = []
    for i in rows:
        facts = kept.get(i)
        if facts is not None and facts["reason"] is None:
            fields = {name: facts[name] for name in _FIELDS if name not in ("thumb", "reason")}
            thumb = np.frombuffer(facts["thumb"], np.uint8)
            looks.append(Look(row=i, id=str(names[i]), path=str(paths[i]), thumb=thumb, **fields))
    return looks, len(rows) - len(looks)


_FIELDS = (
    "reason",
    "bytes",
    "mtime",
    "hash",
    "content",
    "phash",
    "thumb",
    "width",
    "height",
    "date",
    "place",
    "compression",
)


def _examine(table: Table, row: int) -> dict[str, Any]:
    from lookalike.data import UnreadableImage, content_id, decode
    from lookalike.data.near_duplicates import look

    facts: dict[str, Any] = dict.fromkeys(_FIELDS)
    file = table.file(row)
    try:
        data = table.open_bytes(row)
        pixels = decode(data, min_side=SHORT_SIDE)
    except (UnreadableImage, OSError) as error:
        return facts | {"reason": str(error)}
    phash, thumb = look(pixels)
    facts |= {"bytes": len(data), "mtime": file.stat().st_mtime if file else 0.0, "hash": hash_bytes(data)}
    facts |= {"content": content_id(pixels), "phash": phash, "thumb": thumb.tobytes()}
    return facts | header(data, pixels.shape)


def header(data: bytes, shape: tuple[int, ...]) -> dict[str, Any]:
    """Size, date, whether there is a place, and how hard it was compressed, from the beginning of a file."""
    from PIL import ExifTags, Image

    from lookalike.data.decoding import FORMATS

    facts: dict[str, Any] = {"width": shape[1], "height": shape[0], "date": None, "place": False, "compression": None}
    try:
        with Image.open(io.BytesIO(data), formats=list(FORMATS)) as image:
            facts["width"], facts["height"] = image.size
            tables = getattr(image, "quantization", None)
            if tables:
                facts["compression"] = float(np.mean(tables[min(tables)]))
            elif image.format in LOSSLESS:
                facts["compression"] = 0.0
            exif = image.getexif()
            inner = exif.get_ifd(ExifTags.IFD.Exif)
            date = inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime)
            facts["date"] = _date(date)
            facts["place"] = bool(exif.get_ifd(ExifTags.IFD.GPSInfo).get(ExifTags.GPS.GPSLatitude))
    except Exception:  # the pixels were read; a broken header only means that less is known
        return facts
    return facts


def _date(text: Any) -> str | None:
    """EXIF's `2019:07:21 10:11:12` as ISO; None for what is none (cameras write zeros, programs the year 1)."""
    try:
        when = time.strptime(str(text)[:19], "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S", when) if when.tm_year >= 1000 else None


def entry(table: Table) -> Path:
    """Where the looks at a table's images are kept."""
    from lookalike.data.decoding import DECODER

    key = hash_bytes("looks", str(CURRENT["cache"]), DECODER, str(table.root), table.name)
    return folders.cache("looks") / f"{_below(table.root)}-{key}.parquet"


def entries(root: Path | None) -> list[Path]:
    """All looks at images below a root, by whatever decoder; and earlier versions', which are read no more and do
    not tell whose they are."""
    files = folders.cache("looks").iterdir()
    return [file for file in files if "-" not in file.name or file.name.startswith(f"{_below(root)}-")]


def _below(root: Path | None) -> str:
    return hash_bytes(str(root))[:16]


class _Kept:
    """Facts of earlier looks, one file for each table's root; a row counts while its size and time are the same."""

    def __init__(self, table: Table) -> None:
        self.entry = entry(table)
        sizes, times = (table.column(n) if table.has(n) else [None] * len(table) for n in ("size", "mtime_ns"))
        names = table.column("row_id")
        self._marks = [
            f"{name}\0{size}\0{when}" if size is not None else ""
            for name, size, when in zip(names, sizes, times, strict=True)
        ]
        self._facts: dict[str, dict[str, Any]] = {}
        wanted = set(self._marks)
        if self.entry.exists():
            from lookalike.data.table import read_parquet

            try:
                old = read_parquet(self.entry)
            except LookalikeError:  # damaged on disk; looked at again
                return
            folders.touch(self.entry)
            marks = old["mark"].to_pylist()
            lines = old.drop_columns(["mark"]).to_pylist()
            self._facts = {m: line for m, line in zip(marks, lines, strict=True) if m in wanted}

    def get(self, row: int) -> dict[str, Any] | None:
        return self._facts.get(self._marks[row] or f"row {row}")

    def add(self, rows: list[int], facts: list[dict[str, Any]]) -> None:
        for row, line in zip(rows, facts, strict=True):
            self._facts[self._marks[row] or f"row {row}"] = line

    def save(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        lasting = {mark: line for mark, line in self._facts.items() if not mark.startswith("row ")}
        kinds: dict[str, pa.DataType] = {
            "bytes": pa.int64(), "mtime": pa.float64(), "phash": pa.uint64(), "thumb": pa.binary(),
            "width": pa.int32(), "height": pa.int32(), "place": pa.bool_(), "compression": pa.float64(),
        }  # fmt: skip
        columns = {"mark": pa.array(list(lasting), pa.string())}
        for name in _FIELDS:
            columns[name] = pa.array([line[name] for line in lasting.values()], kinds.get(name, pa.string()))
        with atomic_file(self.entry, private=True) as part, part.open("wb") as file:
            pq.write_table(pa.table(columns), file, compression="zstd")
