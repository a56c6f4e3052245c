"""Date, camera and place of a photo from its EXIF block."""

from __future__ import annotations

import io
import math
import time
from typing import Any

from PIL import ExifTags, Image

from lookalike.data.decoding import FORMATS, jpeg_blocks

COLUMNS = ("taken", "camera", "place", "latitude", "longitude")
MAX_TEXT = 80


def photo_facts(data: bytes) -> dict[str, str]:
    """Return what a photo's EXIF block says about when, where and with what it was taken.

    Args:
        data: The encoded image.

    Returns:
        Those of these columns that are known: ``taken`` (ISO 8601), ``camera``, ``latitude`` and ``longitude`` in
        degrees, and ``place``, the coordinates to a tenth of a degree (about 10 km).

    Example:
        >>> exif = Image.Exif()
        >>> exif[ExifTags.Base.Model], exif[ExifTags.Base.DateTime] = "Lumix", "2021:07:21 10:11:12"
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (8, 8)).save(file, "JPEG", exif=exif)
        >>> photo_facts(file.getvalue())
        {'taken': '2021-07-21T10:11:12', 'camera': 'Lumix'}
    """
    facts: dict[str, str] = {}
    try:
        exif = _read(data)
        inner, gps = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.GPSInfo)
        if date := iso_date(inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime)):
            facts["taken"] = date
        make, model = (_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
        if camera := model if model.lower().startswith(make.lower()) else f"{make} {model}".strip():
            facts["camera"] = camera
        latitude = _degrees(gps.get(ExifTags.GPS.GPSLatitude), gps.get(ExifTags.GPS.GPSLatitudeRef))
        longitude = _degrees(gps.get(ExifTags.GPS.GPSLongitude), gps.get(ExifTags.GPS.GPSLongitudeRef))
        if abs(latitude) <= 90 and abs(longitude) <= 180 and (latitude or longitude):  # 0, 0 means unknown
            facts["place"] = f"{round(latitude, 1) + 0.0}, {round(longitude, 1) + 0.0}"
            facts |= {"latitude": f"{latitude:.5f}", "longitude": f"{longitude:.5f}"}
    except Exception:  # a broken EXIF block raises almost anything; only less is known then
        return facts
    return facts


def _read(data: bytes) -> Image.Exif:
    exif = Image.Exif()
    if data[:2] == b"\xff\xd8":
        exif.load(jpeg_blocks(data)[0])
        return exif
    with Image.open(io.BytesIO(data), formats=list(FORMATS)) as image:
        if image.format == "TIFF":
            own = image.getexif()
            own.get_ifd(ExifTags.IFD.Exif), own.get_ifd(ExifTags.IFD.GPSInfo)
            return own
        exif.load(image.info.get("exif", b""))  # `getexif` would decode a whole PNG to look for it
    return exif


def iso_date(text: Any) -> str | None:
    """Convert EXIF's ``2019:07:21 10:11:12`` to ISO; cameras without a clock write zeros, some programs the year 1."""
    try:
        date = time.strptime(str(text)[:19], "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S", date) if date.tm_year >= 1000 else None


def _text(value: Any) -> str:
    text = " ".join("".join(c for c in str(value or "") if c.isprintable()).split())
    return text[:MAX_TEXT]


def _degrees(parts: Any, reference: Any) -> float:
    """Degrees from degrees, minutes and seconds; not a number if they are missing or wrong."""
    if not parts or len(parts) != 3:
        return math.nan
    value = sum(float(part) / 60**k for k, part in enumerate(parts))
    return -value if str(reference).strip("\0 ").upper() in ("S", "W") else value
