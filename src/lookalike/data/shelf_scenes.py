"""How the things on the demo shelf are seen: pose, glaze, light, surroundings, and the style they are drawn in.

The thing itself is drawn at twice the size and brought down; what surrounds it is drawn at the size itself
and enlarged, which puts it a little out of focus. Light adds up in squared colors, a cheap stand-in for
linear light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from lookalike.data.shelf_designs import STEPS, Design, glaze, paint

OVER = 2  # supersampling

Color = np.ndarray


@dataclass
class Shot:
    """One piece of a design, as it stands before the camera; lengths per image side."""

    height: float
    x: float  # middle of the foot
    y: float
    roll: float  # of the camera, in radians
    tilt: float  # and its look downwards
    spin: float  # turns
    side: int  # where the handle is
    light: np.ndarray  # direction to the lamp: right, up, towards the camera
    colors: np.ndarray

    @property
    def lean(self) -> float:
        """Which side the lamp is on."""
        return 1.0 if self.light[0] > 0 else -1.0

    def stand(self, other: Shot, away: float, y: float) -> None:
        """Move to a place beside another thing, on the same board."""
        self.x, self.y = other.x + away, y - away * float(np.tan(other.roll))


@dataclass
class Solid:
    """A thing as the camera sees it: one row for every pixel it touches."""

    index: np.ndarray  # into the flattened canvas
    cover: np.ndarray  # 0 to 1
    color: np.ndarray
    normal: np.ndarray  # 3 × n: right, up, towards the camera
    hollow: np.ndarray  # how dark it is inside the opening
    height: np.ndarray


def turn(d: Design, shot: Shot, canvas: int) -> Solid:
    """Find the point of the turned surface under every pixel, and paint it."""
    scale = shot.height * canvas  # pixels per height of the thing
    widest = float(d.radius.max())
    reach = widest + (d.handle[2] if d.handle else 0)
    sin, cos = float(np.sin(shot.tilt)), float(np.cos(shot.tilt))
    half, extra = (reach + abs(shot.roll)) * scale + 2, abs(shot.roll) * reach * scale + 2
    left, right = max(0, int(shot.x * canvas - half)), min(canvas, int(shot.x * canvas + half) + 1)
    top = max(0, int(shot.y * canvas - (1 + reach * sin) * scale - extra))
    bottom = min(canvas, int(shot.y * canvas + reach * sin * scale + extra) + 1)
    px = ((np.arange(left, right, dtype=np.float32) + 0.5 - shot.x * canvas) / scale)[None]
    py = ((shot.y * canvas - np.arange(top, bottom, dtype=np.float32) - 0.5) / scale)[:, None]
    c, s = float(np.cos(shot.roll)), float(np.sin(shot.roll))
    x, y = c * px + s * py, c * py - s * px
    near = ((np.abs(x) < reach + 0.02) & (y > -reach * sin - 0.02) & (y < cos + reach * sin + 0.02)).ravel()
    index = (np.arange(top, bottom)[:, None] * canvas + np.arange(left, right)[None]).ravel()[near]
    x, y = x.ravel()[near], y.ravel()[near]

    # The height under a pixel depends on the depth there, and that on the height: halve the range seven times.
    low, square = y / cos, x * x
    high = low + np.sqrt(np.maximum(widest * widest - square, 0)) * (sin / cos)
    for _ in range(7):
        h = 0.5 * (low + high)
        r = d.radius.take(_place(h), mode="clip")
        under = h * cos - np.sqrt(np.maximum(r * r - square, 0)) * sin < y
        low, high = np.where(under, h, low), np.where(under, high, h)
    cover = np.clip((r - np.abs(x)) * scale + 0.5, 0, 1) * np.clip(np.minimum(h, 1 - h) * scale + 0.5, 0, 1)
    mouth = float(d.radius[-1])
    across, deep = x / max(mouth, 1e-3), (y - cos) / max(mouth * sin, 1e-3)
    ring = np.sqrt(across * across + deep * deep)
    inside = np.clip((1 - ring) * scale * mouth * sin + 0.5, 0, 1) if mouth > 0.01 else np.zeros_like(x)
    rod, rod_normal = _handle(d, shot, x, y, cos, scale) if d.handle else (np.zeros_like(x), None)

    seen = (cover + inside + rod) > 0
    index = index[seen]
    x, h, r, cover, inside, rod = (v[seen] for v in (x, h, r, cover, inside, rod))
    u = np.clip(x / np.maximum(r, 1e-3), -1, 1)
    rise = d.slope.take(_place(h), mode="clip")
    length = 1 / np.sqrt(1 + rise * rise)
    up, out = -rise * length, np.sqrt(1 - u * u) * length
    normal = np.stack([u * length, up * cos + out * sin, out * cos - up * sin])
    color = paint(d, shot.colors, shot.spin + np.arcsin(u) / (2 * np.pi), np.clip(h, 0, 1))
    if rod_normal is not None:
        rod = rod * (1 - cover)
        normal += rod * (rod_normal[:, seen] - normal)
        color += rod[:, None] * (shot.colors[2] - color)
        cover = cover + rod
    hollow = np.zeros_like(x)
    if mouth > 0.01:
        across, deep, ring = across[seen], deep[seen], ring[seen]
        well = inside * (1 - np.clip((ring - 0.88) / 0.04, 0, 1)) if d.open else 0 * inside
        color += inside[:, None] * (0.9 * shot.colors[3] - color)
        normal += inside * (np.array([[0], [cos], [sin]], np.float32) - normal)
        normal += well * (np.stack([-across, 0 * deep + 0.3, np.clip(deep, 0, 1) * 0.5 + 0.2]) - normal)
        hollow = well * (0.35 + 0.35 * np.clip(0.5 - deep * 0.5, 0, 1))
        cover = np.maximum(cover, inside)
    return Solid(index, cover, color, normal, hollow, np.clip(h, 0, 1))


def _place(h: np.ndarray) -> np.ndarray:
    """Heights as places in a profile; those beyond its ends are cut by `take`."""
    return (h * (STEPS - 1)).astype(np.intp)


def _handle(
    d: Design, shot: Shot, x: np.ndarray, y: np.ndarray, cos: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """A bent rod beside the body: where it is, and its normals."""
    assert d.handle is not None
    middle, half, reach = d.handle
    foot = float(d.radius[int(middle * (STEPS - 1))]) * 0.92
    across, down = (x * shot.side - foot) / reach, (y - middle * cos) / (half * cos)
    ring, rod = np.sqrt(across * across + down * down), 0.17
    off = (ring - (1 - rod)) / rod
    there = np.clip((1 - np.abs(off)) * rod * reach * scale + 0.5, 0, 1) * (across > -0.1)
    out = np.clip(off, -1, 1) / np.maximum(ring, 1e-3)
    return there, np.stack([across * shot.side * out, down * out, np.sqrt(np.clip(1 - off * off, 0, 1))])


def shade(solid: Solid, shot: Shot, d: Design, style: Style) -> np.ndarray:
    """Lit colors, n × 3: a soft lamp, light from all around, a glossy reflection of the lamp."""
    nx, ny, nz = solid.normal
    lx, ly, lz = (float(v) for v in shot.light)
    direct = np.clip(0.72 * (nx * lx + ny * ly + nz * lz) + 0.28, 0, 1)
    direct = 1.5 * direct * direct
    if style.flat:  # three tones
        direct = 0.25 + 0.5 * np.clip((direct - 0.2) * 20, 0, 1) + 0.5 * np.clip((direct - 0.8) * 20, 0, 1)
    else:
        direct *= np.clip(1 - 1.15 * solid.hollow, 0, 1)
    sky = (0.62 + 0.38 * ny) * (1 - 0.45 * np.exp(-20 * solid.height)) * (1 - solid.hollow)
    light = direct[:, None] * style.lamp + sky[:, None] * style.around
    solid_part = (solid.hollow == 0).astype(np.float32)
    if style.rim is not None:
        edge = np.clip(1 - nz, 0, 1) ** 3 * np.clip(0.2 - nx * shot.lean, 0, 1) * solid_part
        light += edge[:, None] * style.rim
    # The lamp mirrored in the glaze, and a dimmer glow from the other side.
    rx, ry, rz = 2 * nz * nx, 2 * nz * ny, 2 * nz * nz - 1
    shine = 0.75 * np.clip((rx * lx + ry * ly + rz * lz - 0.9) * 20, 0, 1)
    shine += 0.12 * np.clip((rz * lz + 0.6 * ry * ly - rx * lx - 0.72) * 5, 0, 1)
    lit = solid.color * solid.color * light + (d.gloss * shine * solid_part)[:, None] * style.lamp
    return np.sqrt(np.clip(lit, 0, 1))


def lay(canvas: np.ndarray, solid: Solid, color: np.ndarray) -> None:
    flat = canvas.reshape(-1, 3)
    under = flat[solid.index]
    flat[solid.index] = under + solid.cover[:, None] * (color - under)


# --- styles ---


@dataclass
class Style:
    """One style in one image: its light, its ground, and what is done to the finished drawing."""

    lamp: Color
    around: Color
    ground: np.ndarray  # n × n × 3
    horizon: float
    dark: float  # how much light a shadow takes
    rim: Color | None = None
    flat: bool = False
    blur: float = 1.0
    finish: Callable[[np.ndarray], np.ndarray] | None = None


def _hsv(h: float, s: float, v: float) -> Color:
    k = (np.array([5, 3, 1]) + h * 6) % 6
    return (v - v * s * np.clip(np.minimum(k, 4 - k), 0, 1)).astype(np.float32)


def _grid(n: int, shot: Shot | None = None) -> tuple[np.ndarray, np.ndarray]:
    """x as a row and y as a column, from 0 to 1; with a shot, y is level with its board."""
    line = (np.arange(n, dtype=np.float32) + 0.5) / n
    x, y = line[None], line[:, None]
    return (x, y) if shot is None else (x, y + (x - shot.x) * float(np.tan(shot.roll)))


def _image(array: np.ndarray) -> Image.Image:
    return Image.fromarray((np.clip(array, 0, 1) * 255 + 0.5).astype(np.uint8))


def _array(image: Image.Image) -> np.ndarray:
    return np.asarray(image, np.float32) * np.float32(1 / 255)


def _enlarge(array: np.ndarray, canvas: int, blur: float = 0.0) -> np.ndarray:
    image = _image(array)
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur * len(array) / 160))
    return _array(image.resize((canvas, canvas), Image.Resampling.BILINEAR))


def studio(shot: Shot, n: int, rng: np.random.Generator) -> Style:
    """A wall and a board in soft light, perhaps with sun through a window."""
    x, y = _grid(n, shot)
    horizon = shot.y - rng.uniform(0.04, 0.16)
    warm, gain = rng.normal(0, 0.09), float(np.exp(rng.normal(0, 0.12)))
    tint = np.array([1 + warm, 1, 1 - warm], np.float32)
    fall = 1 - 0.3 * np.hypot(x - 0.5 - 0.4 * shot.lean, y - 0.2)
    if rng.random() < 0.5:
        slant = np.abs(x - rng.uniform(0.1, 0.7) + (y - 0.3) * rng.uniform(-0.8, 0.8))
        bars = np.clip((np.mod(y * 3 + 0.2, 1) - 0.1) * 10, 0, 1)
        fall *= 1 + 0.28 * bars * np.clip((rng.uniform(0.08, 0.2) - slant) * 20, 0, 1)
    out = fall[..., None] * _hsv(rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.6, 0.97) * gain)
    if rng.random() < 0.6:  # wood
        tone = _hsv(rng.uniform(0.05, 0.1), rng.uniform(0.25, 0.6), rng.uniform(0.4, 0.85) * gain)
        grain = 0.05 * np.sin(y * 90 + 2 * np.sin(x * 5 + rng.uniform(0, 6)))
    else:
        tone, grain = _hsv(rng.random(), rng.uniform(0, 0.25), rng.uniform(0.5, 0.95) * gain), 0 * x
    board = tone * (0.86 + 0.25 * (y - horizon) + grain)[..., None]
    out += np.clip((y - horizon) * n + 0.5, 0, 1)[..., None] * (board - out)
    return Style(0.78 * gain * tint, 0.42 * gain / tint, out, horizon, 0.72)


def night(shot: Shot, n: int, rng: np.random.Generator) -> Style:
    """One warm lamp, and the lights of a town far away."""
    x, y = _grid(n, shot)
    hue, warm, gain = rng.uniform(0.55, 0.75), rng.normal(0, 0.07), float(np.exp(rng.normal(0, 0.15)))
    lights = Image.new("RGB", (2 * n, 2 * n))
    pen = ImageDraw.Draw(lights)
    for _ in range(int(rng.integers(4, 14))):
        radius, u, v = rng.uniform(0.04, 0.14) * n, rng.uniform(0, 2) * n, rng.uniform(0, 1.2) * n
        color = 255 * rng.uniform(0.1, 0.4) * _hsv(rng.choice([0.06, 0.1, 0.13, 0.5, 0.9]), rng.uniform(0.3, 0.8), 1.0)
        pen.ellipse((u - radius, v - radius, u + radius, v + radius), tuple(int(c) for c in color))
    sky = _hsv(hue, rng.uniform(0.5, 0.8), rng.uniform(0.1, 0.22))
    out = _array(lights.reduce(2)) + sky * (1.3 - 0.7 * y)[..., None]
    horizon = shot.y - rng.uniform(0.02, 0.1)
    lamp = np.array([1.0, 0.72 + warm, 0.42 + warm], np.float32) * gain
    cold = _hsv(hue - 0.05, 0.55, gain)
    pool = np.exp(-(((x - shot.x - 0.25 * shot.lean) / 0.45) ** 2) - ((y - shot.y) / 0.2) ** 2)
    board = 0.06 * cold + 0.42 * pool[..., None] * lamp
    out += np.clip((y - horizon) * n / 2 + 0.5, 0, 1)[..., None] * (board - out)
    return Style(1.05 * lamp, 0.07 * cold, out, horizon, 0.85, rim=0.55 * cold)


def sketch(shot: Shot, n: int, rng: np.random.Generator) -> Style:
    """Pencil and a thin wash on paper."""
    paper = _hsv(rng.uniform(0.08, 0.16), rng.uniform(0.02, 0.12), rng.uniform(0.9, 0.98))
    pencil = _hsv(rng.random(), rng.uniform(0, 0.5), rng.uniform(0.1, 0.3))
    wash, width, strength = rng.uniform(0.2, 0.75), rng.uniform(0.9, 1.5), rng.uniform(7, 12)
    angle, spacing = rng.uniform(0.5, 1.1) * rng.choice([-1, 1]), 2 * np.pi * rng.uniform(45, 75)
    noise = 0.5 + 0.12 * rng.standard_normal((n, n)).astype(np.float32)

    def finish(canvas: np.ndarray) -> np.ndarray:
        x, y = _grid(len(canvas))
        grain = _enlarge(noise, len(canvas))
        tone = _array(_image(canvas).convert("L").filter(ImageFilter.GaussianBlur(width)))
        steep = np.zeros_like(tone)
        steep[1:, 1:] = np.abs(tone[1:, 1:] - tone[:-1, 1:]) + np.abs(tone[1:, 1:] - tone[1:, :-1])
        ink = np.clip(steep * strength - 0.12, 0, 1) * (0.55 + 0.9 * grain)
        waves = np.sin(x * (float(np.cos(angle)) * spacing) + y * (float(np.sin(angle)) * spacing) + 3 * np.sin(9 * y))
        dark = np.clip(0.8 - 1.1 * tone, 0, 1)
        ink += np.clip(waves * 3 - 3 + 5.1 * dark, 0, 1) * np.clip(dark * 4, 0, 1) * (0.28 + 0.56 * grain)
        ink = np.minimum(ink, 0.95)[..., None]
        sheet = (canvas * (wash * paper) + (1 - wash) * paper) * (0.9 + 0.2 * grain)[..., None]
        return sheet + ink * (pencil - sheet)

    white = np.ones(3, np.float32)
    return Style(0.8 * white, 0.4 * white, np.ones((n, n, 3), np.float32), shot.y, 0.6, finish=finish)


def poster(shot: Shot, n: int, rng: np.random.Generator) -> Style:
    """Flat colors, three tones of light, a bold ground."""
    x, y = _grid(n, shot)
    hue, white = rng.random(), np.ones(3, np.float32)
    one, two = _hsv(hue, rng.uniform(0.2, 0.7), rng.uniform(0.6, 0.95)), _hsv(hue + rng.uniform(0.05, 0.2), 0.4, 0.9)
    if rng.random() < 0.5:
        shape = np.clip(np.sin(np.arctan2(y - shot.y, x - shot.x) * int(rng.integers(8, 16))) * 8 + 0.5, 0, 1)
    else:
        shape = np.clip((rng.uniform(0.3, 0.42) - np.hypot(x - 0.5, y - 0.45)) * n + 0.5, 0, 1)
    out = one + shape[..., None] * (two - one)
    horizon = shot.y - 0.06
    out += np.clip((y - horizon) * n + 0.5, 0, 1)[..., None] * (one * 0.8 - out)
    return Style(0.62 * white, 0.3 * white, out, horizon, 0.4, flat=True, blur=0.0)


STYLES: dict[str, Callable[[Shot, int, np.random.Generator], Style]] = {
    "studio": studio,
    "sketch": sketch,
    "night": night,
    "poster": poster,
}


# --- the image ---


def draw(d: Design, style_name: str, size: int, others: list[Design], rng: np.random.Generator) -> Image.Image:
    """One image of a thing among others, `size` pixels square."""
    shot = _pose(d, rng)
    style = STYLES[style_name](shot, size, rng)
    for _ in range(int(rng.integers(0, 4))):
        other = others[int(rng.integers(len(others)))]
        beside = _pose(other, rng, shot)
        beside.height *= 0.8
        beside.stand(shot, rng.choice([-1, 1]) * rng.uniform(0.3, 0.5), style.horizon + rng.uniform(0.01, 0.05))
        _shadow(style, beside, other)
        solid = turn(other, beside, size)
        lay(style.ground, solid, shade(solid, beside, other, style))
    _shadow(style, shot, d)
    canvas = _enlarge(style.ground, size * OVER, style.blur)
    solid = turn(d, shot, size * OVER)
    lay(canvas, solid, shade(solid, shot, d, style))
    if rng.random() < 0.35:
        other = others[int(rng.integers(len(others)))]
        _lay_front(canvas, other, _pose(other, rng, shot), shot, style, size, rng)
    return _image(style.finish(canvas) if style.finish else canvas).reduce(OVER)


def _pose(d: Design, rng: np.random.Generator, like: Shot | None = None) -> Shot:
    """How a thing stands, under the camera and lamp of another if there is one."""
    height = min(rng.uniform(0.36, 0.78), rng.uniform(0.42, 0.84) / d.width)
    side = int(rng.choice([-1, 1]))
    azimuth, lift = rng.uniform(0.3, 1.25) * rng.choice([-1, 1]), rng.uniform(0.35, 1.0)
    light = np.array([np.sin(azimuth) * np.cos(lift), np.sin(lift), np.cos(azimuth) * np.cos(lift)], np.float32)
    return Shot(
        height=height,
        x=0.5 + rng.uniform(-0.1, 0.1) - (0.5 * side * height * d.handle[2] if d.handle else 0),
        y=0.5 + 0.48 * height + rng.uniform(-0.03, 0.07),
        roll=like.roll if like else float(np.clip(rng.normal(0, 0.16), -0.4, 0.4)),
        tilt=like.tilt if like else rng.uniform(0.1, 0.5),
        spin=rng.random(),
        side=side,
        light=like.light if like else light,
        colors=glaze(rng),
    )


def _shadow(style: Style, shot: Shot, d: Design) -> None:
    """Dark under the foot, long and faint away from the lamp; on the style's ground."""
    x, y = _grid(len(style.ground), shot)
    foot, wide = max(float(d.radius[:40].max()), 0.12) * shot.height, float(d.radius.max()) * shot.height
    under = ((x - shot.x) / (foot * 1.3)) ** 2 + ((y - shot.y) / (foot * 0.38)) ** 2
    away = ((x - shot.x + shot.lean * wide * 1.2) / (wide * 1.7)) ** 2 + ((y - shot.y - 0.02) / (wide * 0.3)) ** 2
    taken = np.minimum(np.exp(-under * under) * 0.75 + np.exp(-away) * 0.45, 1)
    taken *= np.clip((y - style.horizon) * (len(style.ground) / 4), 0, 1) * style.dark
    style.ground *= 1 - taken[..., None]


def _lay_front(
    canvas: np.ndarray, d: Design, front: Shot, shot: Shot, style: Style, size: int, rng: np.random.Generator
) -> None:
    """Something before the thing, out of focus, that hides a part of it."""
    away = rng.uniform(0.6, 1.1) * d.width * front.height / 2 + 0.08
    front.stand(shot, rng.choice([-1, 1]) * away, shot.y + rng.uniform(0.05, 0.2))
    solid = turn(d, front, size)
    cover, color = np.zeros((size, size), np.float32), np.zeros((size, size, 3), np.float32)
    cover.reshape(-1)[solid.index] = solid.cover
    color.reshape(-1, 3)[solid.index] = shade(solid, front, d, style) * solid.cover[:, None]
    canvas *= 1 - _enlarge(cover, len(canvas), 2 * style.blur)[..., None]
    canvas += _enlarge(color, len(canvas), 2 * style.blur)
