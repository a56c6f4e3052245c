"""What stands on the demo shelf: turned and thrown things, each class a design of its own.

A design is a profile turned around an axis, and a motif. All of it follows from a seed and a number, so
class 7 of a shelf is the same thing however many classes there are. Colors are no part of it: every piece
has its own glaze.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lookalike.core.seeds import numpy_rng

STEPS = 1024  # of a profile, from foot to top
STEEPEST = 1.4  # a profile's outward slope

# Height and radius of a profile's corners, in heights of the thing; the last number is how much they vary.
_PROFILES: dict[str, tuple[list[tuple[float, float]], float]] = {
    "vase": ([(0, 0.17), (0.12, 0.24), (0.42, 0.33), (0.68, 0.2), (0.82, 0.13), (0.95, 0.16), (1, 0.19)], 0.2),
    "mug": ([(0, 0.36), (0.04, 0.4), (0.3, 0.42), (0.7, 0.42), (1, 0.44)], 0.1),
    "bottle": ([(0, 0.18), (0.04, 0.21), (0.45, 0.22), (0.62, 0.17), (0.74, 0.075), (0.94, 0.07), (1, 0.09)], 0.16),
    "bowl": ([(0, 0.3), (0.08, 0.34), (0.35, 0.62), (0.7, 0.8), (1, 0.88)], 0.13),
    "jar": ([(0, 0.26), (0.1, 0.34), (0.4, 0.4), (0.7, 0.33), (0.76, 0.31), (0.79, 0.34), (0.88, 0.2), (0.92, 0.06),
             (0.97, 0.08), (1, 0.0)], 0.14),
    "egg": ([(0, 0), (0.012, 0.07), (0.1, 0.23), (0.38, 0.36), (0.68, 0.31), (0.9, 0.17), (0.985, 0.06), (1, 0)], 0.07),
    "goblet": ([(0, 0.27), (0.03, 0.25), (0.07, 0.07), (0.36, 0.055), (0.46, 0.16), (0.68, 0.29), (1, 0.27)], 0.16),
    "top": ([(0, 0.0), (0.05, 0.03), (0.28, 0.2), (0.46, 0.45), (0.55, 0.44), (0.64, 0.2), (0.72, 0.06), (0.94, 0.05),
             (0.985, 0.05), (1, 0)], 0.13),
    "skittle": ([(0, 0.17), (0.03, 0.19), (0.25, 0.245), (0.5, 0.16), (0.62, 0.095), (0.7, 0.12), (0.83, 0.17),
                 (0.95, 0.1), (1, 0)], 0.14),
    "pitcher": ([(0, 0.2), (0.05, 0.25), (0.3, 0.32), (0.62, 0.22), (0.8, 0.17), (1, 0.23)], 0.14),
}  # fmt: skip
KINDS = tuple(_PROFILES)
_OPEN = {"vase", "mug", "bottle", "bowl", "goblet", "pitcher"}

_GLAZES = [
    np.array([[int(color[i : i + 2], 16) / 255 for i in (0, 2, 4)] for color in line.split()])
    for line in (
        "f4845f f7d6a8 255f85 fff3e2",
        "1b998b c5e0d8 2d3047 f6e27f",
        "3d4aa8 a9b4f0 f7b801 f4f1ea",
        "84a98c e3eadf 354f52 f2cc8f",
        "f0b8b8 fff0f0 d1495b 6d597a",
        "d9963f f8e3ae 2c6e49 fdf8e3",
        "1d3557 a8dadc e63946 f1faee",
        "7b3653 d5a6a0 f3d9c9 3a2538",
        "8ecae6 f4faff 14688a ffb703",
        "606c38 d9c48f bc6c25 fefae0",
        "a63a2b f2c57c f6ead2 0f5c6b",
        "98d9c2 ffffff f19a3e 4f4a45",
        "b0a8f0 f4f0ff 6c5cc9 ffd8be",
        "f3e7d9 c9a98b 8a5a3c ffffff",
        "2b2d42 8d99ae edf2f4 d9733f",
        "d6798f fbe4e4 8c2f4b f6c453",
    )
]


@dataclass(frozen=True)
class Design:
    """One class. Lengths are in heights of the thing; angles around the axis in turns."""

    name: str
    kind: str
    radius: np.ndarray  # over STEPS heights
    motif: str
    around: int  # repeats of the motif around the axis
    along: float  # and along it
    share: float  # how much of the body the motif covers
    lean: float  # twist, amplitude or offset, as the motif needs it
    field: tuple[float, float]  # heights between which the motif is
    gloss: float
    handle: tuple[float, float, float] | None  # height of its middle, half its height, its reach

    @cached_property
    def slope(self) -> np.ndarray:
        return np.clip(np.gradient(self.radius, 1 / (STEPS - 1)), -6, 6).astype(np.float32)

    @property
    def open(self) -> bool:
        return self.kind in _OPEN

    @property
    def width(self) -> float:
        """Of the whole thing, per height."""
        return float(2 * self.radius.max() + (self.handle[2] if self.handle else 0))


def design(seed: int, number: int) -> Design:
    """Class `number` of the shelf with this seed."""
    rng = numpy_rng(seed, "shelf", "design", number)
    # Kinds go round: every ten classes have each kind once, so both halves of a shelf have all of them.
    kind = KINDS[int(numpy_rng(seed, "kinds", number // len(KINDS)).permutation(len(KINDS))[number % len(KINDS)])]
    motif = str(rng.choice(sorted(MOTIFS)))
    low, high = rng.uniform(0.06, 0.3), rng.uniform(0.68, 0.92)
    handle = None
    if kind in ("mug", "pitcher"):
        handle = (
            rng.uniform(0.48, 0.58),
            rng.uniform(0.24, 0.34),
            rng.uniform(0.2, 0.32) * (1 if kind == "mug" else 0.75),
        )
    return Design(
        name=f"{motif}-{kind}-{number:02d}",
        kind=kind,
        radius=_profile(kind, rng),
        motif=motif,
        around=int(rng.integers(4, 13)),
        along=float(rng.uniform(2.0, 5.0)),
        share=float(rng.uniform(0.35, 0.6)),
        lean=float(rng.uniform(0.5, 2.0)),
        field=(low, high),
        gloss=float(rng.uniform(0.1, 1.0)),
        handle=handle,
    )


def _profile(kind: str, rng: np.random.Generator) -> np.ndarray:
    from scipy.interpolate import PchipInterpolator

    corners, spread = _PROFILES[kind]
    heights, radii = np.array(corners, float).T
    inner = slice(1, -1)
    gaps = np.minimum(np.diff(heights)[:-1], np.diff(heights)[1:])
    heights[inner] += rng.uniform(-0.35, 0.35, len(gaps)) * gaps
    radii = radii * np.exp(rng.normal(0, spread, len(radii))) * np.exp(rng.normal(0, spread / 2))
    steps = np.linspace(0, 1, STEPS)
    profile = PchipInterpolator(heights, radii)(steps)
    # No ledge above the foot may hang over so far that the camera, which looks down, cannot see under it.
    above = steps > 0.12
    profile[above] = np.minimum.accumulate(profile[above] - STEEPEST * steps[above]) + STEEPEST * steps[above]
    return np.asarray(profile, np.float32)


# --- motifs: (turns around, height within the field 0..1, the design) → how much of the motif is there, 0..1 ---


def _step(value: np.ndarray, soft: float = 0.04) -> np.ndarray:
    """0 below zero, 1 above, over a soft edge."""
    return np.clip(value / soft + 0.5, 0, 1)


def _cell(a: np.ndarray, v: np.ndarray, d: Design, shift: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Place in a cell of the motif's lattice, −1 to 1 both ways, every other row moved; and the row."""
    row = np.floor(v * d.along)
    return 2 * np.mod(a * d.around + shift * (row % 2), 1) - 1, 2 * np.mod(v * d.along, 1) - 1, row


def _dots(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, _ = _cell(a, v, d)
    return _step(d.share * 1.2 - np.sqrt(x * x + y * y), 0.12)


def _diamonds(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, _ = _cell(a, v, d, 0)
    return _step(d.share * 1.7 - np.abs(x) - np.abs(y), 0.12)


def _petals(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, _ = _cell(a, v, d)
    return _step(d.share * 1.3 * np.sqrt(np.clip(1 - y * y, 0, 1)) * (1 - 0.45 * y) - np.abs(x), 0.12)


def _leaves(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, row = _cell(a, v, d)
    x, y = x + np.where(row % 2 > 0, 0.7, -0.7) * y, y
    blade = _step(0.5 * d.share * 1.6 * (1 - y * y) - np.abs(x), 0.12)
    return blade * (1 - _step(0.07 - np.abs(x), 0.06))


def _stars(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, _ = _cell(a, v, d)
    points = 4 + int(d.lean * 2)
    return _step(d.share * 1.25 * (0.72 + 0.28 * np.cos(points * np.arctan2(y, x))) - np.sqrt(x * x + y * y), 0.12)


def _waves(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    place = v * d.along + 0.16 * d.lean * np.sin(2 * np.pi * a * (d.around // 2 + 1))
    return _step(d.share - np.abs(2 * np.mod(place, 1) - 1), 0.1)


def _zigzag(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    place = v * d.along + 0.45 * d.lean * np.abs(2 * np.mod(a * d.around, 1) - 1)
    return _step(d.share - np.abs(2 * np.mod(place, 1) - 1), 0.1)


def _scales(a: np.ndarray, v: np.ndarray, d: Design) -> np.ndarray:
    x, y, _ = _cell(a, v, d)
    edge = np.sqrt(x * x + (y - 1) ** 2 * 0.8)
    return _step(0.16 - np.abs(edge - 1.1), 0.1) + _step(0.3 * d.share - np.abs(edge - 0.45), 0.1)


MOTIFS: dict[str, Callable[[np.ndarray, np.ndarray, Design], np.ndarray]] = {
    "dotted": _dots,
    "diamond": _diamonds,
    "petal": _petals,
    "leafy": _leaves,
    "starry": _stars,
    "wavy": _waves,
    "zigzag": _zigzag,
    "scaled": _scales,
}


def glaze(rng: np.random.Generator) -> np.ndarray:
    """Colors for one piece, 4 × 3 from 0 to 1: body, motif, border and handle, foot and rim."""
    colors = _GLAZES[int(rng.integers(len(_GLAZES)))].copy()
    if rng.random() < 0.4:  # the motif's color on the body, and the other way round
        colors[[0, 1]] = colors[[1, 0]]
    return np.clip(colors + rng.normal(0, 0.02, (4, 3)), 0.03, 0.98).astype(np.float32)


def paint(d: Design, colors: np.ndarray, a: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The color at a turn around the axis and a height, for any number of points: n × 3."""
    low, high = d.field
    field = np.minimum(h - low, high - h)  # how far inside the motif's field
    amount = MOTIFS[d.motif](a, (h - low) / (high - low), d) * _step(field, 0.012)
    line = _step(0.018 - np.abs(field), 0.012)
    edge = _step(0.035 - np.minimum(h, 1 - h), 0.012)
    shares = np.stack(
        [(1 - amount) * (1 - line) * (1 - edge), amount * (1 - line) * (1 - edge), line * (1 - edge), edge]
    )
    return shares.T @ colors
