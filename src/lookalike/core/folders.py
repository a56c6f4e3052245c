"""Folders of the user: data, caches and runs. Nothing is ever written into a folder of images."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, format_bytes

# Caches beyond this are trimmed, least recently used first; LOOKALIKE_CACHE_BYTES changes it.
CACHE_BYTES = 20_000_000_000


def home() -> Path:
    """Return the folder of indexes and keys: `LOOKALIKE_HOME`, or the platform's user data folder."""
    chosen = os.environ.get("LOOKALIKE_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("lookalike", False))


_TEMPORARY: list[Path] = []


@contextlib.contextmanager
def temporary_cache() -> Iterator[None]:
    """Use an empty cache for the block, and delete it."""
    with tempfile.TemporaryDirectory(prefix="lookalike-cache-") as folder:
        _TEMPORARY.append(Path(folder))
        try:
            yield
        finally:
            _TEMPORARY.pop()


def cache_home() -> Path:
    """Return the folder of all caches: below `LOOKALIKE_HOME`, or the platform's user cache folder."""
    if _TEMPORARY:
        return _TEMPORARY[-1]
    chosen = os.environ.get("LOOKALIKE_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute() / "cache"
    return Path(platformdirs.user_cache_dir("lookalike", False))


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can read."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name != "nt":
            path.chmod(0o700)
    return path


def indexes() -> Path:
    """Return the folder of the indexes, created if needed."""
    return private_folder(home() / "indexes")


def cache(kind: str) -> Path:
    """Return the cache folder of one kind (`pixels`, `features`, `audits`, ...), created if needed."""
    private_folder(cache_home())
    return private_folder(cache_home() / kind)


def runs() -> Path:
    """Return the folder of new runs, `./runs`."""
    return Path("runs").absolute()


def touch(entry: Path) -> None:
    """Mark a cache entry as used now; the least recently used ones are trimmed first."""
    try:
        os.utime(entry)
    except OSError:
        return  # a read-only cache still serves


def last_used(entry: Path) -> float:
    """Return when an entry was last written or touched; 0 if another process has trimmed it."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def disk_usage(path: Path) -> int:
    """Return the size of a file or folder in bytes."""
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            total += file.lstat().st_size
    return total


def cache_entries() -> list[tuple[str, Path, int, float]]:
    """Return kind, path, size and time of last use of every cache entry, oldest first."""
    rows = []
    if cache_home().is_dir():
        for kind in sorted(p for p in cache_home().iterdir() if p.is_dir()):
            rows += [(kind.name, e, disk_usage(e), last_used(e)) for e in kind.iterdir()]
    return sorted(rows, key=lambda row: row[3])


def clear_cache(kind: str | None = None) -> int:
    """Delete the cache entries of one kind, or all; return the number of bytes freed."""
    freed = 0
    for name, entry, count, _ in cache_entries():
        if kind in (None, name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
            freed += count
    return freed


def cache_limit() -> int:
    """Return the greatest size of the cache in bytes: `LOOKALIKE_CACHE_BYTES`, or 20 GB."""
    chosen = os.environ.get("LOOKALIKE_CACHE_BYTES", str(CACHE_BYTES))
    if not chosen.isdigit():
        raise LookalikeError(f"LOOKALIKE_CACHE_BYTES is `{chosen}`; it must be a whole number of bytes.")
    return int(chosen)


def trim_cache(limit: int | None = None) -> int:
    """Delete least recently used cache entries until the cache is within its limit.

    Entries used in the last ten minutes are kept: another process may be reading them.

    Args:
        limit: Greatest size in bytes; `cache_limit()` by default.

    Returns:
        The number of bytes freed.
    """
    limit = cache_limit() if limit is None else limit
    rows = cache_entries()
    total = sum(row[2] for row in rows)
    freed = 0
    for _, entry, count, used in rows:
        if total - freed <= limit:
            break
        if time.time() - used < 600:
            continue
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        freed += count
    return freed


_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afpfs", "ncpfs", "9p", "ceph", "glusterfs"}


def network_drive(path: Path) -> str | None:
    """Return the file system's name if `path` is on a network drive, where locks are unreliable, or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = path.absolute()
    best = ("", "")
    for line in lines:
        _, mount, kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        if (path == Path(mount) or Path(mount) in path.parents) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1] if best[1] in _NETWORK else None


def refuse_network_drive(path: Path, what: str) -> None:
    """Raise an error if `path` is on a network drive, unless `LOOKALIKE_ALLOW_NETWORK_DRIVE` is set."""
    kind = network_drive(path)
    if kind and not os.environ.get("LOOKALIKE_ALLOW_NETWORK_DRIVE"):
        raise LookalikeError(
            f"`{path}` lies on a network drive ({kind}), where {what} could be damaged: choose a local folder, "
            "or set LOOKALIKE_ALLOW_NETWORK_DRIVE=1 if you are its only user."
        )


def describe_cache() -> str:
    """Return size and location of the cache as a short text."""
    total = sum(row[2] for row in cache_entries())
    return f"{format_bytes(total)} in {cache_home()}"
