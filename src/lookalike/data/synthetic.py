"""Synthetic demo images, so that lookalike can be tried without a data set. None is a photograph.

A class is a made-up vessel: a profile turned around an axis, painted with a repeating motif. Glaze, pose, light,
surroundings and style differ from image to image, and other vessels may stand beside the object or hide a part
of it, so a pretrained model tells the classes apart, but not perfectly. Everything follows from the seed: class 7
is the same object however many classes there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageFilter

from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import atomic_folder, read_json, recover_folder, write_json
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng
from lookalike.data.readers import read_table
from lookalike.data.table import Table

_VERSION = 2  # raise with every change that gives other images
_STAMP, _TABLE, _README = "synthetic.json", "table.csv", "README.txt"
_ABOUT = """These images are generated: {classes} made-up objects, {images} images of each, in the styles {styles}.
No photograph was used. A class is the shape of an object and its motif; everything else differs from image to image.
{table} gives the path, label, split and style (as domain) of each image; no class is in both splits.
The folder can be deleted at any time; the same settings make the same files again.
"""


def make_demo_images(
    folder: str | Path,
    *,
    classes: int = 60,
    images_per_class: int = 40,
    styles: Sequence[str] = ("studio", "sketch", "night"),
    seed: int = 0,
    size: int = 160,
    progress: bool = False,
) -> Table:
    """Fill a folder with synthetic images, or reuse it if it holds exactly these.

    Args:
        folder: Where to write; it must be new, empty, or hold synthetic images only.
        classes: Number of classes; the first half is the training split.
        images_per_class: Images of each class, taking turns in the styles.
        styles: Any of `studio`, `sketch` and `night`.
        seed: Seed of all classes and images.
        size: Width and height in pixels, 32 to 1,024.
        progress: Whether to show a progress bar.

    Returns:
        The table of the images, with their style as `domain`.

    Raises:
        LookalikeError: An argument is out of range, or the folder holds other files.

    Example:
        >>> table = make_demo_images("demo", classes=4, images_per_class=2, size=32)
        >>> len(table), sorted(set(table.column("split")))
        (8, ['test', 'train'])
    """
    if classes < 2 or images_per_class < 1 or not 32 <= size <= 1024 or not styles:
        raise LookalikeError(
            f"Synthetic images cannot be made with {classes} classes of {images_per_class} images, {size} pixels and "
            f"{len(styles)} styles: choose at least 2 classes, 1 image, 32 to 1,024 pixels and 1 style."
        )
    folder, libraries = Path(folder), {"numpy": np.__version__, "pillow": PIL.__version__}
    names = [choose(style, STYLES, "a style of the synthetic images") for style in styles]
    settings = {"classes": classes, "images_per_class": images_per_class, "styles": names}
    settings |= {"seed": seed, "size": size, "version": _VERSION, "libraries": libraries}
    if not _is_complete(folder, settings):
        with atomic_folder(folder) as part, Progress("Drawing", classes * images_per_class, shown=progress) as bar:
            _fill(part, settings, bar)
    return read_table(folder / _TABLE, name="synthetic")


def _is_complete(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds exactly these images; raise if it holds files that were not generated."""
    recover_folder(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return False
    present = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if _STAMP not in present:
        raise LookalikeError(f"`{folder}` holds files that are not generated images: choose another folder.")
    known = read_json(folder / _STAMP, "description of generated images")
    expected: dict[str, int] = known.pop("files", {})
    if known == settings and expected.items() <= present.items():
        return True
    for name in present:
        if name not in {*expected, _STAMP} and not Path(name).name.startswith("."):
            raise LookalikeError(f"`{folder}` holds `{name}`, which was not generated: choose another folder.")
    return False


def _fill(folder: Path, settings: dict[str, Any], bar: Progress) -> None:
    classes, count, styles, seed = (settings[key] for key in ("classes", "images_per_class", "styles", "seed"))
    designs = [make_design(seed, number) for number in range(classes)]
    # Bystanders are never one of the classes, so that no image shows two of them.
    bystanders = [make_design(seed, 100_000 + number) for number in range(60)]

    def make(number: int, place: int) -> tuple[str, ...]:
        design, style = designs[number], styles[place % len(styles)]
        path = f"{design.name}/{place:03d}-{style}.jpg"
        image = draw(design, style, settings["size"], bystanders, numpy_rng(seed, "synthetic", number, place))
        image.save(folder / path, "JPEG", quality=90)
        return path, design.name, "train" if number < classes // 2 else "test", style

    for design in designs:
        (folder / design.name).mkdir()
    rows: list[tuple[str, ...]] = []
    pool = ThreadPoolExecutor(threads())
    try:
        for row in pool.map(make, *zip(*itertools.product(range(classes), range(count)), strict=True)):
            rows.append(row)
            bar.advance()
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the images still to be drawn
    lines = "".join(",".join(row) + "\n" for row in [("path", "label", "split", "domain"), *rows])
    about = _ABOUT.format(classes=classes, images=count, styles=", ".join(styles), table=_TABLE)
    for name, text in ((_TABLE, lines), (_README, about)):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    files = [_TABLE, _README, *(row[0] for row in rows)]
    write_json(folder / _STAMP, {**settings, "files": {name: (folder / name).stat().st_size for name in files}})


# --- classes: a profile and a motif ---

STEPS = 512  # samples of a profile, from foot to top

# Radii at equally spaced heights, in heights of the object.
_PROFILES = {
    "vase": (0.17, 0.27, 0.33, 0.31, 0.22, 0.13, 0.18),
    "cup": (0.34, 0.40, 0.42, 0.42, 0.42, 0.43, 0.44),
    "bottle": (0.19, 0.22, 0.22, 0.21, 0.12, 0.07, 0.08),
    "bowl": (0.30, 0.46, 0.60, 0.70, 0.78, 0.84, 0.88),
    "jar": (0.26, 0.37, 0.40, 0.37, 0.33, 0.24, 0.10),
    "egg": (0.08, 0.25, 0.33, 0.36, 0.33, 0.24, 0.06),
    "goblet": (0.26, 0.07, 0.06, 0.17, 0.27, 0.29, 0.27),
    "top": (0.04, 0.14, 0.30, 0.44, 0.26, 0.08, 0.05),
    "skittle": (0.18, 0.24, 0.22, 0.13, 0.11, 0.17, 0.08),
    "urn": (0.20, 0.24, 0.30, 0.40, 0.34, 0.20, 0.26),
}
KINDS = tuple(_PROFILES)
# Of a design: along, fill, lean, both ends of the band, gloss.
_LIMITS = ((2.0, 5.0), (0.35, 0.6), (0.5, 2.0), (0.06, 0.3), (0.68, 0.92), (0.1, 1.0))
_OPEN = {"vase", "cup", "bottle", "bowl", "goblet", "urn"}


class Design(NamedTuple):
    """One class. Lengths are in heights of the object, angles around its axis in turns."""

    name: str
    kind: str
    radius: np.ndarray  # (STEPS,), from foot to top
    slope: np.ndarray
    motif: str
    around: int  # repeats of the motif around the axis
    along: float  # and along it
    fill: float  # fraction of the surface that the motif covers
    lean: float  # twist, amplitude or number of points, as the motif needs it
    band: tuple[float, float]  # heights between which the motif is painted
    gloss: float


def make_design(seed: int, number: int) -> Design:
    """Return class `number` of the synthetic images with this seed."""
    from scipy.interpolate import PchipInterpolator

    rng = numpy_rng(seed, "synthetic design", number)
    # Every ten classes have each kind once, so both splits have all of them.
    kinds = numpy_rng(seed, "synthetic kinds", number // len(KINDS)).permutation(len(KINDS))
    kind = KINDS[int(kinds[number % len(KINDS)])]
    motif = str(rng.choice(sorted(MOTIFS)))
    corners = np.array(_PROFILES[kind]) * np.exp(rng.normal(0, 0.13, 7)) * np.exp(rng.normal(0, 0.08))
    radius = PchipInterpolator(np.linspace(0, 1, 7), corners)(np.linspace(0, 1, STEPS)).astype(np.float32)
    slope = np.gradient(radius, 1 / (STEPS - 1)).astype(np.float32)
    around = int(rng.integers(4, 13))
    along, fill, lean, low, high, gloss = (float(rng.uniform(*limits)) for limits in _LIMITS)
    name = f"{motif}-{kind}-{number:02d}"
    return Design(name, kind, radius, slope, motif, around, along, fill, lean, (low, high), gloss)


def _edge(value: np.ndarray, width: float = 0.12) -> np.ndarray:
    """0 below zero, 1 above, with an edge of the given width."""
    return np.clip(value / width + 0.5, 0, 1)


# A motif maps a cell of the lattice to its coverage: x and y in the cell from -1 to 1, the position (turns around,
# height within the band) for those that are continuous, and the design.
Motif = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Design], np.ndarray]
MOTIFS: dict[str, Motif] = {
    "dotted": lambda x, y, a, v, d: _edge(1.2 * d.fill - np.hypot(x, y)),
    "diamond": lambda x, y, a, v, d: _edge(1.7 * d.fill - np.abs(x) - np.abs(y)),
    "petal": lambda x, y, a, v, d: _edge(1.3 * d.fill * np.sqrt(np.clip(1 - y * y, 0, 1)) * (1 - 0.45 * y) - np.abs(x)),
    "leafy": lambda x, y, a, v, d: (
        _edge(0.8 * d.fill * (1 - y * y) - np.abs(x + 0.6 * y)) * _edge(np.abs(x + 0.6 * y) - 0.07)
    ),
    "starry": lambda x, y, a, v, d: _edge(
        1.25 * d.fill * (0.72 + 0.28 * np.cos((4 + int(2 * d.lean)) * np.arctan2(y, x))) - np.hypot(x, y)
    ),
    "wavy": lambda x, y, a, v, d: _stripes(
        v * d.along + 0.16 * d.lean * np.sin(2 * np.pi * a * (d.around // 2 + 1)), d
    ),
    "zigzag": lambda x, y, a, v, d: _stripes(v * d.along + 0.45 * d.lean * np.abs(2 * np.mod(a * d.around, 1) - 1), d),
    "scaled": lambda x, y, a, v, d: _edge(0.1 + 0.2 * d.fill - np.abs(np.hypot(x, 0.9 * (y - 1)) - 1.1)),
}


def _stripes(place: np.ndarray, d: Design) -> np.ndarray:
    return _edge(d.fill - np.abs(2 * np.mod(place, 1) - 1))


def _paint(d: Design, colors: np.ndarray, turns: np.ndarray, height: np.ndarray) -> np.ndarray:
    """The color (..., 3) of the surface at an angle around the axis and a height."""
    low, high = d.band
    v = (height - low) / (high - low)
    row = np.floor(v * d.along)
    x, y = 2 * np.mod(turns * d.around + 0.5 * (row % 2), 1) - 1, 2 * np.mod(v * d.along, 1) - 1
    inside = np.minimum(height - low, high - height)
    motif = (MOTIFS[d.motif](x, y, turns, v, d) * _edge(inside, 0.012))[..., None]
    line = _edge(0.018 - np.abs(inside), 0.012)[..., None]
    color = colors[0] + motif * (colors[1] - colors[0])
    return np.asarray(color + line * (colors[2] - color))


# --- images: pose, light, surroundings, style ---


@dataclass
class _Pose:
    """How an object stands in front of the camera; lengths in image sides."""

    height: float
    x: float  # middle of the foot
    y: float
    roll: float  # of the camera, in radians
    tilt: float
    spin: float  # in turns
    light: np.ndarray  # direction to the lamp: right, up, towards the camera
    colors: np.ndarray  # (3, 3): body, motif, borders


@dataclass
class _Style:
    """Light and background of one image, and what is done to the finished drawing."""

    lamp: np.ndarray
    ambient: np.ndarray
    background: np.ndarray  # (n, n, 3)
    horizon: float
    finish: Callable[[np.ndarray], np.ndarray] | None = None


def _hsv(hue: float, saturation: float, value: float) -> np.ndarray:
    k = (np.array([5, 3, 1]) + hue * 6) % 6
    return (value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)).astype(np.float32)


def _pose(d: Design, rng: np.random.Generator, like: _Pose | None = None) -> _Pose:
    """A random pose; under the camera and lamp of another object if one is given."""
    height = float(min(rng.uniform(0.36, 0.78), rng.uniform(0.42, 0.84) / (2 * d.radius.max())))
    azimuth, lift = rng.uniform(0.3, 1.25) * rng.choice([-1, 1]), rng.uniform(0.35, 1.0)
    light = np.array([np.sin(azimuth) * np.cos(lift), np.sin(lift), np.cos(azimuth) * np.cos(lift)], np.float32)
    roll, tilt = float(np.clip(rng.normal(0, 0.16), -0.4, 0.4)), float(rng.uniform(0.1, 0.4))
    x, y = 0.5 + rng.uniform(-0.1, 0.1), 0.5 + 0.48 * height + rng.uniform(-0.03, 0.07)
    if like is not None:
        roll, tilt, light = like.roll, like.tilt, like.light
    spin, hue, values = rng.random(), rng.random(), (rng.uniform(0.25, 0.6), rng.uniform(0.8, 1.0))
    body, motif = values if rng.random() < 0.5 else values[::-1]  # the motif is lighter or darker than the body
    first = _hsv(hue, rng.uniform(0.1, 0.75), body)
    second = _hsv(hue + rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.75), motif)
    third = _hsv(rng.random(), rng.uniform(0.2, 0.8), rng.uniform(0.3, 0.9))
    return _Pose(height, x, y, roll, tilt, spin, light, np.stack([first, second, third]))


def _grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    line = (np.arange(n, dtype=np.float32) + 0.5) / n
    return line[None], line[:, None]


def _render(canvas: np.ndarray, d: Design, pose: _Pose, style: _Style) -> None:
    """Draw an object onto a canvas (n, n, 3)."""
    n, reach = len(canvas), float(d.radius.max()) + abs(pose.roll)
    x0, x1 = (int(np.clip((pose.x + side * reach * pose.height) * n, 0, n)) for side in (-1, 1))
    y0 = int(np.clip((pose.y - (1.1 + reach * pose.tilt) * pose.height) * n, 0, n))
    y1 = int(np.clip((pose.y + (0.1 + reach * pose.tilt) * pose.height) * n, 0, n))
    x, y = _grid(n)
    right, up = (x[:, x0:x1] - pose.x) / pose.height, (pose.y - y[y0:y1]) / pose.height
    cos, sin = float(np.cos(pose.roll)), float(np.sin(pose.roll))
    x, y = cos * right + sin * up, cos * up - sin * right
    h = y  # a point nearer to the camera appears lower in the image, and how near it is depends on its height
    for _ in range(4):
        step = (np.clip(h, 0, 1) * (STEPS - 1)).astype(np.intp)
        r, slope = d.radius[step], d.slope[step]
        h = y + pose.tilt * np.sqrt(np.maximum(r * r - x * x, 0))
    soft = pose.height * n
    cover = np.clip((r - np.abs(x)) * soft + 0.5, 0, 1) * np.clip(np.minimum(h, 1 - h) * soft + 0.5, 0, 1)
    u = np.clip(x / np.maximum(r, 1e-3), -1, 1)
    length = 1 / np.sqrt(1 + slope * slope)
    normal = np.stack([u * length, -slope * length, np.sqrt(1 - u * u) * length])
    color = _paint(d, pose.colors, pose.spin + np.arcsin(u) / (2 * np.pi), np.clip(h, 0, 1))
    mouth = float(d.radius[-1])
    lid = np.clip((1 - np.hypot(x / mouth, (y - 1) / (mouth * pose.tilt))) * mouth * pose.tilt * soft + 0.5, 0, 1)
    color += lid[..., None] * (pose.colors[2] * (0.35 if d.kind in _OPEN else 0.9) - color)
    cover = np.maximum(cover, lid)

    direct = 1.5 * np.clip(0.72 * np.tensordot(pose.light, normal, 1) + 0.28, 0, 1) ** 2
    shine = d.gloss * np.clip((np.tensordot(pose.light, normal, 1) - 0.93) * 12, 0, 0.75) * (1 - lid)
    light = direct[..., None] * style.lamp + style.ambient
    lit = np.sqrt(np.clip(color * color * light + shine[..., None] * style.lamp, 0, 1))
    patch = canvas[y0:y1, x0:x1]
    patch += cover[..., None] * (lit - patch)


def _table_top(y: np.ndarray, horizon: float, wall: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.asarray(wall + np.clip((y - horizon) * len(y) + 0.5, 0, 1)[..., None] * (top - wall))


def _studio(pose: _Pose, n: int, rng: np.random.Generator) -> _Style:
    """A wall and a table in soft light."""
    x, y = _grid(n)
    warm, gain, horizon = rng.normal(0, 0.09), float(np.exp(rng.normal(0, 0.12))), pose.y - rng.uniform(0.04, 0.16)
    tint = np.array([1 + warm, 1, 1 - warm], np.float32)
    fall = (1 - 0.3 * np.hypot(x - 0.5 - 0.4 * np.sign(pose.light[0]), y - 0.2))[..., None]
    wall = fall * _hsv(rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.6, 0.97) * gain)
    grain = 0.05 * np.sin(y * 90 + 2 * np.sin(x * 5 + rng.uniform(0, 6)))
    tone = _hsv(rng.random(), rng.uniform(0, 0.5), rng.uniform(0.4, 0.95) * gain)
    top = tone * (0.86 + 0.25 * (y - horizon) + grain * (rng.random() < 0.6))[..., None]
    return _Style(0.78 * gain * tint, 0.35 * gain / tint, _table_top(y, horizon, wall, top), horizon)


def _night(pose: _Pose, n: int, rng: np.random.Generator) -> _Style:
    """One warm lamp, and distant lights."""
    x, y = _grid(n)
    hue, warm, gain = rng.uniform(0.55, 0.75), rng.normal(0, 0.07), float(np.exp(rng.normal(0, 0.15)))
    wall = _hsv(hue, rng.uniform(0.5, 0.8), rng.uniform(0.1, 0.22)) * (1.3 - 0.7 * y + 0 * x)[..., None]
    for _ in range(int(rng.integers(4, 14))):
        spot = _edge(rng.uniform(0.02, 0.07) - np.hypot(x - rng.random(), y - rng.uniform(0, 0.6)), 0.01)
        wall = wall + spot[..., None] * _hsv(rng.choice([0.06, 0.1, 0.5, 0.9]), 0.5, rng.uniform(0.1, 0.4))
    lamp, cold = np.array([1.0, 0.72 + warm, 0.42 + warm], np.float32) * gain, _hsv(hue - 0.05, 0.55, gain)
    glow = np.exp(-(((x - pose.x) / 0.45) ** 2) - ((y - pose.y) / 0.2) ** 2)
    horizon = pose.y - rng.uniform(0.02, 0.1)
    top = 0.06 * cold + 0.42 * glow[..., None] * lamp
    return _Style(1.05 * lamp, 0.08 * cold, _table_top(y, horizon, wall, top), horizon)


def _sketch(pose: _Pose, n: int, rng: np.random.Generator) -> _Style:
    """Pencil and a thin wash on paper."""
    paper = _hsv(rng.uniform(0.08, 0.16), rng.uniform(0.02, 0.12), rng.uniform(0.9, 0.98))
    pencil = _hsv(rng.random(), rng.uniform(0, 0.5), rng.uniform(0.1, 0.3))
    wash, strength = rng.uniform(0.2, 0.75), rng.uniform(7, 12)
    angle, frequency = rng.uniform(0.5, 1.1) * rng.choice([-1, 1]), 2 * np.pi * rng.uniform(45, 75)
    grain = 0.9 + 0.1 * rng.standard_normal((n, n, 1)).astype(np.float32)

    def finish(canvas: np.ndarray) -> np.ndarray:
        x, y = _grid(n)
        tone = _to_array(_to_image(canvas).convert("L").filter(ImageFilter.GaussianBlur(n / 160)))
        edges = np.abs(np.gradient(tone, axis=0)) + np.abs(np.gradient(tone, axis=1))
        hatching = np.sin((x * np.cos(angle) + y * np.sin(angle)) * frequency + 3 * np.sin(9 * y))
        dark = np.clip(0.8 - 1.1 * tone, 0, 1)
        ink = np.clip(edges * strength - 0.12, 0, 1) + 0.6 * np.clip(3 * hatching - 3 + 5 * dark, 0, 1) * (dark > 0.1)
        sheet = (canvas * wash + 1 - wash) * paper * grain
        return np.asarray(sheet + np.minimum(ink, 0.95)[..., None] * (pencil - sheet))

    white = np.ones(3, np.float32)
    return _Style(0.8 * white, 0.4 * white, np.ones((n, n, 3), np.float32), pose.y, finish=finish)


STYLES: dict[str, Callable[[_Pose, int, np.random.Generator], _Style]] = {
    "studio": _studio,
    "sketch": _sketch,
    "night": _night,
}


def draw(d: Design, style_name: str, size: int, bystanders: list[Design], rng: np.random.Generator) -> Image.Image:
    """Draw one image of an object among bystanders, `size` pixels square."""
    n = 2 * size
    pose = _pose(d, rng)
    style = STYLES[style_name](pose, n, rng)
    canvas: np.ndarray = style.background.astype(np.float32)

    def place(x: float, y: float, scale: float) -> tuple[Design, _Pose]:
        other = bystanders[int(rng.integers(len(bystanders)))]
        beside = _pose(other, rng, pose)
        beside.height, beside.x, beside.y = beside.height * scale, x, y
        return other, beside

    for _ in range(int(rng.integers(0, 4))):
        side = rng.choice([-1, 1]) * rng.uniform(0.3, 0.5)
        _render(canvas, *place(pose.x + side, style.horizon + rng.uniform(0.01, 0.05), 0.8), style)
    canvas = _to_array(_to_image(canvas).filter(ImageFilter.GaussianBlur(n / 160)))  # out of focus
    x, y = _grid(n)
    foot = max(float(d.radius[:40].max()), 0.12) * pose.height
    shadow = np.exp(-(((x - pose.x) / (1.5 * foot)) ** 2) - ((y - pose.y) / (0.4 * foot)) ** 2)
    canvas = canvas * (1 - 0.6 * shadow * (y > style.horizon))[..., None]
    _render(canvas, d, pose, style)
    if rng.random() < 0.35:  # something in front hides a part of the object
        away = rng.choice([-1, 1]) * (rng.uniform(0.6, 1.1) * float(d.radius.max()) * pose.height + 0.1)
        _render(canvas, *place(pose.x + away, pose.y + rng.uniform(0.05, 0.2), 0.8), style)
    return _to_image(style.finish(canvas) if style.finish else canvas).reduce(2)


def _to_image(array: np.ndarray) -> Image.Image:
    return Image.fromarray((np.clip(array, 0, 1) * 255 + 0.5).astype(np.uint8))


def _to_array(image: Image.Image) -> np.ndarray:
    return np.asarray(image, np.float32) * np.float32(1 / 255)
