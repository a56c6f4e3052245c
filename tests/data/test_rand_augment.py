"""RandAugment and erasing: drawn from the stream alone, never of another size."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import augmentation
from lookalike.data.augmentation import RandomView
from lookalike.data.decoding import Preprocess

PRE = Preprocess(size=24, crop=1.0, interpolation="bicubic", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
FILL = (128, 102, 76)


def make_image() -> np.ndarray:
    return numpy_rng(0, "picture").integers(0, 256, (30, 40, 3), np.uint8)


@pytest.mark.parametrize("name", augmentation.CHANGES)
@pytest.mark.parametrize("share", [0.0, 0.9, 1.0])
def test_every_change_keeps_size_and_kind(name, share):
    image = Image.fromarray(make_image())
    for sign in (1.0, -1.0):
        out = augmentation.CHANGES[name](image, share, sign, FILL)
        assert out.size == image.size and out.mode == "RGB"
    if share == 0.9:
        assert not np.array_equal(np.array(out), make_image()) or name == "auto contrast"


def test_the_same_stream_gives_the_same_view_and_another_one_another():
    view = RandomView(PRE, rand_augment="rand-m9-mstd0.5", random_erasing=1.0)
    first, again, other = (view(make_image(), numpy_rng(seed, "view")) for seed in (1, 1, 2))
    assert first.shape == (24, 24, 3)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    made = [RandomView(PRE, rand_augment="rand-m9-mstd0.5")(make_image(), numpy_rng(s, "view")) for s in range(12)]
    bare = [RandomView(PRE)(make_image(), numpy_rng(s, "view")) for s in range(12)]
    changed = sum(not np.array_equal(a, b) for a, b in zip(made, bare, strict=True))
    assert 4 <= changed <= 12  # three of four views have at least one of the two changes


NAMES = {
    "none": "Identity", "shear x": "ShearX", "shear y": "ShearY", "move x": "TranslateX", "move y": "TranslateY",
    "rotate": "Rotate", "brightness": "Brightness", "color": "Color", "contrast": "Contrast",
    "sharpness": "Sharpness", "posterize": "Posterize", "solarize": "Solarize", "auto contrast": "AutoContrast",
    "equalize": "Equalize",
}  # fmt: skip


@pytest.mark.parametrize("magnitude", [0, 9, 15, 30])
def test_plain_changes_are_those_of_torchvision(magnitude):
    """All fourteen, bit for bit, at either sign."""
    from lookalike.core.imports import prepare_torchvision

    prepare_torchvision()
    from torchvision.transforms import InterpolationMode, RandAugment, autoaugment

    image = Image.fromarray(make_image())
    space = RandAugment(2, magnitude)._augmentation_space(31, (image.height, image.width))
    assert list(augmentation.PLAIN_CHANGES) == list(NAMES) and list(NAMES.values()) == list(space)
    for ours, theirs in NAMES.items():
        values, signed = space[theirs]
        size = float(values[magnitude]) if values.ndim else 0.0
        for sign in (1, -1):
            change = sign * size if signed else size
            expected = autoaugment._apply_op(image, theirs, change, InterpolationMode.NEAREST, None)
            result = augmentation.PLAIN_CHANGES[ours](image, sign * magnitude / 30)
            assert np.array_equal(np.array(result), np.array(expected)), (ours, sign)


def test_plain_changes_are_always_made_and_drawn_evenly():
    image, seen = Image.fromarray(make_image()), dict.fromkeys(augmentation.PLAIN_CHANGES, 0)
    with pytest.MonkeyPatch.context() as patch:
        for name in seen:
            patch.setitem(
                augmentation.PLAIN_CHANGES, name, lambda image, share, n=name: seen.update({n: seen[n] + 1}) or image
            )
        for seed in range(300):
            augmentation.rand_augment(image, "rand-tv9", numpy_rng(seed, "view"), FILL)
    assert sum(seen.values()) == 600 and min(seen.values()) > 20
    first, again = (RandomView(PRE, rand_augment="rand-tv9")(make_image(), numpy_rng(3, "view")) for _ in range(2))
    assert np.array_equal(first, again)


def test_erasing_paints_one_box_in_the_mean_color():
    out = augmentation.random_erase(make_image(), numpy_rng(0, "erase"), FILL)
    painted = (out == FILL).all(2)
    rows, columns = np.flatnonzero(painted.any(1)), np.flatnonzero(painted.any(0))
    assert painted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    assert 0.015 < painted.mean() < 0.36
    assert np.array_equal(out[~painted], make_image()[~painted])


@pytest.mark.parametrize("text", ["rand", "rand-m11", "auto-m9", "rand-m9-mstd", "rand-tv31", "rand-tv9-mstd0.5"])
def test_a_wrong_augmentation_gives_a_one_line_error(text):
    with pytest.raises(LookalikeError, match="is not an augmentation"):
        RandomView(PRE, rand_augment=text)
