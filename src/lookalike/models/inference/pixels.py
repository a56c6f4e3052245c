"""Decoded pixels to the square a model is fed with.

torch's resampling of 8-bit pixels gives what Pillow's gives, to a level or two, in a quarter of the time;
at small sizes resizing would otherwise be the dearest step before the model (docs/decisions/0032).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess, decode, prepare


def square(pixels: np.ndarray, pre: Preprocess) -> np.ndarray:
    """The center `crop` of the short side, to whole pixels, resampled to `size`×`size`×3."""
    height, width = pixels.shape[:2]
    side = max(round(min(height, width) * pre.crop), 1)
    top, left = (height - side) // 2, (width - side) // 2
    region = pixels[top : top + side, left : left + side]
    if side == pre.size:
        return region
    if not region.flags.writeable:  # torch would warn
        region = region.copy()
    x = torch.from_numpy(region)[None].permute(0, 3, 1, 2)  # in this order torch sees channels last: twice as fast
    y = F.interpolate(x, size=(pre.size, pre.size), mode=pre.interpolation, antialias=True, align_corners=False)
    return y[0].permute(1, 2, 0).numpy()


def center(data: Any, pre: Preprocess, box: Any = None) -> np.ndarray:
    """uint8 size×size×3 from whatever an image is given as."""
    if pre.interpolation == "lanczos":  # torch has none
        return prepare(data, pre, box=box)
    return square(decode(data, box=box, min_side=pre.size / pre.crop), pre)


def viewed(data: Any, view: Any, rng: np.random.Generator, box: Any = None) -> np.ndarray:
    """The same through a view (`data/views.py`); the smallest part it may take is decoded with enough pixels."""
    if view.kind == "center":
        return center(data, view.pre, box)
    smallest = min(getattr(view, "scale", (1.0,))) ** 0.5
    return view(decode(data, box=box, min_side=view.pre.size / smallest), rng)


def check_view(view: Any, pre: Preprocess) -> None:
    size = getattr(getattr(view, "pre", None), "size", None)
    if size != pre.size:
        raise LookalikeError(f"The view gives images of {size} px, but the model takes {pre.size} px.")
