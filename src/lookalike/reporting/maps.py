"""Scatter maps and heat maps: still images that need no script, and the points for the script of the map."""

from __future__ import annotations

import base64
import io
import zlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from lookalike.core.report_blocks import Heat, HeatPanel, Panel, Scatter
from lookalike.core.seeds import numpy_rng
from lookalike.reporting.markup import Html, column, data_block, folded, h, join, name, plain, scrolling, table
from lookalike.reporting.thumbnails import RenderContext

POINTS = 20_000
SIDE = 640  # width of the still image in pixels
NAMES = 200  # listed below the map
# The twelve colors of the map, readable on both themes; the last one is "other".
PALETTE = (
    "#0072b2", "#c85400", "#00875f", "#b8578f", "#9a7500", "#3b8fc7",
    "#8a5fc7", "#cf4444", "#62871f", "#94714a", "#1f8f88", "#777777",
)  # fmt: skip
OTHER = len(PALETTE) - 1
HEAT_SIDE = 360  # approximate width of a heat map in pixels
ABOVE, BELOW = (0x00, 0x72, 0xB2), (0xC8, 0x54, 0x00)  # readable on both themes


def scatter(block: Scatter, context: RenderContext) -> Html:
    """Render a map: a still image, legend and names, and the points for the script."""
    if not block.codes:
        return h("p", "There are no points to draw.", class_="muted")
    codes = np.asarray(block.codes, dtype=np.int64)
    keep = _sample(len(codes), block.images)
    counts = Counter(codes.tolist())
    color = _colors(counts, len(block.names))
    codes = codes[keep]
    dots, key, aspect = color[codes], context.key("map"), aspect_ratio(block.panels)
    places = [_quantized(panel, keep, aspect) for panel in block.panels]
    size = SIDE, round(SIDE * aspect)
    frames = [
        _figure(p.title, map_png(xy, dots, aspect), size, f"Map of {len(block.codes):,} images, {p.title}")
        for p, xy in zip(block.panels, places, strict=True)
    ]
    cut = f"{len(keep):,} of {len(block.codes):,} images, drawn at random. " if len(keep) < len(block.codes) else ""
    position = {int(old): new for new, old in enumerate(keep)}
    thumbs = {}
    for i, image in block.images.items():
        if i in position and (stored := context.images.key(image.file)):
            thumbs[position[i]] = [stored, *context.images.get(image.file)[1:], image.alt]  # type: ignore[index]
    data = {
        "panels": [_pack(xy.astype("<u2")) for xy in places],
        "codes": _pack((codes + 1).astype("<u2")),  # 0: no label
        "colors": [OTHER, *(int(color[c]) for c in range(len(block.names)))],
        "palette": PALETTE,
        "names": ["no label", *block.names],
        "images": thumbs,
    }
    return join([
        h("p", cut, class_="muted") if cut else None,
        h("div", *frames, class_=f"map panels{len(frames)}", data_map=key),
        _legend(block, counts, color),
        _names(block, counts),
        data_block(key, data),
    ])  # fmt: skip


def _sample(count: int, with_image: Iterable[int]) -> np.ndarray:
    """The points that are drawn: all, or a random sample that includes every point with an image."""
    if count <= POINTS:
        return np.arange(count)
    order = numpy_rng(0, "report-map").permutation(count)
    order = order[np.argsort(~np.isin(order, list(with_image)), kind="stable")]
    return np.sort(order[:POINTS])


def _colors(counts: Counter[int], names: int) -> np.ndarray:
    """Code → color; of more than twelve names the eleven most frequent have one. −1 is other."""
    color = np.full(names + 1, OTHER)
    ranked = [c for c, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if c >= 0]
    shown = ranked if len(ranked) <= len(PALETTE) and -1 not in counts else ranked[:OTHER]
    for place, code in enumerate(sorted(shown)):
        color[code] = place
    return color


def aspect_ratio(panels: list[Panel]) -> float:
    """Compute height over width of the panels, so that a flat map does not get an empty square."""
    extents = [(max(p.x) - min(p.x) or 1.0, max(p.y) - min(p.y) or 1.0) for p in panels]
    return min(1.0, max(0.6, max(high / wide for wide, high in extents)))


def _quantized(panel: Panel, keep: np.ndarray, aspect: float) -> np.ndarray:
    """Coordinates as u16 across width and height of the panel, one scale for both axes, with a margin of 3 %."""
    xy = np.stack([panel.x, panel.y], axis=1)[keep]
    low, high = xy.min(axis=0), xy.max(axis=0)
    wide, tall = high - low
    reach = max(float(wide), float(tall) / aspect) or 1.0
    unit = (xy - (low + high) / 2) / (reach * np.array([1.0, aspect])) * 0.94 + 0.5
    unit[:, 1] = 1 - unit[:, 1]
    return np.asarray(np.round(unit * 65535), dtype=np.uint16)


def _pack(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def map_png(xy: np.ndarray, dots: np.ndarray, aspect: float = 1.0) -> bytes:
    """Draw a panel as a transparent PNG, as the script does: opaque squares, the gray ones below."""
    from PIL import Image

    size = 3 if len(xy) > 4000 else 5
    high = round(SIDE * aspect)
    indices = np.full((high, SIDE), 255, dtype=np.uint8)
    ends = np.array([SIDE, high])
    at = np.clip(np.round(xy / 65535 * (ends - 1)).astype(np.int64) - size // 2, 0, ends - size)
    order = np.argsort(dots != OTHER, kind="stable")
    for dy in range(size):
        for dx in range(size):
            indices[at[order, 1] + dy, at[order, 0] + dx] = dots[order]
    image = Image.fromarray(indices, "P")
    table = [int(c[i : i + 2], 16) for c in PALETTE for i in (1, 3, 5)]
    image.putpalette(table + [0] * (768 - len(table)))
    out = io.BytesIO()
    image.save(out, "PNG", transparency=255, optimize=True, compress_level=zlib.Z_BEST_COMPRESSION)
    return out.getvalue()


def _figure(title: str, png: bytes, size: tuple[int, int], alt: str, below: Html | None = None) -> Html:
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = h("img", src=address, width=size[0], height=size[1], alt=alt)
    return h("figure", h("figcaption", name(title, 80)), h("div", image, class_="field"), below)


def _legend(block: Scatter, counts: Counter[int], color: np.ndarray) -> Html:
    """The colors in use. With scripts, each entry highlights its images in both panels."""
    colored = [c for c in range(len(block.names)) if color[c] != OTHER or (counts[c] and len(counts) <= OTHER + 1)]
    entries = [_entry(int(color[c]), block.names[c], counts[c], c + 1) for c in colored if counts[c]]
    rest = [c for c in range(len(block.names)) if counts[c] and c not in set(colored)]
    if rest:
        entries.append(_entry(OTHER, f"{len(rest):,} others", sum(counts[c] for c in rest), None))
    if counts[-1]:
        entries.append(_entry(OTHER, "no label", counts[-1], 0))
    return h("ul", *entries, class_="legend", aria_label="Colors of the map")


def _entry(color: int, text: str, count: int, code: int | None) -> Html:
    square = h("rect", width=12, height=12, rx=3, fill=PALETTE[color])
    swatch = h("svg", square, width=12, height=12, aria_hidden="true")
    return h("li", swatch, name(text, 40), h("span", f"{count:,}", class_="muted"), data_code=code)


def _names(block: Scatter, counts: Counter[int]) -> Html:
    ranked = sorted((c for c in range(len(block.names)) if counts[c]), key=lambda c: (-counts[c], c))
    items = [h("li", name(block.names[c], 60), " ", h("span", f"{counts[c]:,}", class_="span")) for c in ranked[:NAMES]]
    more = f" (the {NAMES} most frequent of {len(ranked):,})" if len(ranked) > NAMES else ""
    return folded(f"The names on the map{more}", h("ul", *items, class_="names"))


def heat(block: Heat, context: RenderContext) -> Html:
    """Render square matrices as colors, with their range and their diagonal in numbers."""
    if not block.names:
        return h("p", "There are no classes to draw.", class_="muted")
    axes = f"One row per {block.y_label}, one column per {block.x_label}; " if block.y_label and block.x_label else ""
    text = f"{axes}{len(block.names):,} of each, in the same order. Blue is above 0, orange below; stronger is more."
    panels = h("div", *map(_heat_panel, block.panels), class_=f"map panels{len(block.panels)}")
    return join([h("p", text, class_="muted"), panels, _diagonal(block)])


def _heat_panel(panel: HeatPanel) -> Html:
    values = np.array(panel.values)
    ends = f"from {plain(float(values.min()))} to {plain(float(values.max()))}"
    side = _factor(len(values)) * len(values)
    alt = f"{panel.title}, {ends}; mean of the diagonal {plain(float(np.diag(values).mean()))}"
    return _figure(panel.title, heat_png(values), (side, side), alt, h("p", ends, class_="muted"))


def _factor(count: int) -> int:
    return max(1, HEAT_SIDE // count)


def heat_png(values: np.ndarray) -> bytes:
    """Draw a matrix as a PNG: color is the sign and opacity the magnitude, for any background."""
    from PIL import Image

    top = float(np.abs(values).max()) or 1.0
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where(values[..., None] < 0, BELOW, ABOVE)
    pixels[..., 3] = np.round(255 * np.abs(values) / top)
    factor = _factor(len(values))
    out = io.BytesIO()
    Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1), "RGBA").save(out, "PNG", optimize=True)
    return out.getvalue()


def _diagonal(block: Heat) -> Html:
    """Every name with the numbers on the diagonal."""
    heads = [column("name"), *(column(panel.title, class_="num") for panel in block.panels)]
    rows = []
    for n, text in enumerate(block.names):
        cells = (h("td", plain(panel.values[n][n]), class_="num") for panel in block.panels)
        rows.append(h("tr", h("th", name(text, 60), scope="row"), *cells))
    drawing = table(h("tr", *heads), rows, class_="grid")
    return folded("The diagonal in numbers", scrolling("Diagonal", drawing))
