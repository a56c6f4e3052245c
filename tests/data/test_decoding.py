"""The same scene in every format comes out as the same image, and nothing else than UnreadableImage comes out."""

from __future__ import annotations

import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms
from tests import helpers
from tests.data.scenes import (
    FORMATS,
    GRAY,
    GRAY_ALPHA,
    RGBA,
    SCENE,
    SIXTEEN,
    as_rgb,
    away,
    heic,
    over_white,
    profile,
    save,
)

from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import (
    Preprocess,
    UnreadableImage,
    content_id,
    decode,
    format_of,
    heif_size,
    image_size,
    prepare,
    shrink,
)

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


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_reference(name: str, tmp_path: Path) -> None:
    data, reference, most = FORMATS[name]
    pixels = decode(data)
    assert away(pixels, reference) <= most
    assert pixels.flags.c_contiguous and pixels.flags.writeable
    path = tmp_path / "image"  # a file's name says nothing about its format
    path.write_bytes(data)
    np.testing.assert_array_equal(decode(path), pixels)
    np.testing.assert_array_equal(decode(str(path)), pixels)
    np.testing.assert_array_equal(decode(Image.open(path)), pixels)
    assert image_size(data) == pixels.shape[1::-1]


@pytest.mark.needs("pillow_heif")
def test_heic() -> None:
    data = heic()
    assert away(decode(data)) < 2.5
    assert heif_size(data) == (120, 80) and format_of(data) == "HEIF"
    assert heif_size(heic(turn=6)) == (80, 120), "as it is seen"
    assert heif_size(FORMATS["jpeg"][0]) is None and format_of(FORMATS["avif"][0]) == "AVIF"


@pytest.mark.needs("pillow_heif")
def test_a_heic_files_header_is_read_without_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillow_heif.HeifFile.to_pillow", lambda self: pytest.fail("it was decoded"))
    assert heif_size(heic()) == (120, 80) and format_of(heic()) == "HEIF" and image_size(heic()) == (120, 80)
    monkeypatch.setenv("LOOKALIKE_MAX_PIXELS", "9599")
    with pytest.raises(UnreadableImage, match="LOOKALIKE_MAX_PIXELS"):
        heif_size(heic())
    with pytest.raises(UnreadableImage):
        format_of(heic()[:60])


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
    expected = as_rgb(np.arange(256, dtype=np.uint8)[None].repeat(4, 0))
    assert away(decode(save(ramp, "TIFF")), expected) < 0.5
    assert away(decode(save((ramp * 1e6).astype(np.int32), "TIFF")), expected) < 0.5
    assert not decode(save(np.full((4, 4), np.nan, np.float32), "TIFF")).any()


def test_transparent_color_of_a_png_without_alpha() -> None:
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


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_very_large_images_are_brought_down_first(mode: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands of means over squares are the means of the whole image, whatever its colors and orientation."""
    from lookalike.data import decoding
    from lookalike.data import icc as color

    rng = np.random.default_rng(0)
    scene = helpers.make_image(5, width=301, height=203)
    if mode == "I;16":
        source = Image.fromarray(scene[..., 0].astype(np.uint16) * 257)
    else:
        source = Image.fromarray(scene).convert(mode.removesuffix("A") if mode != "RGBA" else "RGB")
        if mode in ("RGBA", "LA"):
            source.putalpha(Image.fromarray(rng.integers(0, 255, scene.shape[:2]).astype(np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = turn
    data = save(source, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    whole = decode(data).astype(float)
    monkeypatch.setattr(decoding, "LARGE", 10_000)
    monkeypatch.setattr(color, "BAND", 5_000)
    small = decode(data, min_side=50)
    height, width = (76, 51) if turn == 6 else (51, 76)
    assert small.shape == (height, width, 3)
    cells = whole[: 4 * (height - 1), : 4 * (width - 1)].reshape(height - 1, 4, width - 1, 4, 3).mean(axis=(1, 3))
    if turn == 1:  # turned, the cells that are not full lie on other sides
        assert np.abs(small[:-1, :-1] - cells).max() <= 1
    assert np.abs(small.mean(axis=(0, 1)) - whole.mean(axis=(0, 1))).max() < 2
    np.testing.assert_array_equal(decode(data), whole)  # asked for whole, it is whole
    part = decode(data, box=(20, 30, 140, 150), min_side=50)
    assert part.shape == (60, 60, 3)
    assert np.abs(part.mean(axis=(0, 1)) - whole[30:150, 20:140].mean(axis=(0, 1))).max() < 2


def test_very_large_floats_are_brought_down_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = np.linspace(-3, 5, 400, dtype=np.float32)[None].repeat(300, axis=0)
    data = save(Image.fromarray(ramp), "TIFF")
    monkeypatch.setattr("lookalike.data.decoding.LARGE", 10_000)
    small = decode(data, min_side=50)
    assert small.shape == (50, 67, 3) and small[0, 0, 0] == 0 and small[0, -1, 0] == 255


# --- color ---


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_a_profile_with_swapped_primaries_swaps_the_colors(kind: str) -> None:
    options = {"WEBP": {"lossless": True}, "PNG": {}, "TIFF": {}}.get(kind, {"quality": 95})
    tagged = save(SCENE, kind, icc_profile=profile("bgr"), **options)
    assert away(decode(tagged), SCENE[..., ::-1]) < 2.5
    assert away(decode(tagged)) > 20


def test_a_linear_profile_is_brought_to_srgb() -> None:
    light = GRAY / 255
    expected = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055) * 255
    expected = as_rgb(np.rint(expected).astype(np.uint8))
    linear = profile(gamma=1.0)
    assert away(decode(save(as_rgb(GRAY), "PNG", icc_profile=linear)), expected) < 1
    assert away(decode(save(GRAY, "PNG", icc_profile=linear)), expected) < 1  # an RGB profile on a gray image
    gray = profile(gamma=1.0, gray=True)
    assert away(decode(save(GRAY, "PNG", icc_profile=gray)), expected) < 1
    assert away(decode(save(GRAY, "JPEG", quality=98, icc_profile=gray)), expected) < 2
    assert away(decode(save(GRAY_ALPHA, "PNG", icc_profile=gray)), over_white(expected)) < 1


def test_srgb_in_other_words_changes_nothing() -> None:
    plain = save(SCENE, "JPEG", quality=95)
    for icc in (profile(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()):
        np.testing.assert_array_equal(decode(save(SCENE, "JPEG", quality=95, icc_profile=icc)), decode(plain))


def test_profiles_that_are_broken_or_of_another_kind_are_ignored() -> None:
    for icc in (b"nonsense", profile("bgr")[:200], profile(gamma=1.0, gray=True)):
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
    large = Image.fromarray(helpers.make_image(5, width=90, height=60)).resize((613, 407), Image.Resampling.BICUBIC)
    data = save(large, "JPEG", quality=92)
    pre = Preprocess(size)
    full = Image.fromarray(decode(data))
    side = 407 * 0.875
    box = ((613 - side) / 2, (407 - side) / 2, (613 + side) / 2, (407 + side) / 2)
    expected = np.asarray(full.resize((size, size), Image.Resampling.BICUBIC, box=box))
    assert away(prepare(data, pre), expected) < 0.6
    np.testing.assert_array_equal(prepare(decode(data), pre), expected)
    np.testing.assert_array_equal(prepare(save(full, "PNG"), pre), expected)


def test_prepare_cuts_the_box_then_the_center() -> None:
    data = FORMATS["png"][0]
    whole = prepare(data, Preprocess(40, crop=1.0), box=(20, 0, 100, 80))
    assert away(whole, np.asarray(Image.fromarray(SCENE[:, 20:100]).resize((40, 40), Image.Resampling.BICUBIC))) < 0.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_tiny_and_thin_images(shape: tuple[int, int]) -> None:
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
    np.testing.assert_array_equal(decode(GRAY), as_rgb(GRAY))
    np.testing.assert_array_equal(decode(GRAY[..., None]), as_rgb(GRAY))
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


def test_many_threads_at_once() -> None:
    jobs = [(data, decode(data)) for data, _, _ in FORMATS.values()]
    jobs += [(d, decode(d)) for d in [save(SCENE, "JPEG", icc_profile=profile(order)) for order in ("bgr", "grb")]]

    def check(job: tuple[bytes, np.ndarray]) -> bool:
        return bool((decode(job[0]) == job[1]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, jobs * 8))


def test_a_bad_box_is_named_as_such() -> None:
    pixels = np.zeros((60, 80, 3), np.uint8)
    with pytest.raises(LookalikeError, match=r"^The box 90,0,95,10 holds nothing of the image, .* 80 × 60 pixels\.$"):
        decode(pixels, box=(90, 0, 95, 10))
    with pytest.raises(LookalikeError, match=r"^A box is x1,y1,x2,y2 in pixels, not 1,2,3\.$"):
        decode(pixels, box=(1, 2, 3))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "I;16", "CMYK"])
def test_large_images_of_any_mode_are_converted_in_parts_to_the_same(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (50, 40, 4), dtype=np.uint8)
    image = Image.fromarray(values[..., 0].astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(values)
    out = io.BytesIO()
    form, options = ("TIFF", {}) if mode == "CMYK" else ("PNG", {"transparency": 3} if mode == "P" else {})
    image.convert(mode).save(out, form, **options)
    whole = decode(out.getvalue())
    monkeypatch.setattr("lookalike.data.decoding.LARGE", 100)
    monkeypatch.setattr("lookalike.data.icc.BAND", 300)
    assert np.array_equal(decode(out.getvalue()), whole)
