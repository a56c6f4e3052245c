"""Files in buckets (`s3://`, `gs://`) through pyarrow's filesystems, with the methods of `Path` that readers use.

Credentials come from the usual variables and files alone (`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `~/.aws`, the machine's
role; `GOOGLE_APPLICATION_CREDENTIALS`), the server from `AWS_ENDPOINT_URL`. Nothing is copied to this machine but what
is read. An object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from lookalike.core.errors import LookalikeError, Unavailable

SCHEMES = ("s3", "gs")
ATTEMPTS = 5  # of a request, with growing pauses between them: about ten seconds
TIMEOUT = 60.0  # seconds a request may last; connecting 10
SHARED_SECONDS = 10  # for which an object of many images stays open


def is_url(source: object) -> bool:
    """Return whether a source or destination lies in a bucket.

    Args:
        source: A path, a URL, or anything else.

    Example:
        >>> is_url("s3://bucket/photos"), is_url("photos")
        (True, False)
    """
    return isinstance(source, RemotePath) or (isinstance(source, str) and re.match(r"(s3|gs)://", source) is not None)


def location(source: str | os.PathLike[str]) -> Path:
    """Return a path, or the `RemotePath` of a URL, which has the same methods as far as readers use them.

    Args:
        source: A path or URL.
    """
    if is_url(source) and not isinstance(source, RemotePath):
        return cast(Path, RemotePath(str(source)))
    return cast(Path, source) if isinstance(source, RemotePath) else Path(source)


@functools.cache
def _filesystem(scheme: str, bucket: str, endpoint: str) -> Any:
    from pyarrow import fs

    try:
        if scheme == "gs":
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=TIMEOUT))
        options: dict[str, Any] = {}
        if endpoint:
            parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
            options = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            region = "us-east-1" if endpoint else fs.resolve_s3_region(bucket)
        return fs.S3FileSystem(
            **options, region=region, allow_delayed_open=True, connect_timeout=10, request_timeout=TIMEOUT,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"The bucket `{bucket}` cannot be reached: {_reason(error)}.") from None


def _reason(error: BaseException) -> str:
    """What a server says, in one line and without request ids."""
    text = str(error).partition("\n")[0]
    return re.split(r"\. Detail:| \(?Request ID|, request id", text)[0].strip().rstrip(".")


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object", url) from None
    except OSError as error:
        raise Unavailable(f"`{url}` cannot be read or written: {_reason(error)}.") from None


class Tree(dict[str, tuple[int, int]]):
    """Size and time of files by URL."""

    @functools.cached_property
    def folders(self) -> set[str]:
        """URLs of all folders that hold files."""
        out: set[str] = set()
        for name in self:
            while (name := name.rpartition("/")[0]) not in out and not name.endswith("/"):
                out.add(name)
        return out


class RemotePath:
    """A file or folder in a bucket.

    A folder's files are listed once; the paths below it answer from that list.

    Args:
        url: `s3://BUCKET/KEY` or `gs://BUCKET/KEY`.
        tree: The files below the folder that was listed.

    Example:
        >>> path = RemotePath("s3://bucket/photos") / "a" / "1.jpg"
        >>> path.name, str(path.parent)
        ('1.jpg', 's3://bucket/photos/a')
    """

    def __init__(self, url: str, tree: Tree | None = None) -> None:
        self.scheme, _, rest = url.partition("://")
        self.pure = PurePosixPath(rest.strip("/"))
        self.tree = tree
        if self.scheme not in SCHEMES or not rest.strip("/") or ".." in self.pure.parts:
            raise LookalikeError(f"`{url}` is no place in a bucket: write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.")

    # --- the name ---

    def __str__(self) -> str:
        return f"{self.scheme}://{self.pure}"

    __fspath__ = as_posix = as_uri = __str__

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: RemotePath) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        if is_url(name):
            return RemotePath(str(name))
        return RemotePath(f"{self.scheme}://{self.pure / os.fspath(name).lstrip('/')}", self.tree)

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "stem", "suffix", "parts"):
            return getattr(self.pure, name)
        raise AttributeError(name)

    @property
    def parent(self) -> RemotePath:
        return RemotePath(f"{self.scheme}://{self.pure.parent}", self.tree) if len(self.pure.parts) > 1 else self

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(f"{self.scheme}://{self.pure.with_name(name)}")

    def with_suffix(self, suffix: str) -> RemotePath:
        return RemotePath(f"{self.scheme}://{self.pure.with_suffix(suffix)}")

    def relative_to(self, other: object) -> PurePosixPath:
        return self.pure.relative_to(cast(RemotePath, other).pure)

    def is_relative_to(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.pure.is_relative_to(other.pure)

    def absolute(self) -> RemotePath:
        return self

    resolve = expanduser = absolute

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files below this folder whose path matches."""
        return (path for path in self.rglob("*") if path.relative_to(self).match(pattern))

    # --- what is there ---

    @property
    def _fs(self) -> Any:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return _filesystem(self.scheme, self.pure.parts[0], endpoint)

    def listed(self) -> RemotePath:
        """Return this folder with the list of its files: one request for every thousand."""
        from pyarrow import fs

        with _errors(str(self)):
            entries = self._fs.get_file_info(fs.FileSelector(str(self.pure), recursive=True, allow_not_found=True))
        files = [one for one in entries if one.type == fs.FileType.File]
        paths = [one for one in files if str(PurePosixPath(one.path)) == one.path and ".." not in one.path.split("/")]
        if len(paths) < len(files):
            from lookalike.core.progress import warn

            warn(f"{len(files) - len(paths):,} keys in `{self}` are left out: they have empty parts, `.` or `..`.")
        tree = Tree({f"{self.scheme}://{one.path}": (one.size, one.mtime_ns or 0) for one in paths})
        return RemotePath(str(self), tree)

    def _facts(self) -> tuple[int, int] | None:
        """Size and time of a file, None for a folder or nothing."""
        if self.tree is not None:
            return self.tree.get(str(self))
        with _errors(str(self)):
            info = self._fs.get_file_info(str(self.pure))
        return (info.size, info.mtime_ns or 0) if info.is_file else None

    def stat(self) -> os.stat_result:
        if (facts := self._facts()) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        size, when = facts
        seconds = when // 1_000_000_000
        extra = {"st_mtime_ns": when, "st_ctime_ns": when}
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, seconds, seconds, seconds), extra)

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self._facts() is not None

    def is_dir(self) -> bool:
        from pyarrow import fs

        if self.tree is not None:
            return str(self) in self.tree.folders
        with _errors(str(self)):
            return bool(self._fs.get_file_info(str(self.pure)).type == fs.FileType.Directory)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        tree = self.listed().tree if self.tree is None else self.tree
        for name in sorted(tree or ()):
            if name.startswith(f"{self}/") and (pattern == "*" or PurePosixPath(name).match(pattern)):
                yield RemotePath(name, tree)

    # --- bytes ---

    def open(self, mode: str = "r", encoding: str | None = None, *, shared: bool = False, **options: Any) -> Any:
        """Open the object for reading; what is read is fetched in pieces.

        With `shared`, an object that was opened within the last seconds costs no further request, as it should be for
        one that holds many images.
        """
        with _errors(str(self)):
            moment = int(time.monotonic() / SHARED_SECONDS)
            file = _shared_file(self, moment) if shared else self._fs.open_input_file(str(self.pure))
        buffer = io.BufferedReader(RemoteFile(file, str(self)), 1 << 16)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, **options)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return cast(bytes, file.raw.readall())

    def write_bytes(self, data: bytes) -> int:
        """Write the object in one piece, and check that all of it arrived."""
        self.write_from(io.BytesIO(data))
        return len(data)

    def write_from(self, source: BinaryIO) -> None:
        """Write the object from an open file, and check that all of it arrived; what fails is sent again."""
        for number in range(1, ATTEMPTS + 1):
            try:
                source.seek(0)
                with _errors(str(self)):
                    stream = self._fs.open_output_stream(str(self.pure))
                    shutil.copyfileobj(source, stream, 1 << 23)
                return self._close(stream)
            except Unavailable:
                if number == ATTEMPTS:
                    raise
                time.sleep(0.2 * 2**number)

    def _close(self, stream: Any) -> None:
        """Close what was written to, and check that all of it arrived."""
        with _errors(str(self)):
            count = stream.tell()
            stream.close()
            size = self._fs.get_file_info(str(self.pure)).size
        if size != count:
            raise Unavailable(f"`{self}` arrived with {size or 0:,} of {count:,} bytes.")

    def unlink(self, missing_ok: bool = False) -> None:
        with contextlib.suppress(FileNotFoundError) if missing_ok else contextlib.nullcontext(), _errors(str(self)):
            self._fs.delete_file(str(self.pure))

    def mkdir(self, **options: Any) -> None:
        """Do nothing: buckets have no folders."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Yield a stream; the object appears when the block ends without an error and all of it arrived."""
        with _errors(str(self)):
            stream = self._fs.open_output_stream(str(self.pure))
        try:
            with _errors(str(self)):
                yield stream
            self._close(stream)
        except BaseException:
            with contextlib.suppress(OSError, Unavailable):
                stream.close()  # pyarrow cannot abort: what is there now is half
                self.unlink(missing_ok=True)
            raise


class RemoteFile(io.RawIOBase):
    """An object that is open for reading at any place; several may share what pyarrow opened.

    Args:
        file: pyarrow's file.
        name: Its URL.
    """

    def __init__(self, file: Any, name: str) -> None:
        self.file, self.name = file, name
        self.size, self.position = int(file.size()), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def read_at(self, offset: int, length: int) -> bytes:
        """Return a part, which is one request; less where the object ends."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        with _errors(self.name):
            return cast(bytes, self.file.read_at(length, offset))

    def readall(self) -> bytes:
        data = self.read_at(self.position, self.size)
        self.position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read_at(self.position, len(buffer))
        self.position += len(data)
        buffer[: len(data)] = data
        return len(data)


@functools.lru_cache(maxsize=64)
def _shared_file(path: RemotePath, moment: int) -> Any:
    return path._fs.open_input_file(str(path.pure))


def list_names(folder: Path) -> dict[str, int]:
    """Return size by name of the files directly in a folder; empty where there is none.

    Args:
        folder: A folder here or in a bucket.
    """
    if isinstance(folder, RemotePath):
        from pyarrow import fs

        with _errors(str(folder)):
            infos = folder._fs.get_file_info(fs.FileSelector(str(folder.pure), allow_not_found=True))
        return {one.base_name: one.size for one in infos if one.type == fs.FileType.File}
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except FileNotFoundError:
        return {}


class Mirror:
    """A folder of this machine that follows one in a bucket, such as a run: files travel once after each change.

    Args:
        url: The folder in the bucket.
        folder: Its copy here.
    """

    def __init__(self, url: RemotePath, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.lock = threading.Lock()  # a run's own calls of `send` meet those of `following`
        self.state = folder.with_name(f"{folder.name}.mirror.json")
        self.known: dict[str, list[list[int]]] = {}  # by name: size and time of both copies when they were equal
        if self.state.exists():
            self.known = json.loads(self.state.read_text(encoding="utf-8"))

    def fetch(self) -> None:
        """Bring the copy to what is in the bucket."""
        tree = self.url.listed()
        names = {str(path.relative_to(self.url)): path for path in tree.rglob("*")}
        for name, path in names.items():
            local, now = self.folder / name, list(path._facts() or ())
            if local.exists() and [local_facts(local), now] == self.known.get(name):
                continue
            local.parent.mkdir(parents=True, exist_ok=True)
            part = local.with_name(f".{local.name}.part")
            with path.open("rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 23)
            part.replace(local)
            self.known[name] = [local_facts(local), now]
        for local in self._files():
            if (name := local.relative_to(self.folder).as_posix()) not in names:
                local.unlink()
                self.known.pop(name, None)
        self._write_state()

    def send(self) -> None:
        """Bring the bucket to what is in the copy; a file that changes meanwhile goes the next time."""
        with self.lock:
            self._send()

    def _send(self) -> None:
        changed = {}
        for local in self._files():
            name, now = local.relative_to(self.folder).as_posix(), local_facts(local)
            if self.known.get(name, [None])[0] != now:
                (self.url / name).write_bytes(local.read_bytes())
                changed[name] = now
        gone = [name for name in self.known if not (self.folder / name).exists()]
        for name in gone:
            (self.url / name).unlink(missing_ok=True)
            del self.known[name]
        if changed:
            tree = self.url.listed().tree or Tree()
            self.known |= {name: [now, list(tree[str(self.url / name)])] for name, now in changed.items()}
        if changed or gone:
            self._write_state()

    @contextlib.contextmanager
    def following(self, seconds: float = 30.0) -> Iterator[None]:
        """Send what changes while the block runs, and the rest at its end, however it ends."""
        from lookalike.core.progress import warn

        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(seconds):
                try:
                    self.send()
                except FileNotFoundError:  # a file that went meanwhile
                    continue
                except Exception as error:  # the next time, or the end, may be better
                    warn(f"`{self.url}` is behind its copy `{self.folder}`: {_reason(error)}.")

        thread = threading.Thread(target=follow, name="mirror", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.send()

    def _files(self) -> list[Path]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in files if not path.name.startswith("."))

    def _write_state(self) -> None:
        part = self.state.with_suffix(".part")
        part.write_text(json.dumps(self.known), encoding="utf-8")
        part.replace(self.state)


def local_facts(path: Path) -> list[int]:
    """Return size and time of a file: it has changed where they have."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
