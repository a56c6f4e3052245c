"""The decoder on mutated files for longer: pixels or one sentence, nothing else. The short form: test_decode_bad.py."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests import helpers

from lookalike.data import UnreadableImage, decode, thumbnail


def _seeds() -> list[bytes]:
    image = Image.fromarray(helpers.make_image(3))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x0132] = "2019:07:21 10:11:12"
    out = []
    for form, options in (
        ("JPEG", {"exif": exif}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {}),
        ("BMP", {}), ("TIFF", {"compression": "tiff_lzw"}), ("AVIF", {}), ("JPEG2000", {}), ("PPM", {}),
    ):  # fmt: skip
        file = io.BytesIO()
        image.save(file, form, **options)
        out.append(file.getvalue())
    cmyk = io.BytesIO()
    image.convert("CMYK").save(cmyk, "JPEG")
    sixteen = io.BytesIO()
    Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16).save(sixteen, "PNG")
    return [*out, cmyk.getvalue(), sixteen.getvalue()]


SEEDS = _seeds()


@st.composite
def mutated(draw: Any) -> bytes:
    """A real file with bytes changed, cut out, doubled or swapped for those of another."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        if not data:
            break
        start = draw(st.integers(0, min(len(data) - 1, draw(st.sampled_from([32, 256, 1 << 20])))))
        kind = draw(st.sampled_from(["set", "cut", "double", "end", "foreign"]))
        length = draw(st.integers(1, 64))
        if kind == "set":
            data[start : start + length] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "cut":
            del data[start : start + length]
        elif kind == "double":
            data[start:start] = data[start : start + length]
        elif kind == "end":
            del data[start:]
        else:
            data[start : start + length] = draw(st.sampled_from(SEEDS))[start : start + length]
    return bytes(data)


def check(data: bytes) -> None:
    start = time.monotonic()
    for read in (decode, lambda x: decode(x, min_side=32), lambda x: thumbnail(x, 64)):
        try:
            result = read(data)
        except UnreadableImage as error:
            assert error.reason and "\n" not in str(error)
        else:
            assert isinstance(result, bytes) or (result.dtype == np.uint8 and result.ndim == 3 and result.shape[2] == 3)
    assert time.monotonic() - start < 20


LONG = settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@LONG
@given(mutated() | st.binary(max_size=5000))
def test_mutated_files_for_longer(data: bytes) -> None:
    check(data)
