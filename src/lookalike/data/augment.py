"""RandAugment and random erasing, drawing from the stream they are given.

`rand-m9-mstd0.5` is read as timm reads it: two of fifteen changes, each made with a chance of one half at a strength
drawn around 9 of 10. `rand-tv9` is torchvision's `RandAugment(2, 9)`: two of fourteen changes at 9 of 30, always made,
one of them none. Written here because theirs draw from global streams, which a resumed run cannot follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from lookalike.core.errors import LookalikeError

Change = Callable[[Image.Image, float, float, tuple[int, int, int]], Image.Image]


def _affine(matrix: Callable[[Image.Image, float], tuple[float, ...]], most: float) -> Change:
    def change(image: Image.Image, share: float, sign: float, fill: tuple[int, int, int]) -> Image.Image:
        data = matrix(image, sign * most * share)
        kind, filtering = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        return image.transform(image.size, kind, data, filtering, fillcolor=fill)

    return change


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Change:
    return lambda image, share, sign, fill: kind(image).enhance(0.1 + 1.8 * share)


def _rotate(image: Image.Image, share: float, sign: float, fill: tuple[int, int, int]) -> Image.Image:
    return image.rotate(sign * 30 * share, Image.Resampling.BILINEAR, fillcolor=fill)


def _brighten_dark(image: Image.Image, share: float, sign: float, fill: tuple[int, int, int]) -> Image.Image:
    add = min(128, int(110 * share))
    return image.point([min(255, level + add) if level < 128 else level for level in range(256)] * 3)


CHANGES: dict[str, Change] = {
    "auto contrast": lambda image, share, sign, fill: ImageOps.autocontrast(image),
    "equalize": lambda image, share, sign, fill: ImageOps.equalize(image),
    "invert": lambda image, share, sign, fill: ImageOps.invert(image),
    "rotate": _rotate,
    "posterize": lambda image, share, sign, fill: ImageOps.posterize(image, max(1, int(4 * share))),
    "solarize": lambda image, share, sign, fill: ImageOps.solarize(image, int(256 * share)),
    "solarize, add": _brighten_dark,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear x": _affine(lambda image, by: (1, by, 0, 0, 1, 0), 0.3),
    "shear y": _affine(lambda image, by: (1, 0, 0, by, 1, 0), 0.3),
    "move x": _affine(lambda image, by: (1, 0, by * image.width, 0, 1, 0), 0.45),
    "move y": _affine(lambda image, by: (1, 0, 0, 0, 1, by * image.height), 0.45),
}


def _move(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def _pixels(side: int, share: float) -> int:
    """Of a side, truncated as torchvision does."""
    return int(150 / 331 * side * share)


# torchvision's, at a share of the most and with either sign; what a move uncovers is black.
PLAIN_CHANGES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "none": lambda image, share: image,
    "shear x": lambda image, share: _move(image, 1, 0.3 * share, 0, 0, 1, 0),
    "shear y": lambda image, share: _move(image, 1, 0, 0, 0.3 * share, 1, 0),
    "move x": lambda image, share: _move(image, 1, 0, -_pixels(image.width, share), 0, 1, 0),
    "move y": lambda image, share: _move(image, 1, 0, 0, 0, 1, -_pixels(image.height, share)),
    "rotate": lambda image, share: image.rotate(30 * share, Image.Resampling.NEAREST),
    "brightness": lambda image, share: ImageEnhance.Brightness(image).enhance(1 + 0.9 * share),
    "color": lambda image, share: ImageEnhance.Color(image).enhance(1 + 0.9 * share),
    "contrast": lambda image, share: ImageEnhance.Contrast(image).enhance(1 + 0.9 * share),
    "sharpness": lambda image, share: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * share),
    "posterize": lambda image, share: ImageOps.posterize(image, 8 - round(4 * abs(share))),
    "solarize": lambda image, share: ImageOps.solarize(image, math.ceil(255 * (1 - abs(share)))),
    "auto contrast": lambda image, share: ImageOps.autocontrast(image),
    "equalize": lambda image, share: ImageOps.equalize(image),
}


class Strength(NamedTuple):
    magnitude: float
    deviation: float
    most: float
    """10 for timm's, 30 for torchvision's."""


def parse(text: str) -> Strength:
    """Of `rand-m9-mstd0.5` (timm's, up to 10) or `rand-tv9` (torchvision's, up to 30)."""
    found = re.fullmatch(r"rand-(?:tv(\d+)|m(\d+(?:\.\d+)?)(?:-mstd(\d+(?:\.\d+)?))?)", text)
    if found and found[1] and int(found[1]) <= 30:
        return Strength(int(found[1]), 0.0, 30.0)
    if not found or found[1] or float(found[2]) > 10:
        raise LookalikeError(
            f"`{text}` is not an augmentation; write it as rand-m9-mstd0.5, the strength up to 10, or as rand-tv9, "
            "the strength up to 30."
        )
    return Strength(float(found[2]), float(found[3] or 0), 10.0)


def rand_augment(
    image: Image.Image, text: str, rng: np.random.Generator, fill: tuple[int, int, int], layers: int = 2
) -> Image.Image:
    """Two changes in a row."""
    magnitude, deviation, most = parse(text)
    plain = most == 30
    names = list(PLAIN_CHANGES if plain else CHANGES)
    for _ in range(layers):
        name = names[rng.integers(len(names))]
        if plain:
            sign = 1.0 if rng.random() < 0.5 else -1.0
            image = PLAIN_CHANGES[name](image, sign * magnitude / most)
            continue
        made, sign = rng.random() < 0.5, 1.0 if rng.random() < 0.5 else -1.0
        share = float(np.clip(rng.normal(magnitude, deviation), 0, most)) / most
        if made:
            image = CHANGES[name](image, share, sign, fill)
    return image


def erase(pixels: np.ndarray, rng: np.random.Generator, fill: tuple[int, int, int]) -> np.ndarray:
    """Paint a random box (2–33 % of the area, sides 0.3–3.3 to one) in the mean color."""
    height, width = pixels.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(0.02, 1 / 3)
        shape = float(np.exp(rng.uniform(np.log(0.3), np.log(1 / 0.3))))
        down, across = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
        if down < height and across < width:
            y, x = rng.integers(0, height - down + 1), rng.integers(0, width - across + 1)
            out = pixels.copy()
            out[y : y + down, x : x + across] = fill
            return out
    return pixels
