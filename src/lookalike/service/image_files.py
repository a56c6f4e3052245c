"""Small images, made when first asked for and kept in a bounded cache by the content they show."""

from __future__ import annotations

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
from lookalike.service.limits import opened
from lookalike.store import Condition, Record

if TYPE_CHECKING:
    from lookalike.service.open_index import Live

SIDES = (96, 256, 512, 1024)
HASH = re.compile(r"[0-9a-f]{16,64}")
LIMIT = 1_000_000_000


class Thumbs:
    def __init__(self, index: Index, *, limit: int = LIMIT) -> None:
        self.index, self.limit = index, limit
        self.all = folders.cache("thumbs")
        self.folder = self.all / path_key(index.path)  # one for each index, so that `purge` finds all of them
        self._guard = threading.Lock()
        self._bytes: int | None = None

    def get(self, content: str, side: int) -> bytes:
        """From the cache, or made now."""
        record, path = self._find(content, side)
        return _read(path) or self._make(record, path, side)

    def kept(self, content: str, side: int) -> bytes | None:
        """From the cache alone."""
        return _read(self._find(content, side)[1])

    def _find(self, content: str, side: int) -> tuple[Record, Path]:
        if side not in SIDES or not HASH.fullmatch(content):
            raise Problem(404, f"There is no such image; sides are {', '.join(map(str, SIDES))}.")
        record = next((r for part in self.index.store.scan(where=_shows(content), batch=1) for r in part), None)
        if record is None:  # also when it is cached: what left the index is not shown any more
            raise Problem(404, "This image is not in the index.")
        return record, self.folder / content[:2] / f"{content}-{side}.jpg"

    def _make(self, record: Record, path: Path, side: int) -> bytes:
        from lookalike.data import thumbnail

        try:
            with opened(self.index, record) as data:
                jpeg = thumbnail(data, side, box=payload_box(record.payload))
        except Problem:
            raise
        except LookalikeError as error:
            raise Problem(404, str(error)) from error
        write_bytes(path, jpeg, private=True)
        folders.touch(self.folder)
        self._grow(len(jpeg))
        return jpeg

    def _grow(self, count: int) -> None:
        """Keep what all indexes have under the limit: over it, the oldest fifth goes."""
        with self._guard:
            if self._bytes is None:
                self._bytes = folders.size_of(self.all)
            else:
                self._bytes += count
            if self._bytes > self.limit:
                files: list[Path] = sorted(self.all.glob("**/*.jpg"), key=folders.last_used)
                for path in files[: 1 + len(files) // 5]:
                    path.unlink(missing_ok=True)
                self._bytes = folders.size_of(self.all)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _shows(content: str) -> list[Condition]:
    return [Condition("content_id", (content,))]


ENDINGS = {"image/jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "image/png": (".png", ".apng")}


def original(request: Request, live: Live, name: str, *, keep_metadata: bool) -> Response:
    from lookalike.data import UnreadableImage
    from lookalike.data.strip_metadata import media_type, without_metadata

    record, as_it_is = live.record(name), "whole" if keep_metadata else "bare"
    try:
        with opened(live.index, record) as data:
            mark = f'"{hash_bytes(data)}-{as_it_is}"'
            headers = {"Cache-Control": "private, no-cache", "ETag": mark}
            if request.headers.get("if-none-match") == mark:
                return Response(status_code=304, headers=headers)
            body, media = (data, media_type(data)) if keep_metadata else without_metadata(data)
    except Problem:
        raise
    except UnreadableImage as error:
        raise Problem(415, str(error)) from error
    except LookalikeError as error:
        raise Problem(404, str(error)) from error
    headers["Content-Disposition"] = f"inline; filename*=UTF-8''{quote(_name(record, media), safe='')}"
    return Response(body, media_type=media, headers=headers)


def _name(record: Record, media: str) -> str:
    """The file's own name, with the ending of what it has become."""
    name = PurePosixPath(str(record.payload.get("path", record.id)))
    endings = ENDINGS.get(media)
    return name.name if endings is None or name.suffix.lower() in endings else f"{name.stem}{endings[0]}"
