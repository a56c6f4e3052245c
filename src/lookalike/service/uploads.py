"""Uploads: limits on request bodies, refusal of files that are not images, and the queries kept for links."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from collections import namedtuple
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.database import user_rows
from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes, printable
from lookalike.searching.removal import write_uploads
from lookalike.service.decode_child import BUDGET_PIXELS, TOO_MUCH, cut, decode_in_child, decoding_cost, needs_child
from lookalike.service.encoder import Encoder
from lookalike.service.http_errors import Problem, error_response
from lookalike.service.limits import PIXEL_BUDGET

MAX_IMAGE_PIXELS = 100_000_000
MIN_SIDE = 32  # pixels on the short side of a part
BODY_SECONDS = 30.0  # of silence while a body is sent
MIN_BYTES_PER_SECOND = 20_000  # a client at this speed never times out
MAX_SAVED = 1_000  # saved queries of an index
STORED_SIDE = 512  # longer side in pixels of a saved query
MAX_PENDING = 32  # queries that wait to be written
RETRY_SECONDS = 60.0  # without saving queries after the disk was full or could not be written to
Region = tuple[float, float, float, float]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
log = logging.getLogger("lookalike.service")


class RequestBody:
    """An ASGI `receive` that limits the size of a body and the time a client may be silent.

    Only the time spent waiting for the client counts, not the time of our own work. Once a limit is exceeded,
    `refusal` holds the answer for the client.

    Args:
        receive: The server's `receive`.
        limit: Bytes of the body.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.limit, self.read, self.complete = limit, 0, False
        self.refusal: JSONResponse | None = None
        self._receive, self._seconds_left = receive, BODY_SECONDS

    async def __call__(self) -> MutableMapping[str, Any]:
        if self.complete:
            return await self._receive()
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await self._receive()
        except TimeoutError:
            self.refusal = error_response(408, "The rest of this request did not arrive in time.")
            self.refusal.headers["Connection"] = "close"
            raise HTTPException(408) from None
        size = len(message.get("body", b""))
        self._seconds_left = min(
            BODY_SECONDS, self._seconds_left - (time.monotonic() - start) + size / MIN_BYTES_PER_SECOND
        )
        self.read += size
        self.complete = not message.get("more_body", False)
        if self.read > self.limit:
            self.refusal = error_response(413, too_large(None, self.limit))
            raise HTTPException(413)
        return message

    async def drain(self, max_bytes: int) -> None:
        """Read and discard the rest of the body if it is at most `max_bytes` long."""
        with contextlib.suppress(HTTPException):
            while not self.complete and self.read < max_bytes and self.refusal is None:
                await self()


def too_large(size: int | None, limit: int) -> str:
    """Error message for a body that exceeds the limit; `size` is None where it is not known."""
    what = f"This request has {format_bytes(size)}" if size else "This request is too large"
    return f"{what}; the limit is {format_bytes(limit)}."


def check(data: bytes, name: str, *, limit: int) -> tuple[int, int]:
    """Width and height of an upload; `Problem` if it is no image or too large to decode, by its header alone."""
    from PIL import Image

    from lookalike.data.decoding import UnreadableImage, image_size

    if not data:
        raise Problem(422, f"{_shown(name)} is empty.")
    if len(data) > limit:
        raise Problem(413, f"This image has {format_bytes(len(data))}; the limit is {format_bytes(limit)}.")
    try:
        width, height = image_size(data)
    except UnreadableImage as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise Problem(413, f"This image has far too many pixels; the limit is {MAX_IMAGE_PIXELS:,}.") from None
        raise unreadable(name, error.reason) from None
    limit = round(MAX_IMAGE_PIXELS * width * height / decoding_cost(data, width * height))
    if width * height > limit:
        raise Problem(413, f"This image has {width:,} × {height:,} pixels; the limit is {limit:,} pixels in total.")
    return width, height


def decode_part(
    data: bytes, region: Region | None, side: float, *, within: Sequence[float] | None = None, smallest: int = MIN_SIDE
) -> tuple[np.ndarray, np.ndarray]:
    """Decode an image once, as a whole and a part of it, at a resolution that leaves the part the short side `side`.

    `region` is the part in fractions of the image, or of the box `within` that stands for it; None is the whole.
    `Problem` 422 if the part has fewer pixels than `smallest` on its short side.
    """
    from lookalike.data import decode

    if region is None:
        pixels = decode(data, box=within, min_side=side)
        return pixels, pixels
    x1, y1, x2, y2 = region
    pixels = decode(data, box=within, min_side=max(side, smallest) / min(x2 - x1, y2 - y1))
    part = cut(pixels, region)
    _check_part(part.shape[1], part.shape[0], min(smallest, *pixels.shape[:2]))
    return pixels, part


def _check_part(width: float, height: float, smallest: int) -> None:
    if min(width, height) < smallest:
        raise Problem(422, f"This part is too small to search by; it needs at least {MIN_SIDE} pixels.")


def decode_bounded(
    data: bytes, size: tuple[int, int], region: Region | None, side: float, *, within: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Decode an image of a size as `decode_part` does, in a child process if its format may need much memory."""
    width, height = size
    if within is not None or not needs_child(data, width * height):
        return decode_part(data, region, side, within=within)
    if region is not None:
        x1, y1, x2, y2 = region
        _check_part((x2 - x1) * width, (y2 - y1) * height, min(MIN_SIDE, width, height))
    return decode_in_child(data, region, side, STORED_SIDE)


@contextlib.contextmanager
def decode_upload(
    data: bytes, width: int, height: int, region: Region | None, side: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what `decode_bounded` returns; its pixels count against the pixel budget until the block ends."""
    cost = BUDGET_PIXELS if needs_child(data, width * height) else decoding_cost(data, width * height)
    with PIXEL_BUDGET.take(cost):
        yield decode_bounded(data, (width, height), region, side)


def unreadable(name: str, reason: str) -> Problem:
    """The error for a file that is not an image, or a damaged one."""
    if reason.startswith(("it is not an image", "it holds")):
        return Problem(415, f"{_shown(name)} is not an image this server can read ({readable()}).")
    if reason == TOO_MUCH:
        reason += "; send a smaller one, or a JPEG"
    return Problem(413 if reason.startswith("it takes") else 415, f"{_shown(name)} cannot be read: {reason}.")


def readable() -> str:
    """Names of the image formats that can be uploaded, for messages."""
    from lookalike.data.scan import heif_readable

    return "JPEG, PNG, WebP, GIF, BMP, TIFF" + (", HEIC" if heif_readable() else "")


def _shown(name: str) -> str:
    return name if name and len(name) <= 80 else "This file"


@dataclass(frozen=True)
class SavedQuery:
    """An uploaded query that is kept for its link."""

    vector: np.ndarray
    hash: str
    width: int
    height: int

    @property
    def ratio(self) -> float:
        """Width by height."""
        return round(self.width / self.height, 4)


_Row = namedtuple("_Row", "id place time model hash width height vector image")  # of the table of uploads


class SavedQueries:
    """Uploaded queries in the user's database: a small JPEG and the embedding of each.

    A query is answered first and written afterwards (`write_pending`). While the database cannot be written to,
    queries are answered without being kept; the last of those that were promised to be stay in memory.

    Args:
        place: Key of the index that they belong to.
        days: Days for which they are kept; 0 keeps none.
        model: Fingerprint of the model in use.
        encoder: Embeds the small image again after a switch to another model.
    """

    def __init__(self, place: str, *, days: float, model: str, encoder: Encoder) -> None:
        self.place, self.days, self.model, self.encoder = place, days, model, encoder
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._pending: dict[str, tuple[SavedQuery, np.ndarray]] = {}
        self._unsaved: dict[str, _Row] = {}  # where the database could not be written to
        self._retry_at = 0.0

    @property
    def active(self) -> bool:
        """Whether queries are kept now."""
        return self.days > 0 and time.monotonic() >= self._retry_at

    def keep(self, query: SavedQuery, pixels: np.ndarray) -> str:
        """Take a query and a copy of its image to be written, and return its id."""
        name = f"u.{secrets.token_hex(8)}"
        with self._lock:
            self._pending[name] = (query, pixels)
            behind = len(self._pending) > MAX_PENDING
        if behind:
            self.write_pending()
        return name

    def write_pending(self) -> None:
        """Write the queries that were taken since, and delete expired ones and those over the limit."""
        with self._write_lock:
            with self._lock:
                batch = dict(self._pending)
            if not batch:
                return
            rows = [self._row(name, *query) for name, query in batch.items()]
            try:
                self._write(rows)
            except (LookalikeError, OSError, sqlite3.Error) as error:
                self._retry_at = time.monotonic() + RETRY_SECONDS
                log.warning("a query could not be kept", extra={"reason": str(error)})
                self._unsaved = dict([*self._unsaved.items(), *((row.id, row) for row in rows)][-MAX_PENDING:])
            finally:
                with self._lock:
                    self._pending = {name: row for name, row in self._pending.items() if name not in batch}

    def _row(self, name: str, query: SavedQuery, pixels: np.ndarray) -> _Row:
        from lookalike.data import thumbnail

        vector = np.float32(query.vector).tobytes()
        image = thumbnail(pixels, STORED_SIDE)
        return _Row(name, self.place, time.time(), self.model, query.hash, query.width, query.height, vector, image)

    def _write(self, rows: Sequence[_Row]) -> None:
        write_uploads("INSERT INTO upload VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        write_uploads(
            "DELETE FROM upload WHERE place = :place AND (time < :oldest OR id NOT IN "
            "(SELECT id FROM upload WHERE place = :place ORDER BY rowid DESC LIMIT :most))",
            [{"place": self.place, "oldest": self._oldest, "most": MAX_SAVED}],
        )

    @property
    def _oldest(self) -> float:
        return time.time() - self.days * 86_400

    def _find(self, name: str) -> _Row | None:
        """A query that has not expired; one that waits is written now."""
        if name in self._pending:
            self.write_pending()
        row = self._unsaved.get(name)
        if row is None and self.days > 0:
            rows = user_rows("SELECT * FROM upload WHERE id = ? AND place = ?", (printable(name), self.place))
            row = _Row(*rows[0]) if rows else None
        return row if row is not None and row.time > self._oldest else None

    def get(self, name: str) -> SavedQuery:
        """Load a query by its id; `Problem` 410 if it has expired or was deleted."""
        row = self._find(name)
        if row is None:
            kept = f"The image of this link was kept for up to {self.days:g} days and has been deleted."
            reason = kept if self.days > 0 else "This server does not keep uploaded images."
            raise Problem(410, f"{reason} Upload it again to search.")
        switched = row.model != self.model
        vector = self.encoder.encode(row.image) if switched else np.frombuffer(row.vector, np.float32)
        return SavedQuery(vector, row.hash, row.width, row.height)

    def image(self, name: str) -> bytes:
        """The small JPEG of a query; `Problem` 404 if it has expired or was deleted."""
        if (row := self._find(name)) is None:
            raise Problem(404, "This image is no longer stored.")
        return bytes(row.image)

    def forget(self, name: str) -> None:
        """Delete a query."""
        if self._find(name) and not self._unsaved.pop(name, None):
            write_uploads("DELETE FROM upload WHERE id = ?", [(name,)])
