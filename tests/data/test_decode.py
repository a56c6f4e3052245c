"""The same scene in every format comes out as the same picture, and nothing else than UnreadableImage comes out."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms
from tests import helpers

from lookalike.core.errors import LookalikeError
from lookalike.data.decode import Preprocess, UnreadableImage, content_id, decode, prepare, shrink

SCENE = helpers.picture(3, width=120, height=80)
GREY = np.asarray(Image.fromarray(SCENE).convert("L"))
ALPHA = np.linspace(0, 255, 120).astype(np.uint8)[None].repeat(80, 0)
INVERSE = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def save(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def away(pixels: np.ndarray, reference: np.ndarray = SCENE) -> float:
    """Mean difference from the reference, in levels of 255."""
    assert pixels.dtype == np.uint8 and pixels.shape == reference.shape
    return float(np.abs(pixels.astype(int) - reference).mean())


def as_rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, 2)


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


def profile(columns: str = "rgb", gamma: float | None = None, grey: bool = False) -> bytes:
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
    if grey:
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
        ">I4sI4s4s4s", at + len(body), b"\0\0\0\0", 0x02400000, b"mntr", b"GRAY" if grey else b"RGB ", b"XYZ "
    )
    head += b"\0" * 12 + b"acsp" + b"\0" * 28 + fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table_bytes + body


PALETTE = Image.fromarray(SCENE).quantize(255)
RGBA = np.dstack([SCENE, ALPHA])
SIXTEEN = SCENE.astype(np.uint16) * 257
OTHER = Image.fromarray(helpers.picture(9, width=120, height=80))
BILEVEL = Image.fromarray(GREY).convert("1")
GREY_ALPHA = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)])
BIG_ENDIAN = Image.frombytes("I;16B", (120, 80), (GREY.astype(">u2") * 257).tobytes())
TO_LAB = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
IN_LAB = ImageCms.profileToProfile(Image.fromarray(SCENE), *TO_LAB, outputMode="LAB")
CMYK = Image.fromarray(SCENE).convert("CMYK")

# name -> file, reference, greatest mean difference
FORMATS: dict[str, tuple[bytes, np.ndarray, float]] = {
    "jpeg": (save(SCENE, "JPEG", quality=95), SCENE, 1.2),
    "jpeg, progressive": (save(SCENE, "JPEG", quality=95, progressive=True), SCENE, 1.2),
    "jpeg, rgb": (save(SCENE, "JPEG", quality=95, keep_rgb=True), SCENE, 1.2),
    "jpeg, grey": (save(GREY, "JPEG", quality=95), as_rgb(GREY), 1.2),
    "jpeg, cmyk": (save(CMYK, "JPEG", quality=95), SCENE, 1.5),
    "png": (save(SCENE, "PNG"), SCENE, 0),
    "png, grey": (save(GREY, "PNG"), as_rgb(GREY), 0),
    "png, bilevel": (save(BILEVEL, "PNG"), as_rgb(np.asarray(BILEVEL) * np.uint8(255)), 0),
    "png, palette": (save(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB")), 0),
    "png, alpha": (save(RGBA, "PNG"), over_white(SCENE), 0.01),
    "png, grey alpha": (save(GREY_ALPHA, "PNG"), over_white(as_rgb(GREY)), 0.01),
    "png, palette alpha": (save(Image.fromarray(RGBA).quantize(255), "PNG"), over_white(SCENE), 12),
    "png, 16 bit": (png16(SIXTEEN), SCENE, 0),
    "png, 16 bit grey": (save(GREY.astype(np.uint16) * 257, "PNG"), as_rgb(GREY), 0),
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
    "tiff, 16 bit": (save(GREY.astype("<u2") * 257, "TIFF"), as_rgb(GREY), 0),
    "tiff, 16 bit, big-endian": (save(BIG_ENDIAN, "TIFF"), as_rgb(GREY), 0),
    "tiff, cmyk": (save(CMYK, "TIFF"), SCENE, 0),
    "tiff, alpha": (save(RGBA, "TIFF"), over_white(SCENE), 0.01),
    "tiff, lab": (save(IN_LAB, "TIFF"), SCENE, 2.5),
    "jpeg 2000": (save(SCENE, "JPEG2000"), SCENE, 0),
    "ppm": (save(SCENE, "PPM"), SCENE, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_reference(name: str, tmp_path: Path) -> None:
    data, reference, most = FORMATS[name]
    pixels = decode(data)
    assert away(pixels, reference) <= most
    assert pixels.flags.c_contiguous and pixels.flags.writeable
    path = tmp_path / "picture"  # a file's name says nothing about its format
    path.write_bytes(data)
    np.testing.assert_array_equal(decode(path), pixels)
    np.testing.assert_array_equal(decode(str(path)), pixels)
    np.testing.assert_array_equal(decode(Image.open(path)), pixels)


@pytest.mark.needs("pillow_heif")
def test_heic() -> None:
    import pillow_heif

    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(SCENE)).save(file, quality=95)
    assert away(decode(file.getvalue())) < 2.5


def test_heic_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImage, match=r"lookalike\[heif\]"):
        decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40)


def test_cmyk_jpegs_are_stored_inverted_with_and_without_the_adobe_mark() -> None:
    """As Photoshop writes them and browsers read them."""
    data = FORMATS["jpeg, cmyk"][0]
    at = data.index(b"\xff\xee")
    assert data[at + 4 : at + 9] == b"Adobe"
    unmarked = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    np.testing.assert_array_equal(decode(unmarked), decode(data))
    assert away(decode(data)) < 1.5


def test_floats_and_32_bit_integers_are_stretched() -> None:
    ramp = np.linspace(-3, 5, 256, dtype=np.float32)[None].repeat(4, 0)
    wanted = as_rgb(np.arange(256, dtype=np.uint8)[None].repeat(4, 0))
    assert away(decode(save(ramp, "TIFF")), wanted) < 0.5
    assert away(decode(save((ramp * 1e6).astype(np.int32), "TIFF")), wanted) < 0.5
    assert not decode(save(np.full((4, 4), np.nan, np.float32), "TIFF")).any()


def test_transparent_colour_of_a_png_without_alpha() -> None:
    data = save(np.full((8, 8, 3), (10, 200, 30), np.uint8), "PNG", transparency=(10, 200, 30))
    assert (decode(data) == 255).all()


# --- orientation ---


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("turn", INVERSE)
def test_orientation(kind: str, turn: int) -> None:
    stored = Image.fromarray(SCENE)
    stored = stored if turn == 1 else stored.transpose(INVERSE[turn])
    exif = Image.Exif()
    exif[0x0112] = turn
    data = save(stored, kind, exif=exif, **({} if kind in ("PNG", "TIFF") else {"quality": 95}))
    assert away(decode(data)) < 3
    box = (10, 20, 70, 75)
    assert away(decode(data, box=box), SCENE[20:75, 10:70]) < 3
    np.testing.assert_array_equal(decode(Image.open(io.BytesIO(data))), decode(data))


def test_an_orientation_that_does_not_exist_and_a_broken_exif_block_are_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 42
    assert away(decode(save(SCENE, "JPEG", quality=95, exif=exif))) < 1.2
    for block in (b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff"):
        assert away(decode(save(SCENE, "JPEG", quality=95, exif=block))) < 1.2


# --- colour ---


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_a_profile_with_swapped_primaries_swaps_the_colours(kind: str) -> None:
    options = {"WEBP": {"lossless": True}, "PNG": {}, "TIFF": {}}.get(kind, {"quality": 95})
    tagged = save(SCENE, kind, icc_profile=profile("bgr"), **options)
    assert away(decode(tagged), SCENE[..., ::-1]) < 2.5
    assert away(decode(tagged)) > 20


def test_a_linear_profile_is_brought_to_srgb() -> None:
    light = GREY / 255
    wanted = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055) * 255
    wanted = as_rgb(np.rint(wanted).astype(np.uint8))
    linear = profile(gamma=1.0)
    assert away(decode(save(as_rgb(GREY), "PNG", icc_profile=linear)), wanted) < 1
    assert away(decode(save(GREY, "PNG", icc_profile=linear)), wanted) < 1  # an RGB profile on a grey picture
    grey = profile(gamma=1.0, grey=True)
    assert away(decode(save(GREY, "PNG", icc_profile=grey)), wanted) < 1
    assert away(decode(save(GREY, "JPEG", quality=98, icc_profile=grey)), wanted) < 2
    assert away(decode(save(GREY_ALPHA, "PNG", icc_profile=grey)), over_white(wanted)) < 1


def test_srgb_in_other_words_changes_nothing() -> None:
    plain = save(SCENE, "JPEG", quality=95)
    for icc in (profile(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()):
        np.testing.assert_array_equal(decode(save(SCENE, "JPEG", quality=95, icc_profile=icc)), decode(plain))


def test_profiles_that_are_broken_or_of_another_kind_are_ignored() -> None:
    for icc in (b"nonsense", profile("bgr")[:200], profile(gamma=1.0, grey=True)):
        assert away(decode(save(SCENE, "PNG", icc_profile=icc))) == 0


def test_both_roads_give_the_same_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for options in ({}, {"exif": exif}, {"icc_profile": profile("grb")}, {"progressive": True}, {"subsampling": 0}):
        data = save(SCENE, "JPEG", **options)
        np.testing.assert_array_equal(decode(data), decode(Image.open(io.BytesIO(data))))


# --- size ---


def test_min_side_and_box_scale_but_never_below() -> None:
    large = Image.fromarray(SCENE).resize((1203, 803), Image.Resampling.BICUBIC)
    data = save(large, "JPEG", quality=95)
    assert decode(data).shape == (803, 1203, 3)
    assert decode(data, min_side=90).shape == (101, 151, 3)
    assert decode(data, min_side=101).shape == (201, 301, 3)
    assert decode(data, min_side=700).shape == (803, 1203, 3)
    part = decode(data, box=(400, 200, 1200, 600), min_side=90)
    assert part.shape == (100, 200, 3)
    small = Image.fromarray(decode(data, box=(400, 200, 1200, 600))).resize((200, 100), Image.Resampling.BICUBIC)
    assert away(part, np.asarray(small)) < 1.5


@pytest.mark.parametrize("box", [(-50, -50, 60, 40), (60, 40, 500, 500), (10.5, 3.2, 11, 3.9)])
def test_a_box_is_cut_at_the_border(box: tuple[float, ...]) -> None:
    x1, y1, x2, y2 = max(box[0], 0), max(box[1], 0), min(box[2], 120), min(box[3], 80)
    expected = SCENE[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))]
    np.testing.assert_array_equal(decode(FORMATS["png"][0], box=box), expected)
    assert prepare(FORMATS["jpeg"][0], Preprocess(16), box=np.array(box)).shape == (16, 16, 3)


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (200, 0, 300, 10), (30, 0, 10, 10), (0, 0, float("nan"), 3)])
@pytest.mark.parametrize("name", ["png", "jpeg"])
def test_a_box_with_nothing_in_it(box: tuple[float, ...], name: str) -> None:
    with pytest.raises(UnreadableImage, match="box"):
        prepare(FORMATS[name][0], Preprocess(16), box=box)


@pytest.mark.parametrize("size", [32, 48, 96, 224])
def test_prepare_is_near_the_full_decode(size: int) -> None:
    large = Image.fromarray(helpers.picture(5, width=90, height=60)).resize((613, 407), Image.Resampling.BICUBIC)
    data = save(large, "JPEG", quality=92)
    pre = Preprocess(size)
    full = Image.fromarray(decode(data))
    side = 407 * 0.875
    box = ((613 - side) / 2, (407 - side) / 2, (613 + side) / 2, (407 + side) / 2)
    wanted = np.asarray(full.resize((size, size), Image.Resampling.BICUBIC, box=box))
    assert away(prepare(data, pre), wanted) < 0.6
    np.testing.assert_array_equal(prepare(decode(data), pre), wanted)
    np.testing.assert_array_equal(prepare(save(full, "PNG"), pre), wanted)


def test_prepare_cuts_the_box_then_the_centre() -> None:
    data = FORMATS["png"][0]
    whole = prepare(data, Preprocess(40, crop=1.0), box=(20, 0, 100, 80))
    assert away(whole, np.asarray(Image.fromarray(SCENE[:, 20:100]).resize((40, 40), Image.Resampling.BICUBIC))) < 0.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_tiny_and_thin_pictures(shape: tuple[int, int]) -> None:
    pixels = np.full((*shape, 3), 77, np.uint8)
    for data in (save(pixels, "PNG"), save(pixels, "JPEG", quality=95)):
        assert decode(data).shape == (*shape, 3)
        assert (np.abs(prepare(data, Preprocess(24)).astype(int) - 77) <= 1).all()


def test_shrink() -> None:
    large = save(Image.fromarray(SCENE).resize((1200, 800), Image.Resampling.BICUBIC), "JPEG", quality=95)
    assert shrink(large, 80).shape == (80, 120, 3)
    assert shrink(large, 120, of=max).shape == (80, 120, 3)
    assert shrink(large, 40, box=(0, 0, 400, 800)).shape == (80, 40, 3)
    assert shrink(FORMATS["png"][0], 400).shape == SCENE.shape
    assert away(shrink(large, 80)) < 2


# --- what may be given ---


def test_arrays() -> None:
    np.testing.assert_array_equal(decode(SCENE), SCENE)
    np.testing.assert_array_equal(decode(GREY), as_rgb(GREY))
    np.testing.assert_array_equal(decode(GREY[..., None]), as_rgb(GREY))
    np.testing.assert_array_equal(decode(SIXTEEN), SCENE)
    np.testing.assert_array_equal(decode(SCENE.astype(np.float32) / 255), SCENE)
    assert away(decode(RGBA), over_white(SCENE)) < 0.01
    np.testing.assert_array_equal(decode(SCENE[::2, ::-1]), SCENE[::2, ::-1])
    for wrong in (np.zeros((3, 8, 8), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(4), SCENE.astype(int)):
        with pytest.raises(UnreadableImage, match="array"):
            decode(wrong)
    with pytest.raises(UnreadableImage, match="floats from 0 to 1"):
        decode(SCENE.astype(np.float32))


def test_content_id_is_about_pixels() -> None:
    same = {content_id(FORMATS[name][0]) for name in ("png", "bmp", "tiff", "webp, lossless", "apng")}
    assert same == {content_id(SCENE)}
    changed = SCENE.copy()
    changed[0, 0, 0] ^= 1
    others = [changed, SCENE[:, ::-1], SCENE.reshape(120, 80, 3), SCENE[:-1]]
    assert len(same | {content_id(other) for other in others}) == 5
    assert content_id(SCENE, box=(0, 0, 50, 40)) == content_id(SCENE[:40, :50])


def test_preprocess() -> None:
    pre = Preprocess(224, 0.9, "bilinear", [0.1, 0.2, 0.3], (1, 1, 1))  # type: ignore[arg-type]
    assert Preprocess.from_json(pre.to_json()) == pre == pickle.loads(pickle.dumps(pre))
    assert hash(pre) == hash(Preprocess.from_json(pre.to_json()))
    with pytest.raises(LookalikeError, match="did you mean `bicubic`"):
        Preprocess(224, interpolation="bicubik")
    for size, crop in ((0, 0.875), (224, 0.0), (224, 1.5)):
        with pytest.raises(LookalikeError):
            Preprocess(size, crop)


# --- what cannot be read ---


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
def test_the_reason_is_given(data: bytes, reason: str, tmp_path: Path) -> None:
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


def test_a_jpeg_with_endless_scans_is_refused() -> None:
    data = bytearray(save(np.zeros((16, 16, 3), np.uint8), "JPEG", progressive=True))
    at = data.index(b"\xff\xc2")
    data[at + 5 : at + 9] = struct.pack(">HH", 14_000, 14_000)
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(UnreadableImage, match="scans"):
        decode(bytes(data[:scan] + data[scan:-2] * 200 + data[-2:]))


def test_files_beyond_memory_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    with path.open("wb") as file:
        file.truncate(2_000_000_001)  # sparse
    with pytest.raises(UnreadableImage, match="larger than 2 GB"):
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


def test_many_threads_at_once() -> None:
    jobs = [(data, decode(data)) for data, _, _ in FORMATS.values()]
    jobs += [(d, decode(d)) for d in [save(SCENE, "JPEG", icc_profile=profile(order)) for order in ("bgr", "grb")]]

    def check(job: tuple[bytes, np.ndarray]) -> bool:
        return bool((decode(job[0]) == job[1]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, jobs * 8))
