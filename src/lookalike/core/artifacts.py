"""The artifact cache: results that can be computed again, named by what they were made from, and checked when loaded.

    <cache>/<kind>/<group>-<hash>

An artifact is a file that begins with the digest of its content (thumbnails, audits, image facts) or a folder whose
`info.json` has the checksums of its files (pixels, features, converted models, searches). A damaged one counts as
missing and is made again. The group says what a user's deletion takes along: an index, a folder or a table of images.
Beyond a total size, and a size of some kinds, the least recently used artifacts are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from lookalike.core import files, folders
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked, in_use

LIMIT = 20_000_000_000  # bytes of all artifacts; LOOKALIKE_CACHE_BYTES changes it
KIND_LIMITS = {"thumbs": 1_000_000_000}
INFO = "info.json"
_DIGEST = 16
BIG = 1_000_000_000
MAX_FILE = 4_000_000_000  # bytes of an artifact that is a file
_IN_USE = 600.0  # seconds; a folder used within them may be open in another process
_held: dict[Path, contextlib.AbstractContextManager[None]] = {}  # locks of folders that are used until the process ends
_guard = threading.Lock()
_written = {"bytes": 0}  # of files since the last trim


def artifact(kind: str, key: Any, *, group: str = "") -> Path:
    """Return where an artifact is, or would be.

    Args:
        kind: `pixels`, `features`, `runtimes`, `thumbs`, ...
        key: Everything it depends on, as a JSON document.
        group: Hash of the index, folder or table that it is about.

    Example:
        >>> path = artifact("thumbs", {"image": "a1", "side": 96})
        >>> write(path, b"jpeg")
        >>> read(path)
        b'jpeg'
    """
    number, text = str(files.FORMAT_VERSIONS["cache"]), json.dumps(key, sort_keys=True, default=files.to_json)
    name = files.hash_bytes(number, kind, text)
    return folders.cache_home() / kind / (f"{group}-{name}" if group else name)


def is_ours(path: Path) -> bool:
    """Return whether an artifact, and the folders of its kind and of the cache, can be changed by this user alone.

    Who else could write there, could plant results. What the administrator owns is trusted, as programs are.
    """
    if os.name == "nt":  # the user's folders are closed to others there
        return True
    facts = [place.stat() for place in (path, path.parent, path.parent.parent)]
    return all(one.st_uid in (os.geteuid(), 0) and not one.st_mode & 0o022 for one in facts)


def read(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing, damaged, or may be of another user."""
    try:
        if not is_ours(path):
            return None
        data = files.read_bytes(path, limit=MAX_FILE)
    except OSError:
        return None
    content = data[_DIGEST:]
    if hashlib.blake2b(content, digest_size=_DIGEST).digest() != data[:_DIGEST]:
        path.unlink(missing_ok=True)
        return None
    touch(path)
    return content


def write(path: Path, content: bytes) -> None:
    """Write the content of a file, and trim the cache from time to time."""
    folders.cache(path.parent.name)
    files.write_bytes(path, hashlib.blake2b(content, digest_size=_DIGEST).digest() + content, private=True)
    with _guard:
        _written["bytes"] += len(content)
        due = _written["bytes"] > min(limit(), *KIND_LIMITS.values()) // 20
    if due:
        trim()


def folder(path: Path, fill: Callable[[Path], None], *, about: Any = None, self_checked: Collection[str] = ()) -> Path:
    """Return a folder, filled now unless it is there and whole.

    Args:
        path: Where `artifact` says it is.
        fill: Writes the files into an empty folder.
        about: What it was made from, for `info.json`.
        self_checked: Names of files whose reader checks each part; of those above 1 GB only the size is checked here.
    """
    if not is_whole(path, self_checked):
        replace(path, fill, about=about)
        trim()
    touch(path)
    return path


def replace(path: Path, fill: Callable[[Path], None], *, about: Any = None) -> None:
    """Write a folder, in place of one that may be there."""
    folders.cache(path.parent.name)
    with files.atomic_folder(path, private=True) as part:
        fill(part)
        sums = {file.name: files.checksum(file) for file in sorted(part.iterdir())}
        files.write_json(part / INFO, files.stamp("cache", {"about": about, "checksums": sums}))


def is_whole(path: Path, self_checked: Collection[str] = ()) -> bool:
    """Return whether a folder is there, of this user, and its files are those that were written; see `folder`."""
    try:
        if not is_ours(path):
            return False
        sums = files.check_format("cache", files.read_json(path / INFO), path)["checksums"]
        for name, value in sums.items():
            size = (path / name).stat().st_size
            by_size = name in self_checked and size > BIG
            if value != (f"{size}{value[value.index('-') :]}" if by_size else files.checksum(path / name)):
                return False
        return bool(sums)
    except (LookalikeError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return False


def about(path: Path) -> Any:
    """Return what a folder says it was made from; None if it cannot be read, or may be of another user."""
    try:
        return files.read_json(path / INFO)["about"] if is_ours(path) else None
    except (LookalikeError, OSError, KeyError, TypeError):
        return None


def touch(entry: Path) -> None:
    """Mark an artifact as used now; the least recently used ones are trimmed first."""
    with contextlib.suppress(OSError):  # a read-only cache still serves
        os.utime(entry)


def hold(path: Path) -> None:
    """Keep what is in the cache from being trimmed until this process ends; other paths are left alone.

    Args:
        path: A folder of the cache (a downloaded data set, a copied model), or anything in it.
    """
    home = folders.cache_home()
    if not path.is_relative_to(home):
        return
    entry = home.joinpath(*path.relative_to(home).parts[:2])
    touch(entry)
    if entry not in _held:
        lock = in_use(entry, f"`{entry}` is being deleted to make room in the cache; repeat the command.")
        lock.__enter__()
        _held[entry] = lock


def entries() -> list[tuple[str, Path, int, float]]:
    """Return kind, path, size and time of last use of every artifact, oldest first."""
    rows = []
    home = folders.cache_home()
    for kind in sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else ():
        with os.scandir(kind) as listing:
            for file in listing:
                with contextlib.suppress(FileNotFoundError):  # trimmed by another process meanwhile
                    status = file.stat(follow_symlinks=False)
                    size = folders.disk_usage(Path(file.path)) if file.is_dir() else status.st_size
                    rows.append((kind.name, Path(file.path), size, status.st_mtime))
    return sorted(rows, key=lambda row: row[3])


def of_groups(groups: Collection[str]) -> list[Path]:
    """Return the artifacts of some groups."""
    return sorted(path for _, path, _, _ in entries() if path.name.rpartition("-")[0] in groups)


def delete(path: Path) -> None:
    """Delete one artifact."""
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def clear(kind: str | None = None) -> int:
    """Delete the artifacts of one kind, or all; return the number of bytes freed."""
    chosen = [row for row in entries() if kind in (None, row[0])]
    for _, path, _, _ in chosen:
        delete(path)
    return sum(row[2] for row in chosen)


def limit() -> int:
    """Return the greatest size of the cache in bytes: `LOOKALIKE_CACHE_BYTES`, or 20 GB."""
    chosen = os.environ.get("LOOKALIKE_CACHE_BYTES", str(LIMIT))
    if not chosen.isdigit():
        raise LookalikeError(f"LOOKALIKE_CACHE_BYTES is `{chosen}`; it must be a whole number of bytes.")
    return int(chosen)


def trim() -> int:
    """Delete the least recently used artifacts until the cache is within its limits; return the bytes freed.

    Folders used in the last ten minutes, and those that a process holds, are kept: they may be read now.
    """
    files.clean_folder(folders.cache_home())  # what kills left
    rows, freed, now = entries(), 0, time.time()
    with _guard:
        _written["bytes"] = 0
    bounds: list[tuple[str | None, int]] = [*KIND_LIMITS.items(), (None, limit())]
    for kind, bound in bounds:
        own = [row for row in rows if kind in (None, row[0]) and row[1].name[0] != "."]  # else it is being written
        total = sum(row[2] for row in own)
        if total <= bound:
            continue
        for row in own:
            if total <= bound * 9 // 10:  # some room, so that not every further one trims again
                break
            if row[1].is_dir() and abs(now - row[3]) < _IN_USE:  # one from the future: the clock was set back
                continue
            if not _delete_unheld(row[1]):
                continue
            rows.remove(row)
            total, freed = total - row[2], freed + row[2]
    return freed


def _delete_unheld(path: Path) -> bool:
    """Delete an artifact unless a process holds it."""
    try:
        with in_use(path, "", alone=True) if path.is_dir() else contextlib.nullcontext():
            delete(path)
    except (Locked, FileNotFoundError):
        return False
    return True


def describe() -> str:
    """Return size and location of the cache as a short text."""
    return f"{files.format_bytes(sum(row[2] for row in entries()))} in {folders.cache_home()}"
