"""A thumbnail is upright, sRGB, small, and tells nothing but what is seen."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin
from tests.data.scenes import SCENE, away, profile, save

from lookalike.data.decoding import UnreadableImage, decode
from lookalike.data.strip_metadata import thumbnail

SECRETS = (b"Exif", b"GPS", b"http://ns.adobe.com", b"xpacket", b"Photoshop 3.0", b"8BIM", b"ICC_PROFILE", b"SECRET")


def talkative(kind: str, turn: int = 1) -> bytes:
    """An image with EXIF, a place, a camera, an embedded preview, XMP, IPTC, a profile and a comment."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = turn, "SECRET camera"
    exif.get_ifd(0x8825).update({1: "N", 2: (TiffImagePlugin.IFDRational(51), 30, 0), 3: "E", 4: (7, 0, 0)})
    xmp = b"<?xpacket begin=''?><x:xmpmeta xmlns:x='http://ns.adobe.com/'>SECRET</x:xmpmeta>"
    options = {"exif": exif, "icc_profile": profile("bgr"), "xmp": xmp}
    if kind != "JPEG":
        return save(SCENE, kind, **options)
    data = save(SCENE, "JPEG", quality=95, comment=b"SECRET comment", **options)
    iptc = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x0e\x1c\x02\x05\0\x09SECRET title"
    preview = b"Exif\0\0" + b"II*\0\x08\0\0\0\0\0" + save(SCENE[:16, :16], "JPEG")
    for marker, body in ((0xED, iptc), (0xE1, preview)):
        data = data[:2] + bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body + data[2:]
    return data


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_no_metadata(kind: str) -> None:
    data = talkative(kind)
    assert b"SECRET" in data  # there is something to remove
    small = thumbnail(data, 64)
    for secret in SECRETS:
        assert secret not in small
    assert small.count(b"\xff\xd8\xff") == 1, "an embedded preview"
    image = Image.open(io.BytesIO(small))
    assert image.format == "JPEG" and max(image.size) == 64
    assert not image.getexif() and not image.applist[1:]
    assert all(name.startswith("jfif") for name in image.info)


def test_it_is_upright_and_srgb() -> None:
    stored = Image.fromarray(SCENE).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    small = thumbnail(save(stored, "JPEG", quality=95, exif=exif, icc_profile=profile("bgr")), 60, quality=95)
    expected = np.asarray(Image.fromarray(SCENE[..., ::-1]).resize((60, 40), Image.Resampling.BICUBIC))
    assert away(decode(small), expected) < 4


def test_size_box_and_quality() -> None:
    assert decode(thumbnail(SCENE, 30)).shape == (20, 30, 3)
    assert decode(thumbnail(SCENE, 500)).shape == SCENE.shape  # never enlarged
    assert away(decode(thumbnail(SCENE, 40, box=(0, 0, 40, 20), quality=95)), SCENE[:20, :40]) < 4
    assert len(thumbnail(SCENE, quality=20)) < len(thumbnail(SCENE, quality=95))
    assert thumbnail(SCENE) == thumbnail(SCENE.copy())


def test_unreadable() -> None:
    with pytest.raises(UnreadableImage):
        thumbnail(b"no image")
