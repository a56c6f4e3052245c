"""Whatever a file holds, pixels or one UnreadableImage come out, soon and in little memory."""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.scenes import (
    FORMATS,
    SCENE,
    endless_jpeg,
    profile,
    save,
)

from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess, UnreadableImage, decode, prepare


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<?xml version='1.0'?>\n<svg xmlns='x'></svg>", "SVG"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "text"),
        ("Grüße, kein Bild".encode(), "text"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + b"\0\1\2\3" * 20, "known format"),
        (b"\xff\xd8\xff", "known format|damaged"),
        (b"\0" * 5000, "known format"),
        (bytes(range(256)) * 20, "known format"),
        (FORMATS["jpeg"][0][:-400], "cut short"),
        (FORMATS["png"][0][:-400], "cut short"),
        (FORMATS["webp"][0][:-100], "known format|damaged"),
    ],
)
def test_the_reason_is_reported(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match=reason) as caught:
        decode(data)
    assert caught.value.reason in str(caught.value)
    path = tmp_path / "renamed.jpg"
    path.write_bytes(data)
    with pytest.raises(UnreadableImage, match=r"renamed\.jpg"):
        prepare(path, Preprocess(32))


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match=r"none\.jpg.*no such file"):
        decode(tmp_path / "none.jpg")
    with pytest.raises(UnreadableImage, match="directory"):
        decode(tmp_path)


def bombs() -> dict[str, bytes]:
    png = bytearray(FORMATS["png"][0])
    png[16:24] = struct.pack(">II", 60_000, 60_000)
    png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
    jpeg = bytearray(FORMATS["jpeg"][0])
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 65_000, 65_000)
    gif = bytearray(FORMATS["gif"][0])
    gif[6:10] = struct.pack("<HH", 65_000, 65_000)
    bmp = bytearray(FORMATS["bmp"][0])
    bmp[18:26] = struct.pack("<ii", 40_000, 40_000)
    return {"png": bytes(png), "jpeg": bytes(jpeg), "gif": bytes(gif), "bmp": bytes(bmp)}


@pytest.mark.parametrize("kind", bombs())
def test_bombs_are_refused_by_their_header(kind: str) -> None:
    start = time.process_time()
    with pytest.raises(UnreadableImage, match="pixels"):
        decode(bombs()[kind], min_side=16)
    assert time.process_time() - start < 0.5


def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_MAX_PIXELS", str(120 * 80))
    decode(FORMATS["jpeg"][0])
    monkeypatch.setenv("LOOKALIKE_MAX_PIXELS", str(120 * 80 - 1))
    for name in ("jpeg", "png", "avif", "jpeg, cmyk"):
        with pytest.raises(UnreadableImage, match="LOOKALIKE_MAX_PIXELS"):
            decode(FORMATS[name][0])
    monkeypatch.setenv("LOOKALIKE_MAX_PIXELS", "many")
    with pytest.raises(LookalikeError, match="whole number"):
        decode(FORMATS["jpeg"][0])


@pytest.mark.parametrize("road", ["fast", "four inks", "the fast road cannot read its head", "it fails half way"])
def test_a_jpeg_with_endless_scans_is_refused(road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever road it comes, before a scan is looked at."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("broken")

    if road == "the fast road cannot read its head":
        monkeypatch.setattr("simplejpeg.decode_jpeg_header", broken)
    elif road == "it fails half way":
        monkeypatch.setattr("simplejpeg.decode_jpeg", broken)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(UnreadableImage, match="scans"):
        decode(endless_jpeg("CMYK" if road == "four inks" else "RGB"))


def test_files_beyond_memory_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    with path.open("wb") as file:
        file.truncate(1_000_000_001)  # sparse
    with pytest.raises(UnreadableImage, match="larger than 1"):
        decode(path)


FUZZED = ["jpeg", "jpeg, progressive", "jpeg, cmyk", "png", "png, palette alpha", "webp, alpha", "avif", "bmp", "gif",
          "tiff, lzw", "tiff, 16 bit", "jpeg 2000", "ppm", "apng"]  # fmt: skip


@pytest.mark.parametrize("name", FUZZED)
@settings(max_examples=40, deadline=5000, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_broken_files_give_pixels_or_one_error(name: str, draw: st.DataObject) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = FORMATS[name][0] if name != "jpeg" else save(SCENE, "JPEG", exif=exif, icc_profile=profile("bgr"))
    data = bytearray(whole[: draw.draw(st.integers(0, len(whole)))] if draw.draw(st.booleans()) else whole)
    # Headers are short and matter most.
    places = st.one_of(st.integers(0, 200), st.integers(0, max(len(data) - 1, 0)))
    for place, value in draw.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=12)):
        if place < len(data):
            data[place] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_MAX_PIXELS", "1000000")
        for read in (decode, lambda data: prepare(data, Preprocess(24), box=(1, 1, 60, 70))):
            try:
                pixels = read(bytes(data))
            except UnreadableImage as error:
                assert len(error.reason) < 120
            else:
                assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3


@settings(max_examples=100, deadline=2000)
@given(
    st.binary(max_size=400), st.sampled_from([b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"II*\0", b"RIFF", b"BM"])
)
def test_noise_gives_one_error(noise: bytes, start: bytes) -> None:
    with pytest.raises(UnreadableImage):
        decode(start + noise)
