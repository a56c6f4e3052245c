"""What comes in from outside: looked at before it is decoded, bounded in bytes and in pixels."""

from __future__ import annotations

import asyncio
import io
import re
import secrets
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.errors import LookalikeError
from lookalike.core.files import human_bytes, read_json, write_bytes, write_json
from lookalike.core.folders import last_used, private_folder
from lookalike.service.http_errors import Problem, problem

if TYPE_CHECKING:
    from lookalike.service.encoder import Encoder

PIXELS = 100_000_000
LEAST = 32  # pixels of a part, on its short side
Region = tuple[float, float, float, float]


def check(data: bytes, name: str, *, limit: int) -> tuple[int, int]:
    """Refuse what is no image, or one that would take too much to decode, by its header alone; width and height.

    Both are of the image as it is seen: a phone's portrait may be stored lying.
    """
    from lookalike.data.decoding import UnreadableImage, heif_size

    shown = name if name and len(name) <= 80 else "This file"
    if not data:
        raise Problem(422, f"{shown} is empty.")
    if len(data) > limit:
        raise Problem(413, f"This image has {human_bytes(len(data))}; the limit here is {human_bytes(limit)}.")
    try:
        size = heif_size(data)
    except UnreadableImage as error:
        raise Problem(415, f"{shown} cannot be read: {error.reason}.") from None
    width, height = size or _size(data, shown)
    if width * height > PIXELS:
        raise Problem(413, f"This image has {width:,} × {height:,} pixels; the limit here is {PIXELS:,} in all.")
    return width, height


def _size(data: bytes, shown: str) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    from lookalike.data.decoding import FORMATS, orientation

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=list(FORMATS)) as image:
                # Not `getexif` of them all: Pillow decodes a whole PNG to look for it.
                turn = orientation(image if image.format == "TIFF" else image.info.get("exif", b""))
                width, height = image.size[::-1] if turn in (5, 6, 7, 8) else image.size
    except Image.DecompressionBombError:
        raise Problem(413, f"This image has far too many pixels; the limit here is {PIXELS:,}.") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError):
        raise unreadable(shown) from None
    return width, height


def cut(
    data: bytes, region: Region, side: float, *, within: Sequence[float] | None = None, least: int = LEAST
) -> np.ndarray:
    """The pixels of a part of an image, given as shares of it (or of the part `within`, in pixels).

    They may be fewer than the image has, but leave the part a short side of `side`.
    """
    from lookalike.data import decode

    x1, y1, x2, y2 = region
    pixels = decode(data, box=within, min_side=max(side, least) / min(x2 - x1, y2 - y1))
    height, width = pixels.shape[:2]
    left, top, right, bottom = round(x1 * width), round(y1 * height), round(x2 * width), round(y2 * height)
    if min(right - left, bottom - top) < min(least, width, height):
        raise Problem(422, f"Too small to search by; at least {least} pixels.")
    return np.ascontiguousarray(pixels[top:bottom, left:right])


def unreadable(name: str) -> Problem:
    shown = name if name and len(name) <= 80 else "This file"
    return Problem(415, f"{shown} is not an image this server can read ({readable()}).")


def readable() -> str:
    """What can be asked by, in words."""
    from lookalike.data.scan import heif_readable

    return "JPEG, PNG, WebP, GIF, BMP, TIFF" + (", HEIC" if heif_readable() else "")


PATIENCE = 30.0  # seconds of silence
SLOWEST = 20_000  # bytes a second that do not use it up
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Body:
    """A `receive` with limits; `refusal` is what the client is told once it went beyond one.

    Only the time spent waiting for the client counts, not what we do in between.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.limit, self.read, self.whole = limit, 0, False
        self.refusal: JSONResponse | None = None
        self._receive, self._patience = receive, PATIENCE

    async def __call__(self) -> MutableMapping[str, Any]:
        if self.whole:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            self.refusal = problem(408, "The rest of this request did not come in time.")
            self.refusal.headers["Connection"] = "close"
            raise HTTPException(408) from None
        size = len(message.get("body", b""))
        self._patience = min(PATIENCE, self._patience - (clock() - start) + size / SLOWEST)
        self.read += size
        self.whole = not message.get("more_body", False)
        if self.read > self.limit:
            self.refusal = problem(413, too_large(None, self.limit))
            raise HTTPException(413)
        return message

    async def listen(self, most: int) -> None:
        """To the end, if it is near."""
        while not self.whole and self.read < most and self.refusal is None:
            try:
                await self()
            except HTTPException:
                return


def too_large(size: int | None, limit: int) -> str:
    what = f"This request has {human_bytes(size)}" if size else "This request is too large"
    return f"{what}; the limit here is {human_bytes(limit)}."


NAME = re.compile(r"u\.[0-9a-f]{16}")
MOST = 1_000  # kept at once, and as many more as come between two looks
EVERY, PAUSE = 20, 60.0  # uploads, or seconds, from one look at what is too old or too many to the next


@dataclass(frozen=True)
class Query:
    id: str
    vector: np.ndarray
    hash: str
    ratio: float
    model: str


class Queries:
    """A folder of kept questions; `days` 0 keeps none."""

    def __init__(self, folder: Path, *, days: float, model: str, encoder: Encoder) -> None:
        self.folder, self.days, self.model, self.encoder = folder, days, model, encoder
        self._guard, self._count, self._looked = threading.Lock(), 0, -PAUSE
        if days > 0:
            private_folder(folder)

    def keep(self, vector: np.ndarray, hash_: str, ratio: float, jpeg: bytes) -> str | None:
        if self.days <= 0:
            return None
        self._trim()
        name = f"u.{secrets.token_hex(8)}"
        write_bytes(self.folder / f"{name}.jpg", jpeg, private=True)
        document = {"vector": [float(x) for x in vector], "hash": hash_, "ratio": ratio, "model": self.model}
        write_json(self.folder / f"{name}.json", document, private=True)
        return name

    def get(self, name: str) -> Query:
        words = f"The image behind this link was kept for up to {self.days:g} days and is gone."
        if self.days <= 0:
            words = "This server keeps no images it is asked by."
        gone = Problem(410, f"{words} Drop it again to search.")
        path = self._path(name, ".json")
        if path is None or self._old(path):
            raise gone
        try:
            document: dict[str, Any] = read_json(path, "query")
        except LookalikeError:  # it went this very moment
            raise gone from None
        if document["model"] == self.model:
            vector = np.array(document["vector"], dtype=np.float32)
        else:  # another model answers now; the small image asks it
            vector = self.encoder.encode(self.image(name))
        return Query(name, vector, document["hash"], document["ratio"], document["model"])

    def image(self, name: str) -> bytes:
        path = self._path(name, ".jpg")
        try:
            if path is not None and not self._old(path):
                return path.read_bytes()
        except FileNotFoundError:
            pass  # it went this very moment
        raise Problem(404, "This image is no longer kept.")

    def forget(self, name: str) -> None:
        for ending in (".json", ".jpg"):
            path = self._path(name, ending)
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str, ending: str) -> Path | None:
        return self.folder / f"{name}{ending}" if NAME.fullmatch(name) else None

    def _old(self, path: Path) -> bool:
        return time.time() - last_used(path) > self.days * 86_400  # also what is not there

    def _trim(self) -> None:
        """Now and then, forget what is too old or too many; several threads, and servers, may do so at once."""
        with self._guard:
            self._count += 1
            if self._count < EVERY and time.monotonic() < self._looked + PAUSE:
                return
            self._count, self._looked = 0, time.monotonic()
        files = sorted(self.folder.glob("u.*.jpg"), key=last_used)
        for path in [p for p in files if self._old(p)] + files[: max(0, len(files) - MOST + 1)]:
            self.forget(path.stem)
