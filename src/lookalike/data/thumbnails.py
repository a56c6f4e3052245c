"""Small images for pages and reports, with nothing in them but pixels."""

from __future__ import annotations

import simplejpeg

from lookalike.data.decoding import Box, Source, shrink


def thumbnail(data: Source, side: int = 96, *, box: Box | None = None, quality: int = 78) -> bytes:
    """A JPEG with a long side of at most `side`: upright, sRGB, and without any metadata.

    The file is written from bare pixels, so no EXIF, place, preview, profile or comment can come along.
    """
    pixels = shrink(data, side, of=max, box=box)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420"))
