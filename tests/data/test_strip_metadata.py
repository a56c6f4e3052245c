"""A whole image without what it tells beside its pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from tests.data.scenes import SCENE, away, heic, profile, save
from tests.data.test_thumbnails import SECRETS, talkative

from lookalike.data.decoding import UnreadableImage, decode
from lookalike.data.strip_metadata import media_type, without_metadata


def silent(data: bytes) -> Image.Image:
    """Nothing but pixels, whoever looks: by bytes, and by Pillow's readers."""
    for secret in SECRETS:
        assert secret not in data
    image = Image.open(io.BytesIO(data))
    image.load()
    assert not image.getexif() and "xmp" not in image.info and "icc_profile" not in image.info
    shape = ("jfif", "adobe", "progress", "transparency")
    assert all(name.startswith(shape) for name in image.info)
    return image


@pytest.mark.needs("pillow_heif")
@pytest.mark.parametrize("turn", [1, 6])
def test_a_phones_image_becomes_a_jpeg(turn: int) -> None:
    data = heic(turn=turn)
    assert b"Secret camera" in data and media_type(data) == "image/heif"
    bare, media = without_metadata(data)
    image = silent(bare)
    assert media == "image/jpeg" == media_type(bare) and b"Secret" not in bare
    assert away(np.asarray(image), decode(data)) < 3


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_no_metadata_and_the_same_image(kind: str, turn: int) -> None:
    data = talkative(kind, turn)
    assert b"SECRET" in data
    bare, media = without_metadata(data)
    image = silent(bare)
    assert media == ("image/png" if kind in ("PNG", "TIFF") else "image/jpeg")
    assert media_type(bare) == media == Image.MIME[image.format]
    assert bare.count(b"\xff\xd8\xff") <= 1, "an embedded preview"
    assert away(np.asarray(image.convert("RGB")), decode(data)) < 3, (
        "upright and in the same colors without a reader's help"
    )


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"subsampling": 2}], ids=str
)
def test_an_upright_jpeg_loses_no_pixel(options: dict[str, object]) -> None:
    exif = Image.Exif()
    exif[0x010F] = "SECRET camera"
    data = save(SCENE, "JPEG", quality=90, exif=exif, comment=b"SECRET", **options)
    bare, _ = without_metadata(data + b"\xff\xd8\xff SECRET preview behind the end")
    silent(bare)
    assert np.array_equal(decode(bare), decode(data)) and len(bare) < len(data)


def test_a_preview_in_the_first_segment_goes_too() -> None:
    data = save(SCENE, "JPEG", quality=90)
    assert data[2:4] == b"\xff\xe0" and data[6:11] == b"JFIF\0"
    preview = b"SECRET" * 8  # 4 × 4 pixels
    body = data[6:18] + b"\x04\x04" + preview
    loud = data[:4] + (len(body) + 2).to_bytes(2, "big") + body + data[20:]
    bare, _ = without_metadata(loud)
    assert np.array_equal(decode(silent(bare)), decode(data))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "I;16"])
def test_a_png_keeps_every_bit(mode: str) -> None:
    image = Image.fromarray(SCENE).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    words = PngImagePlugin.PngInfo()
    words.add_text("Author", "SECRET name")
    words.add_itxt("Place", "SECRET place", zip=True)
    data = save(image, "PNG", pnginfo=words)
    bare, media = without_metadata(data)
    assert media == "image/png" and np.array_equal(np.asarray(silent(bare)), np.asarray(image))


def test_four_inks_come_out_as_a_browser_shows_them() -> None:
    data = save(Image.fromarray(SCENE).convert("CMYK"), "JPEG", quality=95)
    bare, _ = without_metadata(data)
    assert silent(bare).mode == "RGB" and away(decode(bare), decode(data)) < 3


def test_what_is_no_image_or_not_whole_is_refused() -> None:
    whole = talkative("JPEG")
    for data in (b"", b"no image", whole[: len(whole) // 2], save(SCENE, "PNG")[:-400]):
        with pytest.raises(UnreadableImage):
            without_metadata(data)
    with pytest.raises(UnreadableImage):
        media_type(b"<svg onload=alert(1)>")


def test_a_profile_becomes_pixels() -> None:
    bare, _ = without_metadata(save(SCENE, "PNG", icc_profile=profile("bgr")))
    assert away(np.asarray(silent(bare)), SCENE[..., ::-1]) < 2
