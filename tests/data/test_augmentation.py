"""Views give the same square for the same stream, and the parts they promise."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from tests.data.scenes import SCENE, away

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data.augmentation import CenterView, CropView, RandomView
from lookalike.data.decoding import Preprocess, prepare

PRE = Preprocess(32)
STRONG = RandomView(PRE, scale=(0.1, 0.9), color_jitter=1.0, grayscale=0.2, blur=0.5)
# Left to right 0 to 255 in red, top to bottom in green: a square's colors say where it was taken.
PLACE = np.dstack(np.broadcast_arrays(np.arange(256)[None], np.arange(256)[:, None], 77)).astype(np.uint8)


def draw(view: Any, seed: int, pixels: np.ndarray = SCENE) -> Any:
    return view(pixels, numpy_rng(seed, "views"))


def test_the_center_view_is_the_input_of_the_model() -> None:
    np.testing.assert_array_equal(CenterView(PRE)(SCENE), prepare(SCENE, PRE))
    np.testing.assert_array_equal(draw(CenterView(PRE), 1), prepare(SCENE, PRE))


@pytest.mark.parametrize("view", [RandomView(PRE), STRONG, RandomView(PRE, flip=False)])
def test_the_stream_decides(view: RandomView) -> None:
    first, again, other = draw(view, 1), draw(view, 1), draw(view, 2)
    assert first.shape == (32, 32, 3) and first.dtype == np.uint8 and first.flags.writeable
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_image_is_not_changed() -> None:
    pixels = SCENE.copy()
    pixels.flags.writeable = False
    for seed in range(10):
        draw(STRONG, seed, pixels)
    np.testing.assert_array_equal(pixels, SCENE)


def test_parts_lie_where_they_should() -> None:
    view = RandomView(PRE, scale=(0.2, 0.5), flip=True)
    mirrored, areas = 0, []
    for seed in range(300):
        part = draw(view, seed, PLACE).astype(float)
        across, down = (
            (part[:, -1, 0] - part[:, 0, 0]).mean() / 31 * 32,
            (part[-1, :, 1] - part[0, :, 1]).mean() / 31 * 32,
        )
        mirrored += across < 0
        assert down > 0  # never upside down
        areas.append(abs(across) * down / 255**2)
        assert 0.7 < abs(across) / down < 1.4
        assert abs(part[..., 2] - 77).max() <= 1  # colors are left alone
    assert 120 < mirrored < 180
    assert 0.18 < min(areas) < 0.23 and 0.47 < max(areas) < 0.52
    assert 0.33 < np.mean(areas) < 0.37


@pytest.mark.parametrize(("width", "height"), [(100, 80), (1, 1), (1000, 3), (3, 1000), (7, 5)])
def test_boxes_stay_inside(width: int, height: int) -> None:
    rng = numpy_rng(0, width)
    for _ in range(200):
        x, y, across, down = RandomView(PRE, (0.08, 1.0))._box(width, height, rng)
        assert x >= 0 and y >= 0 and across > 0 and down > 0
        assert x + across <= width + 1e-9 and y + down <= height + 1e-9
        assert 0.74 < across / down < 1.34
    assert draw(RandomView(PRE), 0, np.zeros((height, width, 3), np.uint8)).shape == (32, 32, 3)


def test_jitter_changes_colors_and_gray_takes_them_away() -> None:
    plain = RandomView(PRE, scale=(1, 1), ratio=(1, 1), flip=False)
    square = SCENE[:, :80]
    reference = draw(plain, 0, square)
    jittered = [
        draw(RandomView(PRE, (1, 1), (1, 1), False, color_jitter=0.5, color_jitter_probability=1.0), seed, square)
        for seed in range(8)
    ]
    assert all(away(one, reference) > 1 for one in jittered)
    assert len({one.tobytes() for one in jittered}) == 8
    gray = draw(RandomView(PRE, (1, 1), (1, 1), False, grayscale=1.0), 0, square)
    assert (gray == gray[..., :1]).all()
    noise = numpy_rng(0, "noise").integers(0, 256, (80, 80, 3)).astype(np.uint8)
    blurred = draw(RandomView(Preprocess(80), (1, 1), (1, 1), False, blur=1.0), 3, noise)
    assert np.abs(np.diff(blurred.astype(int), axis=1)).mean() < np.abs(np.diff(noise.astype(int), axis=1)).mean()


def test_solarized_views_turn_bright_pixels_dark() -> None:
    pre = Preprocess(size=16, crop=1.0)
    bright, dark = np.full((20, 20, 3), 200, np.uint8), np.full((20, 20, 3), 50, np.uint8)
    view = RandomView(pre, scale=(1.0, 1.0), flip=False, solarize=1.0)
    assert (view(bright, numpy_rng(0)) == 55).all() and (view(dark, numpy_rng(0)) == 50).all()
    assert (RandomView(pre, scale=(1.0, 1.0), flip=False)(bright, numpy_rng(0)) == 200).all()


def test_colors_fade_less_with_a_smaller_fraction_of_the_jitter() -> None:
    pre = Preprocess(size=16, crop=1.0)
    red = np.zeros((20, 20, 3), np.uint8)
    red[..., 0] = 200

    def color(saturation: float) -> float:
        view = RandomView(
            pre, scale=(1.0, 1.0), flip=False, color_jitter=0.5, color_jitter_probability=1.0, saturation=saturation
        )
        result = [view(red, numpy_rng(seed)).astype(float) for seed in range(40)]
        shares = [f.min(-1).mean() / max(f.max(-1).mean(), 1e-9) for f in result]
        return float(np.mean(shares))

    assert color(0.0) < color(0.5) < color(1.0)


def test_a_plain_crop_is_as_large_as_the_center_crop_and_lies_anywhere() -> None:
    view = CropView(PRE, flip=False)
    assert view != RandomView(PRE, flip=False)
    boxes = [view._box(100, 60, numpy_rng(0, n)) for n in range(300)]
    side = 60 * PRE.crop
    assert all(across == down == side and 0 <= x <= 100 - side and 0 <= y <= 60 - side for x, y, across, down in boxes)
    assert max(x for x, *_ in boxes) > 0.9 * (100 - side) and min(y for _, y, *_ in boxes) < 0.1 * (60 - side)


@pytest.mark.parametrize("view", [CenterView(PRE), STRONG, CropView(PRE)])
def test_views_can_be_written_down_and_sent(view: Any) -> None:
    again = pickle.loads(pickle.dumps(view))
    assert again == view and hash(again) == hash(view)
    assert json.loads(json.dumps(view.to_json()))["kind"] == view.kind


def test_wrong_settings() -> None:
    with pytest.raises(LookalikeError, match="scale"):
        RandomView(PRE, scale=(0.5, 0.2))
