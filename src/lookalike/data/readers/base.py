"""The registry of data set layouts, and the way from listed paths to a `Table`.

A layout is a function from the data set's folder to rows (`path` relative to it, `label`, `split`, ...) or whole
columns, registered with the files it is recognized by:

    @layout("cub", "CUB-200-2011", marks=[("images.txt", "image_class_labels.txt")], columns="path label split")
    def read_cub(root: Path) -> Rows:
        yield "images/001/a.jpg", "Albatross", "train"
"""

# Names are handled as the bare strings the system gives.
# ruff: noqa: PTH100, PTH116, PTH117, PTH118, PTH120, PTH208

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes, open_regular
from lookalike.core.progress import plural
from lookalike.core.storage import RemotePath, is_url
from lookalike.data.scan import changed_ns, is_ignored, is_missing, kind_of, readable_name, scan
from lookalike.data.table import BOX, Table, as_array

Columns = dict[str, Any]
Rows = Iterator[Sequence[Any]]
Reader = TypeVar("Reader", bound=Callable[..., Columns | Rows])

# Beyond this fraction of missing listed files, the list and the images do not belong together.
MAX_MISSING = 0.05
MAX_LIST = 200_000_000  # bytes of a list of images

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= dict.fromkeys(("val", "valid", "validation"), "val")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A data set layout: the files it is recognized by, and the function that reads it; see :func:`layout`."""

    name: str
    title: str
    marks: Sequence[Sequence[str]]
    inside: Sequence[str]
    names: str
    read: Callable[[Path], Columns | Rows]

    def base(self, root: Path) -> Path | None:
        """Return the folder at or below `root` that has the marks, or None."""
        for place in ("", *self.inside):
            if any(all(exists(root / place, mark) for mark in marks) for marks in self.marks):
                return root / place if place else root
        return None

    def columns(self, base: Path) -> Columns:
        """Read the columns; lists that differ from the published ones give a one-line error."""
        try:
            result = self.read(base)
            columns = result if isinstance(result, dict) else from_rows(self.names, result)
        except FileNotFoundError as error:
            raise LookalikeError(f"`{base}` is laid out as {self.title}, but `{error.filename}` is missing.") from None
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise LookalikeError(
                f"`{base}` is laid out as {self.title}, but one of its lists is not as it was published "
                f"({type(error).__name__}: {error})."
            ) from error
        if not len(columns["path"]):
            raise LookalikeError(f"`{base}` is laid out as {self.title}, but its lists name no images.")
        return columns


LAYOUTS: dict[str, Layout] = {}


def layout(
    name: str,
    title: str,
    *,
    marks: Sequence[Sequence[str]],
    inside: Sequence[str] = (),
    columns: str = "path label class_id split",
) -> Callable[[Reader], Reader]:
    """Register a reader.

    Args:
        name: Value of `layout=`.
        title: Name of the data set.
        marks: Alternative sets of files to recognize it by: all of one set must exist. A name with `[` is a pattern.
        inside: Subfolders where the data set often is.
        columns: Names of what a row holds; `box` is x1, y1, x2, y2, or None for a whole image.
    """

    def register(read: Reader) -> Reader:
        LAYOUTS[name] = Layout(name, title, marks, inside, columns, read)
        return read

    return register


def exists(root: Path, mark: str) -> bool:
    """Return whether a file, or one that matches a pattern, lies below a root."""
    return any(root.glob(mark)) if "[" in mark else (root / mark).exists()


class Finder:
    """Finds listed files below a root; names are compared in NFC."""

    def __init__(self, root: Path) -> None:
        self.root, self.place = str(root), root
        self.unreadable: list[str] = []  # what may be there, but could not be looked at
        self._folders: dict[str, dict[str, str]] = {}

    def __call__(self, path: str) -> tuple[str, os.stat_result] | None:
        """Return the name as it is on disk and its status; None if there is no such file."""
        if is_url(self.place):
            place = self.place / path
            return (path, place.stat()) if place.is_file() else None
        try:
            status = os.stat(os.path.join(self.root, path))
            return (path, status) if stat.S_ISREG(status.st_mode) else None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not is_missing(error):
                self.unreadable.append(readable_name(path))
                return None
            if path.isascii():
                return None
        actual = ""
        for part in path.split("/"):
            if actual not in self._folders:
                names: list[str] = []
                with contextlib.suppress(OSError):
                    names = os.listdir(os.path.join(self.root, actual))
                self._folders[actual] = {readable_name(name): name for name in names}
            name = self._folders[actual].get(readable_name(part))
            if name is None:
                return None
            actual = f"{actual}/{name}" if actual else name
        status = os.stat(os.path.join(self.root, actual))
        return (actual, status) if stat.S_ISREG(status.st_mode) else None


def locate(root: Path, columns: Columns, source: str) -> tuple[Path, Columns, dict[str, Any]]:
    """Add name, size and time of every listed file; rows without a file are dropped and named.

    The root moves up if the list names files outside it.
    """
    paths = [posixpath.normpath(p.replace("\\", "/") if os.name == "nt" else p) for p in columns["path"]]
    if any(map(is_url, columns["path"])):
        root, paths = _below_one_url(root, columns["path"])
    elif is_url(root) and any(p.startswith(("/", "../")) for p in paths):
        raise LookalikeError(f"`{source}` lists images outside `{root}`: name them by whole URLs.")
    elif any(p.startswith(("/", "../")) or os.path.isabs(p) for p in paths):
        whole = [os.path.abspath(os.path.join(root, p)) for p in paths]
        root = Path(os.path.commonpath([os.path.dirname(p) for p in whole]))
        paths = [Path(os.path.relpath(p, root)).as_posix() for p in whole]
    finder = Finder(root)
    shown = list(map(readable_name, paths))
    files = list(map(finder, paths))
    lost = [i for i, file in enumerate(files) if file is None]
    notes: dict[str, Any] = {"unreadable": finder.unreadable} if finder.unreadable else {}
    if lost:
        first = ", ".join(f"`{shown[i][:200]}`" for i in lost[:3])
        be = "is" if len(lost) == 1 else "are"
        if len(lost) > MAX_MISSING * len(paths):
            raise LookalikeError(
                f"`{source}` lists {plural(len(paths), 'image')}, of which {len(lost):,} {be} missing under `{root}` "
                f"(first: {first})."
            )
        notes["missing"] = {"count": len(lost), "first": [shown[i] for i in lost[:10]]}
        notes["warnings"] = [
            f"{len(lost):,} of {len(paths):,} images listed in `{source}` {be} missing and left out: {first}"
            f"{', …' if len(lost) > 3 else ''}."
        ]
    rows = [i for i, file in enumerate(files) if file is not None]
    out: Columns = {name: as_array(name, values).take(rows) for name, values in {**columns, "path": shown}.items()}
    present = [file for file in files if file is not None]
    raw_paths = [None if name == shown[i] else os.fsencode(name) for i, (name, _) in zip(rows, present, strict=True)]
    if any(raw_paths):
        out["raw_path"] = pa.array(raw_paths, pa.binary())
    out["size"] = np.array([status.st_size for _, status in present], np.int64)
    out["mtime_ns"] = np.array([changed_ns(status) for _, status in present], np.int64)
    return root, out, notes


def _below_one_url(root: Path, names: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that listed URLs have in common, and their paths below it."""
    urls = [name if is_url(name) else str(root / name) for name in names]
    if not all(map(is_url, urls)) or len({url.split("/")[2] for url in urls}) > 1:
        raise LookalikeError("The images of one table must lie in one bucket, or all on this machine.")
    common = posixpath.commonpath([posixpath.dirname(url.partition("://")[2]) for url in urls])
    place = RemotePath(f"{urls[0].partition('://')[0]}://{common}").listed()
    return cast(Path, place), [url.partition("://")[2][len(common) + 1 :] for url in urls]


def unique_rows(table: Table) -> Table:
    """Make row ids unique: an image that is listed twice gets `~2` appended to the second id."""
    ids = table.arrow["row_id"]
    if pc.count_distinct(ids).as_py() == len(table):
        return table
    seen: Counter[str] = Counter()
    out = []
    for row_id in ids.to_pylist():
        seen[row_id] += 1
        out.append(row_id if seen[row_id] == 1 else f"{row_id}~{seen[row_id]}")
    table = table.with_column("row_id", out)
    table.notes["repeated"] = len(out) - len(seen)
    return table


def scan_folders(root: Path, *under: str) -> Columns:
    """Return the images of some folders below a root, for layouts without lists."""
    tables = []
    for place in under:
        part = scan(root / place)
        if part.unreadable:
            missed = root / place / part.unreadable[0]
            raise LookalikeError(f"`{missed}` cannot be read; a known data set is taken whole or not at all.")
        for name, prefix, sign in (("path", place, "/"), ("raw_path", place.encode(), b"/")):
            if name in part.columns:
                part.columns[name] = pc.binary_join_element_wise(pa.scalar(prefix), part.columns[name], pa.scalar(sign))
        tables.append(pa.table(part.columns))
    arrow = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return dict(zip(arrow.column_names, arrow.columns, strict=True))


def from_rows(names: str, rows: Iterable[Sequence[Any]]) -> Columns:
    """Return columns from rows; the names are separated by spaces. A column without values is left out."""
    columns: Columns = {name: [] for name in names.split()}
    columns |= dict(zip(columns, map(list, zip(*rows, strict=True)), strict=False))
    boxes = columns.pop("box", [])
    if any(boxes):
        corners = [[None] * 4 if box is None else [round(n) for n in box] for box in boxes]
        columns |= {name: pa.array([row[i] for row in corners], pa.int32()) for i, name in enumerate(BOX)}
    return {name: v for name, v in columns.items() if name == "path" or any(value is not None for value in v)}


def files_of_shards(root: Path, ending: str) -> list[Path]:
    """Return the files with an ending in a folder and three levels below it; none where images lie beside them."""
    if isinstance(root, RemotePath):
        paths = [path for path in root.rglob("*") if not is_ignored(path.name)]
        if any(kind_of(path.name) == "image" for path in paths):
            return []
        return [cast(Path, path) for path in paths if path.suffix == ending]
    files: list[str] = []
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if is_ignored(entry.name):
                        continue
                    if entry.is_dir():
                        waiting += [(entry.path, depth + 1)] * (depth < 3)
                    elif kind_of(entry.name) == "image":  # a folder of images: nothing more is looked at
                        return []
                    elif entry.name.endswith(ending) and entry.is_file():
                        files.append(entry.path)
        except OSError:
            return []  # said by whoever reads it as a folder of images
    return [Path(file) for file in sorted(files)]


def split_in_name(name: str) -> str | None:
    """Return the split that a word of a file's path stands for: `train` of `data/train-00000.parquet`."""
    return next((SPLITS[word] for word in re.split(r"[-_./]", name.lower()) if word in SPLITS), None)


def open_text(path: Path, **options: Any) -> IO[str]:
    """Open a list in UTF-8; one that is no regular file, or longer than any list of images, is refused."""
    try:
        file = open_regular(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise LookalikeError(f"`{path}` cannot be read: {error.strerror}.") from None
    if file.seek(0, os.SEEK_END) > MAX_LIST:
        file.close()
        raise LookalikeError(f"`{path}` is larger than {format_bytes(MAX_LIST)}, too large for a list of images.")
    file.seek(0)
    return io.TextIOWrapper(file, encoding="utf-8-sig", **options)


def lines(path: Path, *, skip: int = 0) -> Iterator[str]:
    """Yield the lines of a list that are not empty."""
    with open_text(path, errors="surrogateescape") as file:
        for number, line in enumerate(file):
            if number >= skip and line.strip():
                yield line.rstrip("\r\n")


class Listed(dict[str, str]):
    """A list by key; a missing key gives an error that names the list."""

    path: Path

    def __missing__(self, key: str) -> str:
        raise LookalikeError(f"`{self.path}` has no line for `{key}`: take the list as it was published.")


def pairs(path: Path) -> Listed:
    """Read `id value` lines; the value extends to the end of the line."""
    out = Listed()
    out.path = path
    for line in lines(path):
        key, *value = line.split(maxsplit=1)
        out[key] = value[0].strip() if value else ""
    return out


def path_label(path: Path) -> Iterator[tuple[str, str]]:
    """Read `path label` lines; the path may contain spaces."""
    for line in lines(path):
        name, _, label = line.strip().rpartition(" ")
        if not name:
            raise LookalikeError(f"`{path}` should hold `path label` a line, but one reads `{line}`.")
        yield name.strip(), label


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file as dictionaries."""
    with open_text(path, newline="") as file:
        return list(csv.DictReader(file, skipinitialspace=True))


def load_mat(path: Path) -> dict[str, Any]:
    """Read a MATLAB file."""
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # SciPy raises almost anything at a file that is damaged
        raise LookalikeError(f"`{path}` cannot be read as a MATLAB file: {str(error).splitlines()[0]}.") from None
