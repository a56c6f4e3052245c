"""Views: what a training step sees of an image. Pixels and a random stream in, a square out.

A view draws from the stream it is given and from nothing else, so the same stream gives the same square.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from lookalike.core.errors import LookalikeError, choose
from lookalike.data import augment
from lookalike.data.decoding import Preprocess, prepare


class View(Protocol):
    """RGB uint8 H×W×3 → uint8 size×size×3."""

    pre: Preprocess

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class CenterView:
    """What the finished model will be given: the center crop. Draws nothing."""

    kind: ClassVar[str] = "center"
    pre: Preprocess

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        return prepare(pixels, self.pre)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pre": self.pre.to_json()}


@dataclass(frozen=True)
class RandomView:
    """A random part of the image, perhaps mirrored, recolored, grayed or blurred.

    `scale` is the range of the part's area, `ratio` of its width to its height. `jitter` is the strength
    of the color changes as SimCLR counts it (1.0 is its ImageNet setting), applied with `jitter_chance`; `saturation`
    is how much of it colors get (BYOL: half). `gray`, `blur`, `solarize` and `erase` are chances; `augment` is a
    RandAugment (`rand-m9-mstd0.5`, `rand-tv9`).
    """

    kind: ClassVar[str] = "random"
    pre: Preprocess
    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    jitter: float = 0.0
    jitter_chance: float = 0.8
    gray: float = 0.0
    blur: float = 0.0
    augment: str = ""
    erase: float = 0.0
    saturation: float = 1.0
    solarize: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(self.scale))
        object.__setattr__(self, "ratio", tuple(self.ratio))
        if not (0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]):
            raise LookalikeError(f"A random view cannot have scale {self.scale} and ratio {self.ratio}.")
        if self.augment:
            augment.parse(self.augment)

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = self._part(pixels, rng)
        if self.jitter and rng.random() < self.jitter_chance:
            image = _jitter(image, self.jitter, rng, self.saturation)
        if self.gray and rng.random() < self.gray:
            image = image.convert("L").convert("RGB")
        if self.blur and rng.random() < self.blur:
            # Radii as for 224 pixels; a smaller square is blurred less.
            image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0) * self.pre.size / 224))
        if self.solarize and rng.random() < self.solarize:
            image = ImageOps.solarize(image, 128)
        red, green, blue = (round(255 * value) for value in self.pre.mean)
        fill = (red, green, blue)
        if self.augment:
            image = augment.rand_augment(image, self.augment, rng, fill)
        out = np.array(image)
        return augment.erase(out, rng, fill) if self.erase and rng.random() < self.erase else out

    def _part(self, pixels: np.ndarray, rng: np.random.Generator) -> Image.Image:
        height, width = pixels.shape[:2]
        x, y, across, down = self._box(width, height, rng)
        size = (self.pre.size, self.pre.size)
        image = Image.fromarray(pixels).resize(size, self.pre.filter, box=(x, y, x + across, y + down))
        mirrored = self.flip and rng.random() < 0.5
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image

    def _box(self, width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
        return _random_box(width, height, self.scale, self.ratio, rng)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "pre": self.pre.to_json()}


@dataclass(frozen=True)
class CropView(RandomView):
    """As `RandomView`, but the part is a square as large as the center crop's, anywhere in the image."""

    kind: ClassVar[str] = "crop"

    def _box(self, width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
        side = min(width, height) * self.pre.crop
        return rng.uniform(0, width - side), rng.uniform(0, height - side), side, side


@dataclass(frozen=True)
class MultiView:
    """Several views of one image, as a list; the members may differ (large and small, strong and weak)."""

    kind: ClassVar[str] = "multi"
    views: tuple[CenterView | RandomView, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))

    def __len__(self) -> int:
        return len(self.views)

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        return [view(pixels, rng) for view in self.views]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "views": [view.to_json() for view in self.views]}


def view_from_json(document: dict[str, Any]) -> Any:
    """The view that `to_json` wrote down."""
    fields = dict(document)
    kind = choose(str(fields.pop("kind", "")), ("center", "random", "crop", "multi"), "a view")
    if kind == "multi":
        return MultiView(tuple(view_from_json(view) for view in fields["views"]))
    fields["pre"] = Preprocess.from_json(fields["pre"])
    return {"center": CenterView, "random": RandomView, "crop": CropView}[kind](**fields)


def _random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """x, y, width and height of a part with a random area and shape; the largest fitting one after ten misses."""
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        across, down = math.sqrt(area * shape), math.sqrt(area / shape)
        if across <= width and down <= height:
            return rng.uniform(0, width - across), rng.uniform(0, height - down), across, down
    shape = min(max(width / height, ratio[0]), ratio[1])
    across, down = min(width, height * shape), min(height, width / shape)
    return (width - across) / 2, (height - down) / 2, across, down


def _jitter(image: Image.Image, strength: float, rng: np.random.Generator, saturation: float = 1.0) -> Image.Image:
    """Brightness, contrast, saturation and hue changed in random order, by 0.8, 0.8, 0.8 and 0.2 × strength."""
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
