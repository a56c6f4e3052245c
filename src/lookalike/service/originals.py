"""Whole images by row id: as they are in the indexed folder, or without what they tell beside their pixels."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote

from fastapi import Request, Response

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.service.errors import Problem
from lookalike.service.limits import opened
from lookalike.service.open_index import Live
from lookalike.store import Record

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
