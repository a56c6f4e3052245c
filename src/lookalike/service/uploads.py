"""What comes in from outside: looked at before it is decoded, bounded in bytes and in pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np

from lookalike.core.files import human_bytes
from lookalike.service.errors import Problem

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
