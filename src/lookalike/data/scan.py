"""Scan folders of images as a stream: what is there, and what was skipped.

Nothing is opened and nothing is written: one `scandir` per folder, one `stat` per image. A million files take a
few seconds, so a scan is repeated instead of being cached.
"""

# A million names are handled here as the bare strings the system gives.
# ruff: noqa: PTH112, PTH116, PTH118

from __future__ import annotations

import dataclasses
import errno
import functools
import importlib.util
import itertools
import os
import stat
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookalike.core.files import printable
from lookalike.core.progress import Progress
from lookalike.core.storage import RemotePath, Tree

_IMAGES = "jpg jpeg jpe jfif png apng webp avif bmp dib gif tif tiff jp2 mpo pbm pgm pnm ppm"
_KINDS = {
    "HEIC": "heic heif hif",
    "RAW": "3fr ari arw bay cr2 cr3 crw dcr dng erf fff iiq k25 kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 "
    "srf srw x3f",
    "video": "3g2 3gp asf avi flv m2ts m4v mkv mov mp4 mpeg mpg mts mxf ogv ts vob webm wmv",
    "sidecar": "aae csv cls cube dop html ini json jsonl lrcat mat md parquet pp3 thm txt tsv vtt xml xmp yaml yml",
}
KINDS = {ending: kind for kind, endings in _KINDS.items() for ending in endings.split()}
KINDS |= dict.fromkeys(_IMAGES.split(), "image")

# Files and folders of operating systems and servers, beside everything that begins with a dot.
_SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "#recycle", "$recycle.bin", "__macosx"}
_SYSTEM_FILES |= {"lost+found", "system volume information"}

_BATCH = 65_536
SPECIAL = "pipe/socket/device"  # behind the name of an image: reading it might never end
TOO_LONG = "path too long"
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def is_missing(error: OSError) -> bool:
    """Return whether an error means that a file does not exist; others may be temporary (rights, a missing drive)."""
    return error.errno in _NOT_THERE


@functools.cache
def heif_readable() -> bool:
    """Return whether HEIC images can be read."""
    return importlib.util.find_spec("pillow_heif") is not None


def kind_of(name: str) -> str:
    """Return `image`, or the kind of file that is skipped, from a file name."""
    kind = KINDS.get(name.rpartition(".")[2].lower(), "other") if "." in name else "other"
    return "image" if kind == "HEIC" and heif_readable() else kind


def is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden or system junk."""
    return name[0] == "." or name.lower() in _SYSTEM_FILES


def readable_name(name: str) -> str:
    """Return a name to show, store and compare: NFC, with bytes that are not UTF-8 as %XX."""
    return name if name.isascii() else printable(unicodedata.normalize("NFC", name))


def _readable_names(names: list[str]) -> dict[str, str]:
    """Map the names of one folder that are not readable to distinct readable ones."""
    if all(map(str.isascii, names)):
        return {}
    out: dict[str, str] = {}
    taken = {name for name in names if readable_name(name) == name}
    for name in sorted(set(names) - taken):
        base = readable_name(name)
        tries = itertools.chain([base], (f"{base}~{count}" for count in itertools.count(2)))
        out[name] = next(one for one in tries if one not in taken)
        taken.add(out[name])
    return out


@dataclasses.dataclass
class Folder:
    """The images of one folder, as parallel lists."""

    path: str  # relative, POSIX, readable
    raw_path: str  # relative, as the disk has it
    names: list[str]
    readable: dict[str, str]  # names that differ from those on disk
    sizes: list[int]
    mtimes: list[int]


class FolderWalk:
    """Walks through a folder once, following links that stay inside it if `follow_links` is set."""

    def __init__(self, root: str | Path, *, follow_links: bool = True) -> None:
        self.root = os.path.realpath(root)
        self.follow_links = follow_links
        self.skipped: Counter[str] = Counter()  # by kind
        self.unreadable: list[str] = []  # folders and links whose contents are not known
        self._seen: set[tuple[int, int]] = set()  # folders gone into; cuts every kind of loop
        self._linked: set[tuple[int, int]] = set()  # files reached by a link

    def __iter__(self) -> Iterator[Folder]:
        self._stack = [("", "")]  # folders to go into: their readable and their raw path
        self._links: list[tuple[str, str, str]] = []
        self._files: list[tuple[str, str, str]] = []
        while self._stack or self._links:
            while self._stack:
                if (folder := self._list_folder(*self._stack.pop())) and folder.names:
                    yield folder
            # Links come after everything that is there by itself, so that an image keeps its own path;
            # linked folders come before linked files for the same reason.
            for link in sorted(self._links, reverse=True):  # the stack turns them round again
                self._follow_link(*link)
            self._links.clear()
        yield from filter(None, (self._linked_file(*file) for file in sorted(self._files)))

    def _list_folder(self, path: str, raw_path: str) -> Folder | None:
        full = os.path.join(self.root, raw_path)
        images: list[tuple[str, int, int]] = []
        folders: list[str] = []
        try:
            status = os.stat(full)
            if (status.st_dev, status.st_ino) in self._seen:
                self.skipped["link to what is there"] += 1
                return None
            self._seen.add((status.st_dev, status.st_ino))
            with os.scandir(full) as entries:
                for entry in entries:
                    name = entry.name
                    if is_ignored(name):
                        self.skipped["hidden"] += 1
                    elif entry.is_symlink():
                        self._links.append((path, raw_path, name))
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    elif (kind := kind_of(name)) != "image" or not entry.is_file(follow_symlinks=False):
                        self.skipped[kind if kind != "image" else SPECIAL] += 1
                    else:
                        try:
                            status = entry.stat(follow_symlinks=False)
                            images.append((name, status.st_size, changed_ns(status)))
                        except OSError as error:
                            self._count_missing(path, "vanished", error)  # gone since the folder was read, as a rule
        except OSError as error:
            if not raw_path:
                raise
            self._count_missing(path, "unreadable folder", error)
        names, sizes, mtimes = map(list, zip(*images, strict=True)) if images else ([], [], [])
        readable = _readable_names(names + folders)
        self._stack += [(_join(path, readable.get(name, name)), _join(raw_path, name)) for name in folders]
        return Folder(path, raw_path, names, readable, sizes, mtimes)

    def _count_missing(self, path: str, kind: str, error: OSError) -> None:
        self.skipped[TOO_LONG if error.errno == errno.ENAMETOOLONG else kind] += 1
        if not is_missing(error) and self.unreadable[-1:] != [path]:
            self.unreadable.append(path)

    def _follow_link(self, path: str, raw_path: str, name: str) -> None:
        if not self.follow_links:
            self.skipped["link"] += 1
            return
        try:
            target = os.path.realpath(os.path.join(self.root, raw_path, name), strict=True)
        except OSError as error:
            self._count_missing(_join(path, readable_name(name)), "broken link", error)
            return
        if target != self.root and not target.startswith(self.root.rstrip(os.sep) + os.sep):
            self.skipped["link out of the folder"] += 1
        elif os.path.isdir(target):
            self._stack.append((_join(path, readable_name(name)), _join(raw_path, name)))
        else:
            self._files.append((path, raw_path, name))

    def _linked_file(self, path: str, raw_path: str, name: str) -> Folder | None:
        target = os.path.realpath(os.path.join(self.root, raw_path, name))
        parent, target_name = os.path.split(target)
        try:
            status, folder = os.stat(target), os.stat(parent)
        except OSError as error:
            self._count_missing(_join(path, readable_name(name)), "vanished", error)
            return None
        if (kind := kind_of(name)) != "image" or not stat.S_ISREG(status.st_mode):
            self.skipped[kind if kind != "image" else SPECIAL] += 1
            return None
        key, entered = (status.st_dev, status.st_ino), (folder.st_dev, folder.st_ino) in self._seen
        if key in self._linked or (entered and not is_ignored(target_name) and kind_of(target_name) == "image"):
            self.skipped["link to what is there"] += 1
            return None
        self._linked.add(key)
        return Folder(path, raw_path, [name], _readable_names([name]), [status.st_size], [changed_ns(status)])


class BucketWalk(FolderWalk):
    """The same for a folder in a bucket, from the list of its files."""

    def __init__(self, root: RemotePath) -> None:
        self.skipped, self.unreadable = Counter(), []
        self.tree = (root if root.tree is not None else root.listed()).tree or Tree()
        self.prefix = f"{root}/"

    def __iter__(self) -> Iterator[Folder]:
        folders: dict[str, list[tuple[str, int, int]]] = {}
        for url, (size, when) in self.tree.items():
            if not url.startswith(self.prefix):
                continue
            path = url[len(self.prefix) :]
            folder, _, name = path.rpartition("/")
            if any(map(is_ignored, filter(None, path.split("/")))):
                self.skipped["hidden"] += 1
            elif (kind := kind_of(name)) != "image":
                self.skipped[kind] += 1
            else:
                folders.setdefault(folder, []).append((name, size, when))
        for raw_path, files in folders.items():
            names = [name for name, _, _ in files]
            path = readable_name(raw_path)
            yield Folder(path, raw_path, names, _readable_names(names), [f[1] for f in files], [f[2] for f in files])


def changed_ns(status: os.stat_result) -> int:
    """Return when a file changed last, in nanoseconds; two states of a file have different times.

    The modification time can be set by whoever writes the file, the change time cannot: an image replaced by one of
    the same size and modification time is noticed, also if that time lies in the future or the clock was set back.
    """
    return status.st_mtime_ns if os.name == "nt" else status.st_ctime_ns


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


@dataclasses.dataclass
class Scan:
    """Columns of the scanned images in the order of their paths; `folders[folder[i]]` is the folder of row i."""

    columns: dict[str, Any]
    folder: np.ndarray
    folders: list[str]
    skipped: dict[str, int]
    unreadable: list[str]


def scan(root: str | Path, *, follow_links: bool = True, progress: bool = False) -> Scan:
    """Scan a folder for images, through links that stay inside it if `follow_links` is set."""
    walk = BucketWalk(root) if isinstance(root, RemotePath) else FolderWalk(root, follow_links=follow_links)
    codes, sizes, mtimes = array("i"), array("q"), array("q")
    folders: list[str] = []
    paths: list[str] = []
    raw_paths: dict[int, bytes] = {}
    chunks: list[pa.Array] = []
    with Progress("Scanning", shown=progress) as bar:
        for folder in walk:
            names = folder.names
            if folder.readable or folder.path != folder.raw_path:
                for place, name in enumerate(names, len(sizes)):
                    if name in folder.readable or folder.path != folder.raw_path:
                        raw_paths[place] = os.fsencode(_join(folder.raw_path, name))
                names = [folder.readable.get(name, name) for name in names]
            paths += [f"{folder.path}/{name}" for name in names] if folder.path else names
            sizes.extend(folder.sizes)
            mtimes.extend(folder.mtimes)
            codes.extend([len(folders)] * len(names))
            folders.append(folder.path)
            bar.advance(len(names))
            if len(paths) >= _BATCH:
                chunks.append(pa.array(paths, pa.string()))
                paths = []
    chunks.append(pa.array(paths, pa.string()))
    path = pa.chunked_array(chunks).combine_chunks()
    order = pc.sort_indices(path)
    columns: dict[str, Any] = {"path": path.take(order)}
    rows = order.to_numpy()
    if raw_paths:
        columns["raw_path"] = pa.array([raw_paths.get(i) for i in rows.tolist()], pa.binary())
    columns |= {"size": np.array(sizes, np.int64)[rows], "mtime_ns": np.array(mtimes, np.int64)[rows]}
    return Scan(columns, np.array(codes)[rows], folders, dict(walk.skipped), walk.unreadable)
