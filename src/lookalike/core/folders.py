"""Folders of the user: data, caches and runs. Nothing is ever written into a folder of images."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors


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
    if os.environ.get("LOOKALIKE_HOME"):
        return home() / "cache"
    return Path(platformdirs.user_cache_dir("lookalike", False))


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can read."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name != "nt" and path.stat().st_mode & 0o777 != 0o700:  # nothing is written to a read-only disk
            path.chmod(0o700)
    return path


def indexes() -> Path:
    """Return the folder of the indexes, created if needed."""
    return private_folder(home() / "indexes")


def cache(kind: str) -> Path:
    """Return the cache folder of one kind (`pixels`, `features`, `audits`, ...), created if needed."""
    return private_folder(private_folder(cache_home()) / kind)


def runs() -> Path:
    """Return the folder of new runs, `./runs`."""
    return Path("runs").absolute()


def disk_usage(path: Path) -> int:
    """Return the space that a file or folder takes on the disk, in bytes."""
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            status = file.lstat()
            total += min(status.st_size, 512 * getattr(status, "st_blocks", status.st_size))  # holes take no space
    return total


_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afpfs", "ncpfs", "9p", "ceph", "glusterfs"}


def network_drive(path: Path) -> str | None:
    """Return the file system's name if `path` is on a network drive, where locks are unreliable, or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounts = [(line.split(" ")[1].replace("\\040", " "), line.split(" ")[2]) for line in reversed(lines)]
    holding = [(len(mount), kind) for mount, kind in mounts if path.absolute().is_relative_to(mount)]
    kind = max(holding, key=lambda place: place[0], default=(0, ""))[1]  # of equals the last that was mounted
    return kind if kind in _NETWORK else None


def refuse_network_drive(path: Path, what: str) -> None:
    """Raise an error if `path` is on a network drive, unless `LOOKALIKE_ALLOW_NETWORK_DRIVE` is set."""
    kind = network_drive(path)
    if kind and not os.environ.get("LOOKALIKE_ALLOW_NETWORK_DRIVE"):
        raise LookalikeError(
            f"`{path}` lies on a network drive ({kind}), where {what} could be damaged: choose a local folder, "
            "or set LOOKALIKE_ALLOW_NETWORK_DRIVE=1 if you are its only user."
        )
