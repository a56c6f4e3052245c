"""Image files over HTTP: cached thumbnails, and originals with or without their metadata."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import Request, Response

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.searching import Index
from lookalike.searching.locate import path_key
from lookalike.searching.payload import payload_box
from lookalike.service.decode_child import is_isolated, original_in_child
from lookalike.service.http_errors import Problem, answered_with
from lookalike.service.limits import open_image
from lookalike.store import Condition, Record

if TYPE_CHECKING:
    from lookalike.service.open_index import OpenIndex

log = logging.getLogger("lookalike.service")
SIDES = (96, 256, 512, 1024)
CONTENT_ID = re.compile(r"[0-9a-f]{16,64}")
SUFFIXES = {"image/jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "image/png": (".png", ".apng")}


class Thumbnails:
    """Thumbnails by content id, made on first use and kept in the artifact cache."""

    def __init__(self, index: Index) -> None:
        self.index, self.group = index, path_key(index.path)  # one for each index, so that `purge` finds all of them

    def get(self, content: str, side: int) -> bytes:
        """A JPEG from the cache, or made now; `Problem` 404 if the image is not in the index or cannot be opened."""
        record, path = self._find(content, side)
        return artifacts.read(path) or self._make(record, path, side)

    def cached(self, content: str, side: int) -> bytes | None:
        """A thumbnail from the cache, or None."""
        return artifacts.read(self._find(content, side)[1])

    def _find(self, content: str, side: int) -> tuple[Record, Path]:
        if side not in SIDES or not CONTENT_ID.fullmatch(content):
            raise Problem(404, f"There is no such thumbnail; sides are {', '.join(map(str, SIDES))}.")
        where = [Condition("content_id", (content,))]
        record = next((r for part in self.index.store.scan(where=where, batch=1) for r in part), None)
        if record is None:  # even if it is cached: images that left the index are not shown
            raise Problem(404, "This image is not in the index.")
        return record, artifacts.artifact("thumbs", [content, side], group=self.group)

    def _make(self, record: Record, path: Path, side: int) -> bytes:
        from lookalike.data import thumbnail

        with answered_with(404), open_image(self.index, record) as data:
            jpeg = thumbnail(data, side, box=payload_box(record.payload))
        try:
            artifacts.write(path, jpeg)
        except (LookalikeError, OSError) as error:  # a full or read-only disk: it is made again next time
            log.warning("a thumbnail could not be stored", extra={"reason": str(error)})
        return jpeg


def original(request: Request, live: OpenIndex, name: str, *, keep_metadata: bool) -> Response:
    """An image as it is or without metadata, or 304; `Problem` 404 or 415 if it cannot be opened or decoded."""
    from lookalike.data.decoding import image_size
    from lookalike.data.strip_metadata import media_type, without_metadata

    record = live.record(name)
    with answered_with(404, unreadable=415), open_image(live.index, record) as data:
        etag = f'"{hash_bytes(data)}-{"whole" if keep_metadata else "bare"}"'
        headers = {"Cache-Control": "private, no-cache", "ETag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        if keep_metadata:
            body, media = data, media_type(data)
        else:
            isolated = is_isolated(data, math.prod(image_size(data)))
            body, media = original_in_child(data) if isolated else without_metadata(data)
    path = PurePosixPath(str(record.payload.get("path", record.id)))
    suffixes = SUFFIXES.get(media, (path.suffix.lower(),))
    file_name = path.name if path.suffix.lower() in suffixes else f"{path.stem}{suffixes[0]}"
    headers["Content-Disposition"] = f"inline; filename*=UTF-8''{quote(file_name, safe='')}"
    return Response(body, media_type=media, headers=headers)
