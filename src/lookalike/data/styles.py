"""Style changes of images, to test how a model copes with a shift of style before it happens."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps

from lookalike.core.errors import LookalikeError, choose
from lookalike.data.decoding import Preprocess, prepare

STRENGTHS = (1, 2, 3)
Steps = tuple[tuple[str, int], ...]  # styles and their strengths, one after the other


@dataclass(frozen=True)
class StyleView:
    """The center crop with one or several style changes. Only `noise` draws random numbers.

    Args:
        pre: Size, crop and normalization of the model's input.
        steps: Names of `STYLES` and their strengths (1 to 3), applied in order.
        cropped: Whether the pixels are the center crop already.

    Example:
        >>> view = StyleView(la.data.Preprocess(size=32), (("blur", 2), ("gray", 3)))
        >>> view(np.zeros((60, 80, 3), np.uint8), np.random.default_rng(0)).shape
        (32, 32, 3)
    """

    kind: ClassVar[str] = "style"
    pre: Preprocess
    steps: Steps
    cropped: bool = False

    def __post_init__(self) -> None:
        for style, strength in self.steps:
            choose(style, STYLES, "a style")
            if strength not in STRENGTHS:
                raise LookalikeError(f"The strength of a style is {strength}; it must be 1, 2 or 3.")

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = Image.fromarray(pixels if self.cropped else prepare(pixels, self.pre))
        for style, strength in self.steps:
            image = _CHANGES[style](image, strength, rng)
        return np.array(image)

    def to_json(self) -> dict[str, Any]:
        steps = [list(step) for step in self.steps]
        return {"kind": self.kind, "pre": self.pre.to_json(), "steps": steps, "cropped": self.cropped}


def _noise(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    values = np.asarray(image, np.float32) + rng.normal(0, (0, 15, 30, 50)[strength], (image.height, image.width, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=(0, 30, 15, 6)[strength])
    return Image.open(file).convert("RGB")


def _color(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    """Rotate the hue by up to a third of the circle, with stronger colors."""
    hue, saturation, value = image.convert("HSV").split()
    hue = hue.point([(level + 28 * strength) % 256 for level in range(256)])
    rotated_hue = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    return ImageEnhance.Color(rotated_hue).enhance(1 + 0.3 * strength)


def _poster(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    """Flat areas of few colors, as in a cartoon."""
    flat = Image.fromarray(median(np.asarray(image), (0, 3, 5, 7)[strength]))
    return ImageEnhance.Color(ImageOps.posterize(flat, 5 - strength)).enhance(1.4)


def median(pixels: np.ndarray, size: int) -> np.ndarray:
    """Return the result of Pillow's `MedianFilter`, several times as fast: all windows at once, by comparisons.

    Of half of the values plus two, neither the least nor the greatest is the median; they make way for the next.
    """
    edge, (height, width) = size // 2, pixels.shape[:2]
    wide = np.pad(pixels, ((edge, edge), (edge, edge), (0, 0)), mode="edge")
    rest = [wide[y : y + height, x : x + width] for y in range(size) for x in range(size)]
    window = [rest.pop().copy() for _ in range(len(rest) // 2 + 2)]
    spare = np.empty_like(window[0])
    while len(window) > 1:
        last = len(window) - 1
        orders = [(k, last - k) for k in range(len(window) // 2)]
        orders += [(0, k) for k in range(1, (len(window) + 1) // 2)]
        orders += [(k, last) for k in range(len(window) // 2, last)]
        for low, high in orders:
            np.minimum(window[low], window[high], out=spare)
            np.maximum(window[low], window[high], out=window[high])
            window[low], spare = spare, window[low]
        window = window[1:-1]
        if rest:
            window.append(rest.pop().copy())
    return window[0]


def _sketch(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    """Lines on white: the gray image divided by its blurred self."""
    gray = np.asarray(image.convert("L"), np.float32)
    soft = image.convert("L").filter(ImageFilter.GaussianBlur(5 * image.width / 224))
    lines = (gray * 255 / np.maximum(np.asarray(soft, np.float32), 1)).clip(0, 255)
    lines = 255 * (lines / 255) ** strength  # darker lines
    drawn = Image.fromarray(lines.astype(np.uint8)).convert("RGB")
    return drawn if strength == 3 else ImageChops.blend(image, drawn, 0.35 + 0.3 * strength)


def _edges(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    """Outlines alone, softer the stronger."""
    lines = ImageOps.invert(image.convert("L").filter(ImageFilter.FIND_EDGES)).convert("RGB")
    return lines.filter(ImageFilter.GaussianBlur(0.5 * strength))


def _pixel(image: Image.Image, strength: int, rng: np.random.Generator) -> Image.Image:
    coarse = tuple(max(1, side // 2**strength) for side in image.size)
    return image.resize(coarse, Image.Resampling.BILINEAR).resize(image.size, Image.Resampling.NEAREST)


Change = Callable[[Image.Image, int, np.random.Generator], Image.Image]
_CHANGES: dict[str, Change] = {
    "gray": lambda image, strength, rng: Image.blend(image, image.convert("L").convert("RGB"), strength / 3),
    "blur": lambda image, strength, rng: image.filter(
        ImageFilter.GaussianBlur((0, 1.2, 2.4, 4.0)[strength] * image.width / 224)
    ),
    "noise": _noise,
    "jpeg": _jpeg,
    "color": _color,
    "poster": _poster,
    "sketch": _sketch,
    "negative": lambda image, strength, rng: Image.blend(image, ImageOps.invert(image), strength / 3),
    "edges": _edges,
    "pixel": _pixel,
    "dark": lambda image, strength, rng: ImageEnhance.Brightness(image).enhance((0, 0.6, 0.4, 0.25)[strength]),
    "pale": lambda image, strength, rng: Image.blend(
        image, Image.new("RGB", image.size, "white"), (0, 0.4, 0.6, 0.75)[strength]
    ),
    "relief": lambda image, strength, rng: Image.blend(image, image.filter(ImageFilter.EMBOSS), strength / 3),
}
STYLES = tuple(_CHANGES)
