"""Whatever an image's pixels mean (palette, CMYK, 16 bit, a profile, transparency): sRGB over white."""

from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms

BAND = 4_000_000  # pixels converted at a time


def to_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as RGB."""
    icc, alpha = image.info.get("icc_profile"), None
    if image.mode.startswith("I;16"):
        image = Image.fromarray(eight_bits(np.asarray(image)))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_stretch(np.asarray(image)))
    elif image.has_transparency_data:
        both = image.convert("RGBA")
        alpha = both.getchannel("A")
        image = image.getchannel("L") if image.mode == "LA" else both.convert("RGB")
    elif image.mode in ("P", "1"):
        image = image.convert("RGB" if image.mode == "P" else "L")
    if icc or image.mode == "LAB":
        image = to_srgb(image, icc or b"")
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if alpha is None:
        return rgb
    white = Image.new("RGB", rgb.size, "white")
    white.paste(rgb, mask=alpha)
    return white


def reduced(image: Image.Image, factor: int) -> Image.Image:
    """The same as means over squares of `factor` pixels, band by band: a large image is never there twice."""
    if image.mode in ("I", "F"):  # stretched by the range of the whole, so before a band is cut
        return to_rgb(image.reduce(factor))
    width, height = image.size
    out = Image.new("RGB", (math.ceil(width / factor), math.ceil(height / factor)))
    rows = factor * max(1, BAND // (width * factor))
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        out.paste(to_rgb(band).reduce(factor), (0, top // factor))
    return out


def eight_bits(values: np.ndarray) -> np.ndarray:
    """Round 16-bit values to 8 bits."""
    scaled: np.ndarray = (values.astype(np.uint32) + 128) // 257
    return scaled.astype(np.uint8)


def _stretch(values: np.ndarray) -> np.ndarray:
    """32-bit integers and floats have no agreed white: the image's own range becomes 0 to 255."""
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    scaled: np.ndarray = (values - low) * (255 / (high - low) if high > low else 0) + 0.5
    return scaled.astype(np.uint8)


def to_srgb(image: Image.Image, icc: bytes) -> Image.Image:
    """Convert an image to sRGB; unchanged if its profile is sRGB, broken, or for another color space."""
    mode, transform = _transform(icc, image.mode)
    if transform is None:
        return image
    return ImageCms.applyTransform(image if image.mode == mode else image.convert(mode), transform) or image


@lru_cache(maxsize=32)
def _transform(icc: bytes, mode: str) -> tuple[str, ImageCms.ImageCmsTransform | None]:
    """The mode to feed and the transform to sRGB, relative colorimetric with black point compensation."""
    try:
        srgb = ImageCms.createProfile("sRGB")
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc) if icc else ImageCms.createProfile("LAB"))
        space = profile.profile.xcolor_space.strip()
        kind = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab": "LAB"}.get(space)
        if kind is None or (kind != mode and (kind, mode) != ("RGB", "L")):
            return mode, None
        transform = ImageCms.buildTransform(
            profile, srgb, kind, "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
        )
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        return mode, None  # browsers ignore a broken profile too
    if kind == "RGB":  # most profiles in the wild are sRGB in one of many wordings: those cost nothing
        steps = np.linspace(0, 255, 9).astype(np.uint8)
        grid = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(27, 27, 3)
        moved = np.asarray(ImageCms.applyTransform(Image.fromarray(grid), transform))
        if np.abs(moved.astype(int) - grid).max() <= 1:
            return mode, None
    return kind, transform
