"""Where things go: nothing is ever written into an image folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import platformdirs

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, format_bytes

# Caches beyond this are trimmed, least recently used first; LOOKALIKE_CACHE_BYTES changes it.
CACHE_BYTES = 20_000_000_000


def home() -> Path:
    """The folder of indexes, keys and caches: `LOOKALIKE_HOME`, else the platform's user folder."""
    chosen = os.environ.get("LOOKALIKE_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("lookalike", False))


def cache_home() -> Path:
    chosen = os.environ.get("LOOKALIKE_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute() / "cache"
    return Path(platformdirs.user_cache_dir("lookalike", False))


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can read."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name != "nt":
            path.chmod(0o700)
    return path


def indexes() -> Path:
    return private_folder(home() / "indexes")


def cache(kind: str) -> Path:
    """The cache folder of one kind (`pixels`, `features`, `runtimes`, `thumbs`, `scans`)."""
    private_folder(cache_home())
    return private_folder(cache_home() / kind)


def runs() -> Path:
    return Path("runs").absolute()


def touch(entry: Path) -> None:
    """Mark a cache entry as used now, for the trimming order."""
    try:
        os.utime(entry)
    except OSError:
        return  # a read-only cache still serves


def last_used(entry: Path) -> float:
    """When an entry was written or touched last; 0 if it is gone, as others may trim what they share with us."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def disk_usage(path: Path) -> int:
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            total += file.lstat().st_size
    return total


def cache_entries() -> list[tuple[str, Path, int, float]]:
    """(kind, entry, bytes, last use) of everything cached, oldest first."""
    rows = []
    if cache_home().is_dir():
        for kind in sorted(p for p in cache_home().iterdir() if p.is_dir()):
            rows += [(kind.name, e, disk_usage(e), last_used(e)) for e in kind.iterdir()]
    return sorted(rows, key=lambda row: row[3])


def clear_cache(kind: str | None = None) -> int:
    """Delete what is cached, of one kind or all of it; the number of bytes freed."""
    freed = 0
    for name, entry, count, _ in cache_entries():
        if kind in (None, name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
            freed += count
    return freed


def cache_limit() -> int:
    chosen = os.environ.get("LOOKALIKE_CACHE_BYTES", str(CACHE_BYTES))
    if not chosen.isdigit():
        raise LookalikeError(f"LOOKALIKE_CACHE_BYTES is `{chosen}`; it must be a whole number of bytes.")
    return int(chosen)


def trim_cache(limit: int | None = None) -> int:
    """Bring the cache under its cap, least recently used entries first; the bytes freed.

    Entries used in the last ten minutes stay: another process may be reading them.
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
    """The file system's name if `path` lies on a network drive, where locks cannot be trusted."""
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
    kind = network_drive(path)
    if kind and not os.environ.get("LOOKALIKE_ALLOW_NETWORK_DRIVE"):
        raise LookalikeError(
            f"`{path}` lies on a network drive ({kind}), where {what} could be damaged: choose a local folder, "
            "or set LOOKALIKE_ALLOW_NETWORK_DRIVE=1 if you are its only user."
        )


def describe_cache() -> str:
    total = sum(row[2] for row in cache_entries())
    return f"{format_bytes(total)} in {cache_home()}"
