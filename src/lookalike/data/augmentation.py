"""Augmentation: the views that a training step sees of an image. Pixels and a random stream in, a square out.

A view draws from the generator it receives and from nothing else, so the same stream gives the same square. That
is why RandAugment and random erasing are implemented here: those of timm and torchvision draw from global
streams, which a resumed run cannot follow. `rand-m9-mstd0.5` means what it means in timm (two of fifteen
operations, each applied with probability 0.5, at a strength drawn around 9 of 10), `rand-tv9` is torchvision's
`RandAugment(2, 9)` (two of fourteen operations at 9 of 30, always applied, one of them the identity).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess, prepare


@dataclass(frozen=True)
class CenterView:
    """The center crop, which is also the model's input at inference. Draws no random numbers.

    Args:
        pre: Size, crop and normalization of the model's input.

    Example:
        >>> view = la.data.CenterView(la.data.Preprocess(size=32))
        >>> view(np.zeros((60, 80, 3), np.uint8)).shape
        (32, 32, 3)
    """

    kind: ClassVar[str] = "center"
    pre: Preprocess

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        return prepare(pixels, self.pre)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pre": self.pre.to_json()}


@dataclass(frozen=True)
class RandomView:
    """A random resized crop, optionally mirrored and with color changes.

    Args:
        pre: Size, crop and normalization of the model's input.
        scale: Range of the crop's area, as a fraction of the image.
        ratio: Range of the crop's width divided by its height.
        flip: Whether to mirror half of the images.
        color_jitter: Strength of the color jitter as in SimCLR (1.0 is its ImageNet setting).
        color_jitter_probability: Probability of the color jitter.
        grayscale: Probability of a conversion to gray.
        blur: Probability of a Gaussian blur.
        rand_augment: RandAugment policy (`rand-m9-mstd0.5`, `rand-tv9`); empty for none.
        random_erasing: Probability of random erasing.
        saturation: Strength of the jitter of saturation, relative to `color_jitter` (BYOL: 0.5).
        solarize: Probability of solarization.

    Example:
        >>> view = la.data.RandomView(la.data.Preprocess(size=32), color_jitter=0.5)
        >>> view(np.zeros((60, 80, 3), np.uint8), np.random.default_rng(0)).shape
        (32, 32, 3)
    """

    kind: ClassVar[str] = "random"
    pre: Preprocess
    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    color_jitter: float = 0.0
    color_jitter_probability: float = 0.8
    grayscale: float = 0.0
    blur: float = 0.0
    rand_augment: str = ""
    random_erasing: float = 0.0
    saturation: float = 1.0
    solarize: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(self.scale))
        object.__setattr__(self, "ratio", tuple(self.ratio))
        if not (0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]):
            raise LookalikeError(f"A random view cannot have scale {self.scale} and ratio {self.ratio}.")
        if self.rand_augment:
            parse_rand_augment(self.rand_augment)

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        height, width = pixels.shape[:2]
        x, y, across, down = self._box(width, height, rng)
        size = (self.pre.size, self.pre.size)
        image = Image.fromarray(pixels).resize(size, self.pre.filter, box=(x, y, x + across, y + down))
        if self.flip and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.color_jitter and rng.random() < self.color_jitter_probability:
            image = _jitter(image, self.color_jitter, rng, self.saturation)
        if self.grayscale and rng.random() < self.grayscale:
            image = image.convert("L").convert("RGB")
        if self.blur and rng.random() < self.blur:
            # Radii as for 224 pixels; a smaller square is blurred less.
            image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0) * self.pre.size / 224))
        if self.solarize and rng.random() < self.solarize:
            image = ImageOps.solarize(image, 128)
        red, green, blue = (round(255 * value) for value in self.pre.mean)
        fill = (red, green, blue)
        if self.rand_augment:
            image = rand_augment(image, self.rand_augment, rng, fill)
        out = np.array(image)
        return random_erase(out, rng, fill) if self.random_erasing and rng.random() < self.random_erasing else out

    def _box(self, width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
        """Return x, y, width and height of a random crop; the largest one that fits after ten failed attempts."""
        low, high = self.ratio
        for _ in range(10):
            area = width * height * rng.uniform(*self.scale)
            shape = math.exp(rng.uniform(math.log(low), math.log(high)))
            across, down = math.sqrt(area * shape), math.sqrt(area / shape)
            if across <= width and down <= height:
                return rng.uniform(0, width - across), rng.uniform(0, height - down), across, down
        shape = min(max(width / height, low), high)
        across, down = min(width, height * shape), min(height, width / shape)
        return (width - across) / 2, (height - down) / 2, across, down

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "pre": self.pre.to_json()}


@dataclass(frozen=True)
class CropView(RandomView):
    """Like `RandomView`, but the crop is a square as large as the center crop, anywhere in the image."""

    kind: ClassVar[str] = "crop"

    def _box(self, width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
        side = min(width, height) * self.pre.crop
        return rng.uniform(0, width - side), rng.uniform(0, height - side), side, side


def _jitter(image: Image.Image, strength: float, rng: np.random.Generator, saturation: float = 1.0) -> Image.Image:
    """Change brightness, contrast, saturation and hue in random order, by up to 0.8, 0.8, 0.8 and 0.2 × strength."""
    for change in rng.permutation(4):
        if change == 3:
            shift = rng.uniform(-0.2, 0.2) * strength
            hue, pale, value = image.convert("HSV").split()
            hue = hue.point([(level + round(shift * 255)) % 256 for level in range(256)])
            image = Image.merge("HSV", (hue, pale, value)).convert("RGB")
        else:
            enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[change]
            reach = 0.8 * strength * (saturation if change == 2 else 1.0)
            image = enhance(image).enhance(max(0.0, rng.uniform(1 - reach, 1 + reach)))
    return image


# --- RandAugment and random erasing ---

Change = Callable[[Image.Image, float, float, tuple[int, int, int]], Image.Image]
_BILINEAR = Image.Resampling.BILINEAR


def _affine(matrix: Callable[[Image.Image, float], tuple[float, ...]], most: float) -> Change:
    def change(image: Image.Image, fraction: float, sign: float, fill: tuple[int, int, int]) -> Image.Image:
        data = matrix(image, sign * most * fraction)
        return image.transform(image.size, Image.Transform.AFFINE, data, _BILINEAR, fillcolor=fill)

    return change


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Change:
    return lambda image, fraction, sign, fill: kind(image).enhance(0.1 + 1.8 * fraction)


def _brighten_dark(image: Image.Image, fraction: float, sign: float, fill: tuple[int, int, int]) -> Image.Image:
    add = min(128, int(110 * fraction))
    return image.point([min(255, level + add) if level < 128 else level for level in range(256)] * 3)


CHANGES: dict[str, Change] = {
    "auto contrast": lambda image, fraction, sign, fill: ImageOps.autocontrast(image),
    "equalize": lambda image, fraction, sign, fill: ImageOps.equalize(image),
    "invert": lambda image, fraction, sign, fill: ImageOps.invert(image),
    "rotate": lambda image, fraction, sign, fill: image.rotate(sign * 30 * fraction, _BILINEAR, fillcolor=fill),
    "posterize": lambda image, fraction, sign, fill: ImageOps.posterize(image, max(1, int(4 * fraction))),
    "solarize": lambda image, fraction, sign, fill: ImageOps.solarize(image, int(256 * fraction)),
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


def _affine_nearest(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def _pixels(side: int, fraction: float) -> int:
    """Return a translation in pixels, truncated as torchvision does."""
    return int(150 / 331 * side * fraction)


# torchvision's, at a fraction of the greatest strength, with either sign; uncovered areas are black.
PLAIN_CHANGES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "none": lambda image, fraction: image,
    "shear x": lambda image, fraction: _affine_nearest(image, 1, 0.3 * fraction, 0, 0, 1, 0),
    "shear y": lambda image, fraction: _affine_nearest(image, 1, 0, 0, 0.3 * fraction, 1, 0),
    "move x": lambda image, fraction: _affine_nearest(image, 1, 0, -_pixels(image.width, fraction), 0, 1, 0),
    "move y": lambda image, fraction: _affine_nearest(image, 1, 0, 0, 0, 1, -_pixels(image.height, fraction)),
    "rotate": lambda image, fraction: image.rotate(30 * fraction, Image.Resampling.NEAREST),
    "brightness": lambda image, fraction: ImageEnhance.Brightness(image).enhance(1 + 0.9 * fraction),
    "color": lambda image, fraction: ImageEnhance.Color(image).enhance(1 + 0.9 * fraction),
    "contrast": lambda image, fraction: ImageEnhance.Contrast(image).enhance(1 + 0.9 * fraction),
    "sharpness": lambda image, fraction: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * fraction),
    "posterize": lambda image, fraction: ImageOps.posterize(image, 8 - round(4 * abs(fraction))),
    "solarize": lambda image, fraction: ImageOps.solarize(image, math.ceil(255 * (1 - abs(fraction)))),
    "auto contrast": lambda image, fraction: ImageOps.autocontrast(image),
    "equalize": lambda image, fraction: ImageOps.equalize(image),
}


def parse_rand_augment(text: str) -> tuple[float, float, float]:
    """Parse `rand-m9-mstd0.5` (timm) or `rand-tv9` (torchvision) into magnitude, deviation and scale (10 or 30)."""
    match = re.fullmatch(r"rand-(?:tv(\d+)|m(\d+(?:\.\d+)?)(?:-mstd(\d+(?:\.\d+)?))?)", text)
    if match and match[1] and int(match[1]) <= 30:
        return int(match[1]), 0.0, 30.0
    if not match or match[1] or float(match[2]) > 10:
        raise LookalikeError(
            f"`{text}` is not an augmentation; write it as rand-m9-mstd0.5, the strength up to 10, or as rand-tv9, "
            "the strength up to 30."
        )
    return float(match[2]), float(match[3] or 0), 10.0


def rand_augment(
    image: Image.Image, text: str, rng: np.random.Generator, fill: tuple[int, int, int], layers: int = 2
) -> Image.Image:
    """Apply `layers` random operations of a RandAugment policy.

    References:
        Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020.
    """
    magnitude, deviation, most = parse_rand_augment(text)
    plain = most == 30
    names = list(PLAIN_CHANGES if plain else CHANGES)
    for _ in range(layers):
        name = names[rng.integers(len(names))]
        applied = plain or rng.random() < 0.5
        sign = 1.0 if rng.random() < 0.5 else -1.0
        fraction = (magnitude if plain else float(np.clip(rng.normal(magnitude, deviation), 0, most))) / most
        if plain:
            image = PLAIN_CHANGES[name](image, sign * fraction)
        elif applied:
            image = CHANGES[name](image, fraction, sign, fill)
    return image


def random_erase(pixels: np.ndarray, rng: np.random.Generator, fill: tuple[int, int, int]) -> np.ndarray:
    """Fill a random box (2–33 % of the area, aspect ratio 0.3–3.3) with the mean color.

    References:
        Zhong et al., "Random Erasing Data Augmentation", 2020.
    """
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
