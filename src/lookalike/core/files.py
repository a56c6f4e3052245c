"""Files that are written completely or not at all (write beside, fsync, rename), hashes, and format numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from lookalike.core.errors import DiskError, LookalikeError
from lookalike.core.storage import RemoteFile, RemotePath, is_url, location

# The number each kind of file is written with. Raise it with every change that an older version would misread.
FORMAT_VERSIONS: dict[str, int] = {
    "model": 1, "run": 1, "index": 3, "checkpoint": 1, "cache": 1, "splits": 1, "curve": 2, "table": 1, "map": 1,
    "backup": 2, "adaptation": 1, "vectors": 1,
}  # fmt: skip
MAX_BYTES = 1_000_000_000  # of an image file
_COLUMNS = 509  # words in a row of a checksum
MAX_SPARSE = 50_000_000  # bytes of a file with holes, which takes little of a disk and much memory
MAX_TAR_READ = 16_000_000  # bytes that are read of a tar archive at once
MAX_JSON = 200_000_000  # bytes of a JSON document
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only file system or missing permissions into an error message for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DiskError(f"`{path}` cannot be written to ({error.strerror}).") from error
        raise


def _full(path: Path) -> DiskError:
    return DiskError(f"The disk that holds `{path}` is full; nothing half-written was left.")


@contextlib.contextmanager
def _foreign_writers(path: Path) -> Iterator[None]:
    """Libraries that write files by themselves have errors of their own for a full disk, and torch has none at all."""
    try:
        yield
    except (LookalikeError, OSError):
        raise
    except Exception as error:
        if "No space left" in str(error) or free_bytes(path.parent) < 1 << 16:
            raise _full(path) from error
        raise


def reserve_space(path: Path, count: int) -> None:
    """Allocate a file that will be written through a memory map, where a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        with disk_errors(path), path.open("rb+") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, count)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # a file system that cannot
                    raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_file(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder unless another process has; the lock ends with its process, however that ends."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _part_file(path: Path) -> tuple[int | None, Path]:
    """Open the temporary file beside `path`: the one that a killed process left, unless somebody is writing to it."""
    if os.name == "nt":  # an open file cannot be renamed there
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".part")
        os.close(handle)
        return None, Path(name)
    part = path.with_name(f".{path.name[:64]}.part")
    with contextlib.suppress(OSError):  # a link, pipe or folder in its place, or whatever `mkstemp` finds too
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        status = os.fstat(handle)
        own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if own and lock_file(handle) and part.exists() and os.path.samestat(status, part.lstat()):
            os.ftruncate(handle, 0)
            return handle, part
        os.close(handle)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".part")
    lock_file(handle)
    return handle, Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def atomic_file(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces it if the block ends without an error.

    Args:
        path: The final file; its folder is created. One in a bucket is written here first.
        private: Whether only the owner may read it.
    """
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
            part = Path(folder, "part")
            yield part
            with part.open("rb") as source:
                location(path).write_from(source)  # type: ignore[attr-defined]
        return
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = _part_file(path)
        try:
            with _foreign_writers(path):
                yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            if not private and os.name != "nt":
                part.chmod(0o666 & ~_umask())
            part.replace(path)
            sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)


@contextlib.contextmanager
def atomic_folder(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which replaces it if the block ends without an error.

    Folders cannot be exchanged in one step on every system: the old one is moved aside first, and a kill between
    the two renames leaves it as `.NAME.old`, which `recover_folder` restores.

    Args:
        path: The final folder.
        private: Whether only the owner may read it.
    """
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(path)
        old = path.parent / f".{path.name}.old"
        with temporary_folder(path) as part:
            with _foreign_writers(path):
                yield part
            mask = None if private or os.name == "nt" else _umask()
            if mask is not None:
                part.chmod(0o777 & ~mask)
            for folder, _, names in os.walk(part):
                for name in names:
                    with Path(folder, name).open("rb+") as file:
                        os.fsync(file.fileno())
                    if mask is not None:  # some libraries write files that only their owner can read
                        Path(folder, name).chmod(0o666 & ~mask)
                sync_folder(Path(folder))
            if path.exists():
                path.rename(old)
            part.rename(path)
            sync_folder(path.parent)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; those that killed processes left are deleted first."""
    _remove_stale(leftover_parts(path))
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".part"))
    handle = os.open(part, os.O_RDONLY) if os.name != "nt" else None
    if handle is not None:
        lock_file(handle)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def leftover_parts(path: str | Path) -> list[Path]:
    """Return temporary folders of `atomic_folder` for `path`, left by kills or still being filled."""
    path = Path(path)
    mine = re.compile(re.escape(f".{path.name[:64]}.") + r"\w+\.part")
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    return [part for part in beside if mine.fullmatch(part.name) and part.is_dir()]


def clean_folder(folder: Path) -> None:
    """Delete the temporary files and folders below a folder whose process was killed."""
    _remove_stale(list(folder.rglob(".*.part")))


def _remove_stale(parts: Iterable[Path]) -> None:
    for part in parts:
        with contextlib.suppress(OSError):
            handle = os.open(part, _READ)
            try:
                # A new one is not locked yet. One from the future is of a time before the clock was set back.
                if abs(time.time() - part.stat().st_mtime) > 1 and lock_file(handle):
                    shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink()
            finally:
                os.close(handle)


def recover_folder(path: str | Path) -> None:
    """Restore the old folder after a kill between the two renames of `atomic_folder`."""
    path = Path(path)
    old = path.parent / f".{path.name}.old"
    if old.exists():
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


def write_bytes(path: str | Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically."""
    if is_url(path):
        location(path).write_bytes(data)
        return
    with atomic_file(path, private=private) as part:
        part.write_bytes(data)


def write_text(path: str | Path, text: str, *, private: bool = False) -> None:
    """Write a text file atomically, in UTF-8."""
    write_bytes(path, text.encode(), private=private)


class FileTooLarge(OSError):
    """A file with more bytes than its reader takes."""


def open_regular(path: str | os.PathLike[str], *, folder: int | None = None, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; a FIFO, device or socket is an `OSError` instead of an endless wait.

    Args:
        path: The file.
        folder: Handle of the folder that `path` is relative to.
        follow: Whether `path` may be a link.
    """
    if isinstance(path, RemotePath):
        return path.open("rb")
    handle = os.open(path, _READ | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is a directory" if stat.S_ISDIR(mode) else "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most so many bytes."""
    with open_regular(path) as file:
        return read_part(file, limit=limit)


def open_inside(root: Path, name: str) -> BinaryIO:
    """Open a regular file below a folder, whatever is exchanged for a link meanwhile.

    Every part of the name is opened relative to the one before, and links are read and checked here instead of
    followed; those that stay inside the folder work.

    Args:
        root: The folder.
        name: Path of the file, relative to the folder.

    Raises:
        LookalikeError: The file is outside the folder.
        OSError: It cannot be opened, or is not a regular file.
    """
    if os.open not in os.supports_dir_fd:  # Windows, where only administrators make links
        return open_regular(root.joinpath(*_parts_inside(root, str(root / name))))
    parts, links = list(reversed(_parts_inside(root, name))), 0
    folders = [os.open(root, _READ)]
    try:
        while parts:
            part = parts.pop()
            if part == "..":
                if len(folders) == 1:
                    raise LookalikeError(f"`{name}` is outside its folder.")
                os.close(folders.pop())
                continue
            try:
                if not parts:
                    return open_regular(part, folder=folders[-1], follow=False)
                folders.append(os.open(part, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folders[-1]))
            except OSError as error:
                try:
                    target = os.readlink(part, dir_fd=folders[-1])
                except OSError:
                    raise error from None
                links += 1
                if links > 40:
                    raise
                if Path(target).is_absolute():
                    while len(folders) > 1:
                        os.close(folders.pop())
                parts += reversed(_parts_inside(root, target))
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    finally:
        for folder in folders:
            os.close(folder)


def _parts_inside(root: Path, name: str) -> tuple[str, ...]:
    """The parts of a path; an absolute one is made relative to the folder, or refused."""
    if not Path(name).is_absolute():
        return PurePath(name).parts
    try:
        return Path(name).resolve().relative_to(root.resolve()).parts
    except ValueError:
        raise LookalikeError(f"`{name}` is outside its folder.") from None


def read_part(file: BinaryIO, *, offset: int = 0, length: int | None = None, limit: int = MAX_BYTES) -> bytes:
    """Read an open file or a part of it.

    Args:
        file: The file.
        offset: Where the part begins.
        length: Bytes of the part; the whole file by default.
        limit: Bytes that are read at most.

    Raises:
        FileTooLarge: There are more bytes than `limit`.
        OSError: The file ends inside the part.
    """
    size = file.seek(0, os.SEEK_END) - offset if length is None else length
    if size > limit:
        raise FileTooLarge(errno.EFBIG, f"the file is larger than {format_bytes(limit)}")
    if isinstance(remote := getattr(file, "raw", None), RemoteFile):
        data = remote.read_at(offset, size)
    else:
        if size > MAX_SPARSE and os.name == "posix" and os.lseek(file.fileno(), offset, os.SEEK_HOLE) < offset + size:
            raise FileTooLarge(errno.EFBIG, "the file is large and has holes")  # it costs nobody anything to make
        file.seek(offset)
        data = file.read(size)
    if length is not None and len(data) != length:
        raise OSError(errno.EIO, "the file ends inside this part")
    return data


class TarReader(io.BufferedReader):
    """A tar archive that is open for `tarfile`, which would read headers of any size that they claim to have."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(open_regular(path).detach())  # type: ignore[attr-defined]

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_TAR_READ:
            raise ValueError("a header is too large")
        return super().read(size)


def to_json(document: Any) -> Any:
    """Convert NumPy values, paths, sets, data classes and objects with `to_json`, as `default` of `json.dumps`."""
    for name in ("to_json", "tolist"):
        if hasattr(document, name):
            return getattr(document, name)()
    if isinstance(document, Path):
        return document.as_posix()
    if isinstance(document, (set, frozenset)):
        return sorted(document)
    if dataclasses.is_dataclass(document):
        return vars(document)
    raise TypeError(f"{type(document).__name__} cannot be written as JSON")


def to_plain(document: Any) -> Any:
    """Return a document as plain JSON values; numbers that are not finite become None."""
    return json.loads(json.dumps(document, default=to_json), parse_constant=lambda _: None)


def write_json(path: str | Path, document: Any, *, private: bool = False) -> None:
    """Write a JSON file atomically; see `to_json` for what it may contain."""
    text = json.dumps(document, indent=1, ensure_ascii=False, default=to_json, allow_nan=False)
    # Bytes of file names that are not UTF-8 are half surrogates in Python: JSON's escape is what this handler writes.
    write_bytes(path, (text + "\n").encode("utf-8", "backslashreplace"), private=private)


def read_json(path: str | Path, what: str = "file", *, mend: str = "") -> Any:
    """Read a JSON document.

    Args:
        path: The file.
        what: What it is, for the error message.
        mend: What to do about a damaged file, as a sentence.

    Raises:
        LookalikeError: The file is missing or damaged.
    """
    path = location(path)
    try:
        return json.loads(read_bytes(path, limit=MAX_JSON))
    except FileNotFoundError:
        raise LookalikeError(f"There is no {what} at `{path}`.") from None
    except OSError as error:
        raise LookalikeError(f"The {what} `{path}` cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError):
        raise LookalikeError(f"The {what} `{path}` is damaged: it is not whole JSON. {mend}".rstrip()) from None


def printable(text: str) -> str:
    """Return text that any stream accepts: bytes of file names that are not UTF-8 appear as %XX."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(f"%{ord(c) & 0xFF:02X}" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def short_path(path: str | Path) -> str:
    """Return a path as a person would type it from the current folder."""
    if is_url(path):
        return str(path)
    path, here = Path(path).absolute(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)


def typed_path(path: str | Path) -> str:
    """Return a path as it is typed in a command, quoted where it must be."""
    return shlex.quote(short_path(path))


def hash_bytes(*parts: bytes | str) -> str:
    """Return a short, stable hash of byte strings or texts: BLAKE2b, 16 bytes, as hex."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def hash_file(path: str | Path) -> str:
    """Return the BLAKE2b hash of a file's contents, 16 bytes, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def checksum(path: str | Path, size: int | None = None) -> str:
    """Return the size of a file and a hash that shows every accidental change, at the speed of the memory.

    It is the hash of the column sums of the file's 64-bit words, in rows of a prime number of words: it sees every
    flipped bit and every misplaced page. Blocks are summed while the processor's cache still holds them: that costs a
    fifth of a CRC, and no page of the file is mapped for it.

    Args:
        path: The file.
        size: Use only so many bytes from its start.
    """
    import numpy as np

    block = np.empty((128, _COLUMNS), np.uint64)
    sums = np.zeros(_COLUMNS, np.uint64)
    with Path(path).open("rb", buffering=0) as file:
        size = left = os.fstat(file.fileno()).st_size if size is None else size
        while left >= block.nbytes and file.readinto(block.data.cast("B")) == block.nbytes:
            sums, left = sums + block.sum(0), left - block.nbytes
        rest = file.read(left)
    whole = len(rest) // (8 * _COLUMNS) * _COLUMNS
    sums += np.frombuffer(rest[: 8 * whole], np.uint64).reshape(-1, _COLUMNS).sum(0)
    return f"{size}-{hash_bytes(sums.tobytes(), rest[8 * whole :])}"


def free_bytes(path: str | Path) -> int:
    """Return the free space on the disk that holds, or will hold, `path`."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_space(path: str | Path, needed: int, what: str) -> None:
    """Raise an error before a long job whose result will not fit on the disk."""
    free = free_bytes(path)
    if needed > free:
        raise LookalikeError(
            f"{what} needs about {format_bytes(needed)}, but only {format_bytes(free)} are free for `{path}`."
        )


def format_bytes(count: float) -> str:
    """Return a number of bytes as people write it, such as `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def stamp(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the format number of its kind in front."""
    return {"format": FORMAT_VERSIONS[kind], "kind": kind, **document}


def check_format(kind: str, document: Any, where: object) -> dict[str, Any]:
    """Return a document of `kind` that this version can read, or raise an error that says why it cannot.

    Args:
        kind: A key of `FORMAT_VERSIONS`.
        document: What was read from disk.
        where: The file or folder, for the error message.

    Returns:
        The document itself.

    Raises:
        LookalikeError: The document has no format number, is of another kind, or of another version.
    """
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise LookalikeError(f"`{where}` is not a lookalike {kind}: it has no format number.")
    if document.get("kind", kind) != kind:
        raise LookalikeError(f"`{where}` is a lookalike {document['kind']}, not {_with_article(kind)}.")
    number, newest = document["format"], FORMAT_VERSIONS[kind]
    what = f"`{where}` is {_with_article(kind)} of format {number}"
    if number > newest:
        raise LookalikeError(f"{what}; this version reads up to {newest}: update lookalike.")
    if number < newest:
        raise LookalikeError(f"{what}, written before the first release: make it again.")
    return document


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
