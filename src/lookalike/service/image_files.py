"""Image files over HTTP: cached thumbnails, and originals with or without their metadata."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import Request, Response

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, write_bytes
from lookalike.searching import Index
from lookalike.searching.locate import path_key
from lookalike.searching.payload import payload_box
from lookalike.service.http_errors import Problem
from lookalike.service.limits import open_image
from lookalike.store import Condition, Record

if TYPE_CHECKING:
    from lookalike.service.open_index import OpenIndex

log = logging.getLogger("lookalike.service")
SIDES = (96, 256, 512, 1024)
CONTENT_ID = re.compile(r"[0-9a-f]{16,64}")
CACHE_BYTES = 1_000_000_000
SUFFIXES = {"image/jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "image/png": (".png", ".apng")}


class Thumbnails:
    """Thumbnails by content id, made on first use and kept in a bounded cache."""

    def __init__(self, index: Index, *, limit: int = CACHE_BYTES) -> None:
        self.index, self.limit = index, limit
        self.cache = folders.cache_home() / "thumbs"
        self.folder = self.cache / path_key(index.path)  # one for each index, so that `purge` finds all of them
        self._lock = threading.Lock()
        self._bytes: int | None = None

    def get(self, content: str, side: int) -> bytes:
        """A JPEG from the cache, or made now; `Problem` 404 if the image is not in the index or cannot be opened.

        Args:
            content: Content id of the image.
            side: Longer side in pixels, one of `SIDES`.
        """
        record, path = self._find(content, side)
        return _read(path) or self._make(record, path, side)

    def cached(self, content: str, side: int) -> bytes | None:
        """A thumbnail from the cache, or None."""
        return _read(self._find(content, side)[1])

    def _find(self, content: str, side: int) -> tuple[Record, Path]:
        if side not in SIDES or not CONTENT_ID.fullmatch(content):
            raise Problem(404, f"There is no such thumbnail; sides are {', '.join(map(str, SIDES))}.")
        where = [Condition("content_id", (content,))]
        record = next((r for part in self.index.store.scan(where=where, batch=1) for r in part), None)
        if record is None:  # even if it is cached: images that left the index are not shown
            raise Problem(404, "This image is not in the index.")
        return record, self.folder / content[:2] / f"{content}-{side}.jpg"

    def _make(self, record: Record, path: Path, side: int) -> bytes:
        from lookalike.data import thumbnail

        try:
            with open_image(self.index, record) as data:
                jpeg = thumbnail(data, side, box=payload_box(record.payload))
        except Problem:
            raise
        except LookalikeError as error:
            raise Problem(404, str(error)) from error
        try:
            folders.cache("thumbs")
            write_bytes(path, jpeg, private=True)
            folders.touch(self.folder)
            self._bound_cache(len(jpeg))
        except (LookalikeError, OSError) as error:  # a full or read-only disk: it is made again next time
            log.warning("a thumbnail could not be stored", extra={"reason": str(error)})
        return jpeg

    def _bound_cache(self, added: int) -> None:
        """Keep the cache of all indexes below the limit: above it, the oldest fifth is deleted."""
        with self._lock:
            if self._bytes is None:
                self._bytes = folders.disk_usage(self.cache)
            else:
                self._bytes += added
            if self._bytes > self.limit:
                files: list[Path] = sorted(self.cache.glob("**/*.jpg"), key=folders.last_used)
                for path in files[: 1 + len(files) // 5]:
                    path.unlink(missing_ok=True)
                self._bytes = folders.disk_usage(self.cache)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def original(request: Request, live: OpenIndex, name: str, *, keep_metadata: bool) -> Response:
    """Answer a request for an original image; `Problem` 404 or 415 if it cannot be opened or decoded.

    Args:
        request: The request; `If-None-Match` is honored.
        live: The open index.
        name: Row id of the image.
        keep_metadata: Send the file as it is, else without EXIF and other metadata.
    """
    from lookalike.data import UnreadableImage
    from lookalike.data.strip_metadata import media_type, without_metadata

    record = live.record(name)
    try:
        with open_image(live.index, record) as data:
            etag = f'"{hash_bytes(data)}-{"whole" if keep_metadata else "bare"}"'
            headers = {"Cache-Control": "private, no-cache", "ETag": etag}
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=headers)
            body, media = (data, media_type(data)) if keep_metadata else without_metadata(data)
    except Problem:
        raise
    except UnreadableImage as error:
        raise Problem(415, str(error)) from error
    except LookalikeError as error:
        raise Problem(404, str(error)) from error
    headers["Content-Disposition"] = f"inline; filename*=UTF-8''{quote(_file_name(record, media), safe='')}"
    return Response(body, media_type=media, headers=headers)


def _file_name(record: Record, media: str) -> str:
    """The file's own name, with the suffix of the type that is sent."""
    name = PurePosixPath(str(record.payload.get("path", record.id)))
    suffixes = SUFFIXES.get(media)
    return name.name if suffixes is None or name.suffix.lower() in suffixes else f"{name.stem}{suffixes[0]}"
