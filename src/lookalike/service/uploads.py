"""Uploads: limits on request bodies, refusal of files that are not images, and the queries kept for links."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes, read_json, write_bytes, write_json
from lookalike.core.folders import last_used, private_folder
from lookalike.service.http_errors import Problem, error_response

if TYPE_CHECKING:
    from lookalike.service.encoder import Encoder

MAX_IMAGE_PIXELS = 100_000_000
FORMAT_COST = {"WEBP": 4, "JPEG2000": 4, "AVIF": 3, "HEIF": 3}  # memory per pixel, relative to other formats
MIN_SIDE = 32  # pixels on the short side of a part
BODY_SECONDS = 30.0  # of silence while a body is sent
MIN_BYTES_PER_SECOND = 20_000  # a client at this speed never times out
MAX_SAVED = 1_000  # saved queries
TRIM_EVERY, TRIM_SECONDS = 20, 60.0  # delete old ones after so many uploads, or seconds
STORED_SIDE = 512  # longer side in pixels of a saved query
MAX_PENDING = 32  # queries that wait to be written
RETRY_SECONDS = 60.0  # without saving queries after the disk was full or could not be written to
QUERY_ID = re.compile(r"u\.[0-9a-f]{16}")
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
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await self._receive()
        except TimeoutError:
            self.refusal = error_response(408, "The rest of this request did not arrive in time.")
            self.refusal.headers["Connection"] = "close"
            raise HTTPException(408) from None
        size = len(message.get("body", b""))
        self._seconds_left = min(BODY_SECONDS, self._seconds_left - (clock() - start) + size / MIN_BYTES_PER_SECOND)
        self.read += size
        self.complete = not message.get("more_body", False)
        if self.read > self.limit:
            self.refusal = error_response(413, too_large(None, self.limit))
            raise HTTPException(413)
        return message

    async def drain(self, max_bytes: int) -> None:
        """Read and discard the rest of the body if it is at most `max_bytes` long."""
        while not self.complete and self.read < max_bytes and self.refusal is None:
            try:
                await self()
            except HTTPException:
                return


def too_large(size: int | None, limit: int) -> str:
    """Error message for a body that exceeds the limit; `size` is None where it is not known."""
    what = f"This request has {format_bytes(size)}" if size else "This request is too large"
    return f"{what}; the limit is {format_bytes(limit)}."


def check(data: bytes, name: str, *, limit: int) -> tuple[int, int]:
    """Refuse an upload that is not an image or would be too large to decode, by its header alone.

    Args:
        data: Content of the file.
        name: Its name, for error messages.
        limit: Bytes that are allowed.

    Returns:
        Width and height of the upright image (EXIF orientation applied).

    Raises:
        Problem: With status 413, 415 or 422.
    """
    from PIL import Image

    from lookalike.data.decoding import UnreadableImage, image_size

    shown = _shown(name)
    if not data:
        raise Problem(422, f"{shown} is empty.")
    if len(data) > limit:
        raise Problem(413, f"This image has {format_bytes(len(data))}; the limit is {format_bytes(limit)}.")
    try:
        width, height = image_size(data)
    except UnreadableImage as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise Problem(413, f"This image has far too many pixels; the limit is {MAX_IMAGE_PIXELS:,}.") from None
        raise unreadable(name, error.reason) from None
    limit = round(MAX_IMAGE_PIXELS * width * height / decoding_cost(data, width, height))
    if width * height > limit:
        raise Problem(413, f"This image has {width:,} × {height:,} pixels; the limit is {limit:,} pixels in total.")
    return width, height


def decoding_cost(data: bytes, width: int, height: int) -> int:
    """Pixels to charge for an image: decoders of some formats take several times the memory of others."""
    from lookalike.data.decoding import format_of

    simple = data[:2] == b"\xff\xd8" or data[:4] == b"\x89PNG"
    return width * height * (1 if simple else FORMAT_COST.get(format_of(data), 1))


def decode_part(
    data: bytes, region: Region | None, side: float, *, within: Sequence[float] | None = None, smallest: int = MIN_SIDE
) -> tuple[np.ndarray, np.ndarray]:
    """Decode an image once, as a whole and a part of it.

    Args:
        data: Content of the image file.
        region: Left, top, right and bottom of the part as fractions from 0 to 1; None is the whole image.
        side: Short side that the part needs; the image may be decoded at a lower resolution that leaves it.
        within: The box in pixels that stands for the whole image.
        smallest: Short side in pixels below which a part is refused.

    Returns:
        Pixels of the whole image, and of the part.

    Shape:
        - output: `(height, width, 3)` each, uint8.

    Raises:
        Problem: With status 422 if the part is too small.
    """
    from lookalike.data import decode

    if region is None:
        pixels = decode(data, box=within, min_side=side)
        return pixels, pixels
    x1, y1, x2, y2 = region
    pixels = decode(data, box=within, min_side=max(side, smallest) / min(x2 - x1, y2 - y1))
    height, width = pixels.shape[:2]
    left, top, right, bottom = round(x1 * width), round(y1 * height), round(x2 * width), round(y2 * height)
    if min(right - left, bottom - top) < min(smallest, width, height):
        raise Problem(422, f"This part is too small to search by; it needs at least {smallest} pixels.")
    return pixels, pixels[top:bottom, left:right]


def unreadable(name: str, reason: str) -> Problem:
    """The error for a file that is not an image, or a damaged one."""
    if reason.startswith(("it is not an image", "it holds")):
        return Problem(415, f"{_shown(name)} is not an image this server can read ({readable()}).")
    return Problem(415, f"{_shown(name)} cannot be read: {reason}.")


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
    ratio: float


class SavedQueries:
    """A folder of uploaded queries: a small JPEG and the embedding of each.

    A query is answered first and written afterwards (`write_pending`). While the folder cannot be written to, queries
    are answered without being kept.

    Args:
        folder: Where they are stored.
        days: Days for which they are kept; 0 keeps none.
        model: Fingerprint of the model in use.
        encoder: Embeds the small image again after a switch to another model.
    """

    def __init__(self, folder: Path, *, days: float, model: str, encoder: Encoder) -> None:
        self.folder, self.days, self.model, self.encoder = folder, days, model, encoder
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._pending: dict[str, tuple[SavedQuery, np.ndarray]] = {}
        self._uploads, self._trimmed, self._retry_at = 0, -TRIM_SECONDS, 0.0

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
        """Write the queries that were taken since."""
        with self._write_lock:
            while self._pending:
                with self._lock:
                    name, (query, pixels) = next(iter(self._pending.items()))
                try:
                    self._write(name, query, pixels)
                except (LookalikeError, OSError) as error:
                    self._retry_at = time.monotonic() + RETRY_SECONDS
                    log.warning("a query could not be kept", extra={"reason": str(error)})
                finally:
                    with self._lock:
                        del self._pending[name]

    def _write(self, name: str, query: SavedQuery, pixels: np.ndarray) -> None:
        from lookalike.data import thumbnail

        private_folder(self.folder)
        self._trim()
        write_bytes(self.folder / f"{name}.jpg", thumbnail(pixels, STORED_SIDE), private=True)
        write_json(self.folder / f"{name}.json", {**asdict(query), "model": self.model}, private=True)

    def get(self, name: str) -> SavedQuery:
        """Load a query by its id; `Problem` 410 if it has expired or was deleted."""
        reason = f"The image of this link was kept for up to {self.days:g} days and has been deleted."
        if self.days <= 0:
            reason = "This server does not keep uploaded images."
        gone = Problem(410, f"{reason} Upload it again to search.")
        path = self._path(name, ".json")
        if path is None or self._expired(path):
            raise gone
        try:
            document: dict[str, Any] = read_json(path, "query")
        except LookalikeError:  # deleted at this moment
            raise gone from None
        if document["model"] == self.model:
            vector = np.array(document["vector"], dtype=np.float32)
        else:  # the model was switched: embed the small image again
            vector = self.encoder.encode(self.image(name))
        return SavedQuery(vector, document["hash"], document["ratio"])

    def image(self, name: str) -> bytes:
        """The small JPEG of a query; `Problem` 404 if it has expired or was deleted."""
        path = self._path(name, ".jpg")
        try:
            if path is not None and not self._expired(path):
                return path.read_bytes()
        except FileNotFoundError:
            pass  # deleted at this moment
        raise Problem(404, "This image is no longer stored.")

    def forget(self, name: str) -> None:
        """Delete a query."""
        for suffix in (".json", ".jpg"):
            path = self._path(name, suffix)
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str, suffix: str) -> Path | None:
        """The file of a query, which is written now if it was not yet; None if this is no id."""
        if name in self._pending:
            self.write_pending()
        return self.folder / f"{name}{suffix}" if QUERY_ID.fullmatch(name) else None

    def _expired(self, path: Path) -> bool:
        return time.time() - last_used(path) > self.days * 86_400  # also true if it does not exist

    def _trim(self) -> None:
        """Now and then, delete expired queries and those over the limit; safe with several servers."""
        self._uploads += 1
        if self._uploads < TRIM_EVERY and time.monotonic() < self._trimmed + TRIM_SECONDS:
            return
        self._uploads, self._trimmed = 0, time.monotonic()
        files = sorted(self.folder.glob("u.*.jpg"), key=last_used)
        for path in [p for p in files if self._expired(p)] + files[: max(0, len(files) - MAX_SAVED + 1)]:
            for suffix in (".json", ".jpg"):
                path.with_suffix(suffix).unlink(missing_ok=True)
