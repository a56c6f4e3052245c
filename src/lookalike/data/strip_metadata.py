"""Images for other people to see: the same pixels without metadata, and thumbnails.

Upright JPEGs and PNGs without a color profile lose their metadata and nothing else. All others are encoded again
from their pixels, which `decode` has turned upright and converted to sRGB.
"""

from __future__ import annotations

import io
import re

import simplejpeg
from PIL import Image

from lookalike.data.decoding import Box, Source, decode, format_of, jpeg_blocks, orientation, shrink

MEDIA = {kind: f"image/{kind.lower()}" for kind in ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF", "TIFF", "HEIF")}
MEDIA |= {"MPO": "image/jpeg", "JPEG2000": "image/jp2", "PPM": "image/x-portable-anymap"}
_LOSSY = ("JPEG", "MPO", "WEBP", "AVIF", "HEIF", "JPEG2000")
_PNG = b"\x89PNG\r\n\x1a\n"
# The chunks that decide how a PNG looks; all others are metadata.
_CHUNKS = b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB cICP sBIT bKGD acTL fcTL fdAT".split()
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")  # in a scan: neither a stuffed byte nor a restart


def thumbnail(data: Source, side: int = 96, *, box: Box | None = None, quality: int = 78) -> bytes:
    """Return a JPEG with a long side of at most `side`: upright, sRGB, without metadata.

    It is encoded from bare pixels, so it contains no EXIF, location, preview, profile or comment.

    Args:
        data: Encoded bytes, a path, a PIL image or an array.
        side: Greatest long side in pixels.
        box: Part of the image.
        quality: JPEG quality.

    Example:
        >>> la.data.decode(la.data.thumbnail(np.zeros((60, 80, 3), np.uint8), 40)).shape
        (30, 40, 3)
    """
    pixels = shrink(data, side, of=max, box=box)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420"))


def media_type(data: bytes) -> str:
    """Return the media type of an image; raises `UnreadableImage` if it is none."""
    return MEDIA.get(format_of(data), "application/octet-stream")


def without_metadata(data: bytes) -> tuple[bytes, str]:
    """Return the image without EXIF, location, profile, preview or comments, and its media type."""
    kind = format_of(data)
    bare = _bare_jpeg(data) if kind == "JPEG" else _bare_png(data) if kind == "PNG" else None
    if bare is not None:
        return bare, MEDIA[kind]
    pixels = decode(data)
    if kind in _LOSSY:
        jpeg = simplejpeg.encode_jpeg(pixels, quality=95, colorspace="RGB", colorsubsampling="444")
        return bytes(jpeg), MEDIA["JPEG"]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=3)
    return file.getvalue(), MEDIA["PNG"]


def _bare_jpeg(data: bytes) -> bytes | None:
    """Return the tables and scans of an upright sRGB JPEG; None if it is another kind or incomplete."""
    exif, profile = jpeg_blocks(data)
    if profile or (exif and orientation(exif) != 1):
        return None
    parts, at = [data[:2]], 2
    while match := _MARKER.match(data, at):
        marker, start = match[1][0], match.end()
        if marker == 0xD9:
            return b"".join([*parts, b"\xff\xd9"])  # what follows the end is a preview or a video
        end = start + int.from_bytes(data[start : start + 2], "big")
        body = data[start:end]
        if marker in (0xC0, 0xC1, 0xC2) and body[7:8] == b"\x04":
            return None  # four inks: browsers do not agree on their colors
        if marker == 0xE0:
            body = b"\0\x10" + body[2:14] + b"\0\0" if body[2:7] == b"JFIF\0" else b""  # without its preview
        elif marker == 0xEE:
            body = b"\0\x0e" + body[2:14] if body[2:7] == b"Adobe" else b""  # how the colors are coded
        elif 0xE1 <= marker <= 0xEF or marker == 0xFE:
            body = b""
        if marker == 0xDA:  # the scan goes on to the next marker
            after = _MARKER.search(data, end)
            end = after.start() if after else len(data)
            body = data[start:end]
        if body:
            parts.append(bytes([0xFF, marker]) + body)
        at = end
    return None


def _bare_png(data: bytes) -> bytes | None:
    """Return the chunks of an upright sRGB PNG that define its pixels; None if it is another kind or incomplete."""
    parts, at = [_PNG], len(_PNG)
    while at + 12 <= len(data):
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if name == b"iCCP" or (name == b"eXIf" and orientation(data[at + 8 : at + 8 + length]) != 1):
            return None
        if name in _CHUNKS:
            parts.append(data[at : at + 12 + length])
        if name == b"IEND":
            return b"".join(parts)
        at += 12 + length
    return None
