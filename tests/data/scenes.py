"""One scene written in every format, for the tests of decoding."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageCms
from tests import helpers

SCENE = helpers.make_image(3, width=120, height=80)
GRAY = np.asarray(Image.fromarray(SCENE).convert("L"))
ALPHA = np.linspace(0, 255, 120).astype(np.uint8)[None].repeat(80, 0)


def save(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def endless_jpeg(mode: str) -> bytes:
    """81 million pixels, by their header, and hundreds of scans over them in a few kilobytes."""
    data = bytearray(save(Image.new(mode, (16, 16)), "JPEG", progressive=True))
    at, scan = data.index(b"\xff\xc2"), data.rindex(b"\xff\xda")
    data[at + 5 : at + 9] = struct.pack(">HH", 9_000, 9_000)
    return bytes(data[:scan] + data[scan:-2] * 300 + data[-2:])


def heic(image: np.ndarray = SCENE, turn: int = 1) -> bytes:
    import pillow_heif

    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turn
    exif[0x010F] = "Secret camera"
    pillow_heif.from_pillow(Image.fromarray(image)).save(file, quality=95, exif=exif.tobytes())
    return file.getvalue()


def away(pixels: np.ndarray, reference: np.ndarray = SCENE) -> float:
    """Mean difference from the reference, in levels of 255."""
    assert pixels.dtype == np.uint8 and pixels.shape == reference.shape
    return float(np.abs(pixels.astype(int) - reference).mean())


def as_rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[..., None], 3, 2)


def over_white(pixels: np.ndarray, alpha: np.ndarray = ALPHA) -> np.ndarray:
    share = alpha[..., None] / 255
    return np.rint(pixels * share + 255 * (1 - share)).astype(np.uint8)


def png16(values: np.ndarray) -> bytes:
    """A 16-bit RGB PNG, which Pillow reads but does not write."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def profile(columns: str = "rgb", gamma: float | None = None, gray: bool = False) -> bytes:
    """A small ICC profile: sRGB's primaries in the order of `columns`, and a gamma (none: sRGB's own curve)."""
    xyz = {"r": (0.4360, 0.2225, 0.0139), "g": (0.3851, 0.7169, 0.0971), "b": (0.1431, 0.0606, 0.7141)}

    def fixed(*values: float) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    if gamma is None:
        levels = np.linspace(0, 1, 1024)
        table = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4) * 65535
        curve = b"curv\0\0\0\0" + struct.pack(">I", 1024) + np.rint(table).astype(">u2").tobytes()
    else:
        curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    text = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + b"\0" * 80
    tags = {b"desc": text, b"wtpt": b"XYZ \0\0\0\0" + fixed(0.9642, 1.0, 0.8249)}
    if gray:
        tags[b"kTRC"] = curve
    else:
        for name, column in zip("rgb", columns, strict=True):
            tags[name.encode() + b"XYZ"] = b"XYZ \0\0\0\0" + fixed(*xyz[column])
            tags[name.encode() + b"TRC"] = curve
    at, table_bytes, body = 128 + 4 + 12 * len(tags), b"", b""
    for name, content in tags.items():
        content += b"\0" * (-len(content) % 4)
        table_bytes += name + struct.pack(">II", at + len(body), len(content))
        body += content
    head = struct.pack(
        ">I4sI4s4s4s", at + len(body), b"\0\0\0\0", 0x02400000, b"mntr", b"GRAY" if gray else b"RGB ", b"XYZ "
    )
    head += b"\0" * 12 + b"acsp" + b"\0" * 28 + fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table_bytes + body


PALETTE = Image.fromarray(SCENE).quantize(255)
RGBA = np.dstack([SCENE, ALPHA])
SIXTEEN = SCENE.astype(np.uint16) * 257
OTHER = Image.fromarray(helpers.make_image(9, width=120, height=80))
BILEVEL = Image.fromarray(GRAY).convert("1")
GRAY_ALPHA = Image.merge("LA", [Image.fromarray(GRAY), Image.fromarray(ALPHA)])
BIG_ENDIAN = Image.frombytes("I;16B", (120, 80), (GRAY.astype(">u2") * 257).tobytes())
TO_LAB = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
IN_LAB = ImageCms.profileToProfile(Image.fromarray(SCENE), *TO_LAB, outputMode="LAB")
CMYK = Image.fromarray(SCENE).convert("CMYK")

# name -> file, reference, greatest mean difference
FORMATS: dict[str, tuple[bytes, np.ndarray, float]] = {
    "jpeg": (save(SCENE, "JPEG", quality=95), SCENE, 1.2),
    "jpeg, progressive": (save(SCENE, "JPEG", quality=95, progressive=True), SCENE, 1.2),
    "jpeg, rgb": (save(SCENE, "JPEG", quality=95, keep_rgb=True), SCENE, 1.2),
    "jpeg, gray": (save(GRAY, "JPEG", quality=95), as_rgb(GRAY), 1.2),
    "jpeg, cmyk": (save(CMYK, "JPEG", quality=95), SCENE, 1.5),
    "png": (save(SCENE, "PNG"), SCENE, 0),
    "png, gray": (save(GRAY, "PNG"), as_rgb(GRAY), 0),
    "png, bilevel": (save(BILEVEL, "PNG"), as_rgb(np.asarray(BILEVEL) * np.uint8(255)), 0),
    "png, palette": (save(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB")), 0),
    "png, alpha": (save(RGBA, "PNG"), over_white(SCENE), 0.01),
    "png, gray alpha": (save(GRAY_ALPHA, "PNG"), over_white(as_rgb(GRAY)), 0.01),
    "png, palette alpha": (save(Image.fromarray(RGBA).quantize(255), "PNG"), over_white(SCENE), 12),
    "png, 16 bit": (png16(SIXTEEN), SCENE, 0),
    "png, 16 bit gray": (save(GRAY.astype(np.uint16) * 257, "PNG"), as_rgb(GRAY), 0),
    "apng": (save(SCENE, "PNG", save_all=True, append_images=[OTHER]), SCENE, 0),
    "webp": (save(SCENE, "WEBP", quality=95), SCENE, 2),
    "webp, lossless": (save(SCENE, "WEBP", lossless=True), SCENE, 0),
    "webp, alpha": (save(RGBA, "WEBP", lossless=True, exact=True), over_white(SCENE), 0.01),
    "webp, animated": (save(SCENE, "WEBP", save_all=True, lossless=True, append_images=[OTHER]), SCENE, 0),
    "avif": (save(SCENE, "AVIF", quality=95), SCENE, 2.5),
    "avif, alpha": (save(RGBA, "AVIF", quality=95), over_white(SCENE), 2.5),
    "bmp": (save(SCENE, "BMP"), SCENE, 0),
    "gif": (save(SCENE, "GIF"), SCENE, 6),
    "gif, animated": (save(SCENE, "GIF", save_all=True, append_images=[OTHER]), SCENE, 6),
    "tiff": (save(SCENE, "TIFF"), SCENE, 0),
    "tiff, lzw": (save(SCENE, "TIFF", compression="tiff_lzw"), SCENE, 0),
    "tiff, two pages": (save(SCENE, "TIFF", save_all=True, append_images=[OTHER]), SCENE, 0),
    "tiff, 16 bit": (save(GRAY.astype("<u2") * 257, "TIFF"), as_rgb(GRAY), 0),
    "tiff, 16 bit, big-endian": (save(BIG_ENDIAN, "TIFF"), as_rgb(GRAY), 0),
    "tiff, cmyk": (save(CMYK, "TIFF"), SCENE, 0),
    "tiff, alpha": (save(RGBA, "TIFF"), over_white(SCENE), 0.01),
    "tiff, lab": (save(IN_LAB, "TIFF"), SCENE, 2.5),
    "jpeg 2000": (save(SCENE, "JPEG2000"), SCENE, 0),
    "ppm": (save(SCENE, "PPM"), SCENE, 0),
}  # fmt: skip
