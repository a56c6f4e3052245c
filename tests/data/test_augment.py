"""RandAugment and erasing: drawn from the stream alone, never of another size."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import augment
from lookalike.data.decoding import Preprocess
from lookalike.data.views import RandomView, view_from_json

PRE = Preprocess(size=24, crop=1.0, interpolation="bicubic", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
FILL = (128, 102, 76)


def picture() -> np.ndarray:
    return numpy_rng(0, "picture").integers(0, 256, (30, 40, 3), np.uint8)


@pytest.mark.parametrize("name", augment.CHANGES)
@pytest.mark.parametrize("share", [0.0, 0.9, 1.0])
def test_every_change_keeps_size_and_kind(name, share):
    image = Image.fromarray(picture())
    for sign in (1.0, -1.0):
        out = augment.CHANGES[name](image, share, sign, FILL)
        assert out.size == image.size and out.mode == "RGB"
    if share == 0.9:
        assert not np.array_equal(np.array(out), picture()) or name == "auto contrast"


def test_the_same_stream_gives_the_same_view_and_another_one_another():
    view = RandomView(PRE, augment="rand-m9-mstd0.5", erase=1.0)
    first, again, other = (view(picture(), numpy_rng(seed, "view")) for seed in (1, 1, 2))
    assert first.shape == (24, 24, 3)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert view_from_json(view.to_json()) == view
    made = [RandomView(PRE, augment="rand-m9-mstd0.5")(picture(), numpy_rng(s, "view")) for s in range(12)]
    bare = [RandomView(PRE)(picture(), numpy_rng(s, "view")) for s in range(12)]
    changed = sum(not np.array_equal(a, b) for a, b in zip(made, bare, strict=True))
    assert 4 <= changed <= 12  # three of four views have at least one of the two changes


def test_erasing_paints_one_box_in_the_mean_colour():
    out = augment.erase(picture(), numpy_rng(0, "erase"), FILL)
    painted = (out == FILL).all(2)
    rows, columns = np.flatnonzero(painted.any(1)), np.flatnonzero(painted.any(0))
    assert painted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    assert 0.015 < painted.mean() < 0.36
    assert np.array_equal(out[~painted], picture()[~painted])


@pytest.mark.parametrize("text", ["rand", "rand-m11", "auto-m9", "rand-m9-mstd"])
def test_a_wrong_augmentation_is_one_sentence(text):
    with pytest.raises(LookalikeError, match="is not an augmentation"):
        RandomView(PRE, augment=text)
