"""Render the blocks of a report: one function a kind of block, which takes the block and returns its markup."""

from __future__ import annotations

import base64
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lookalike.core import report_blocks as blocks
from lookalike.core.report_blocks import Scatter, Value, number
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.verdicts import percent_text
from lookalike.reporting import markup
from lookalike.reporting.charts import Scale, arrows, axis, bars, lines, reliability, whisker_marks, whiskers
from lookalike.reporting.markup import Html, RenderContext, cell, column, folded, h, join, name, plain, scrolling, span

GRID_ROWS = 500
MAP_POINTS = 20_000
MAP_SIDE = 640  # width of the still image in pixels
MAP_NAMES = 200  # listed below the map
# The twelve colors of the map, readable on both themes; the last one is "other".
PALETTE = (
    "#0072b2", "#c85400", "#00875f", "#b8578f", "#9a7500", "#3b8fc7",
    "#8a5fc7", "#cf4444", "#62871f", "#94714a", "#1f8f88", "#777777",
)  # fmt: skip
OTHER = len(PALETTE) - 1
HEAT_SIDE = 360  # approximate width of a heat map in pixels
ABOVE, BELOW = (0x00, 0x72, 0xB2), (0xC8, 0x54, 0x00)  # readable on both themes


def verdict(block: blocks.Verdict, context: RenderContext) -> Html:
    """Render a verdict further down the page; the first one is the headline of the page."""
    line = h("p", block.line, class_="line") if block.line else None
    return join([h("p", block.message, class_="message"), figures(block), line])


def figures(verdict: blocks.Verdict) -> Html | None:
    """Render the key figures of a verdict with their intervals."""
    if not verdict.figures:
        return None
    cards = []
    for figure in verdict.figures:
        value = figure.value
        if isinstance(value, Value):
            big = join([value.number(), h("span", f" {value.unit}", class_="unit") if value.unit else None])
            interval = f"{100 * value.level:g} % interval {span(value)}" if span(value) else ""
            under = " · ".join(part for part in (interval, figure.note) if part)
        else:
            big, under = cell(value), figure.note
        cards.append(h("div", h("dt", figure.label), h("dd", big, class_="big"), h("dd", under) if under else None))
    return h("dl", *cards, class_="figures")


def text(block: blocks.Text, context: RenderContext) -> Html:
    """Render paragraphs."""
    paragraphs = [p.strip() for p in markup.clean(block.text).split("\n\n") if p.strip()]
    return join(h("p", p) for p in paragraphs)


def code(block: blocks.Code, context: RenderContext) -> Html:
    """Render a command or a file."""
    return h("pre", h("code", block.text), tabindex="0", role="region", aria_label=block.title or "Command")


def facts(block: blocks.Facts, context: RenderContext) -> Html:
    """Render names and values."""
    rows = (h("div", h("dt", name(title)), h("dd", cell(value, title))) for title, value in block.rows)
    return h("dl", *rows, class_="pairs")


def grid(block: blocks.Grid, context: RenderContext) -> Html:
    """Render a markup.table, one of its columns also drawn as dots with whiskers."""
    shown = block.rows[:GRID_ROWS]
    columns = range(len(block.columns))
    numeric = [i > 0 and all(markup.is_number(row[i]) or row[i] is None for row in shown) for i in columns]
    drawn = block.columns.index(block.whisker) if block.whisker else None
    values = [v for row in shown if isinstance(v := row[drawn], Value)] if drawn is not None else []
    ends = [v for x in values for v in (x.value, x.low, x.high) if v is not None]
    ends += [0.0] * any(x.signed for x in values)
    scale = Scale.cover(ends, ticks=3) if values else None
    reference = 0.0 if scale is not None and scale.low <= 0 <= scale.high else None

    # On a phone a row of many numbers becomes a card; a long or narrow markup.table stays a markup.table.
    cards = 3 < len(block.columns) <= 10 and len(shown) <= 40

    def heads() -> Html:
        out = []
        for i, title in enumerate(block.columns):
            out.append(column(title, class_="num" if numeric[i] else None))
            if scale is not None and i == drawn:
                text = "; ".join(f"{markup.cell_text(row[0])}: {markup.cell_text(row[i])}" for row in shown[:12])
                strip = axis(scale, context.key("chart"), title, text)
                out.append(h("th", strip, scope="col", class_="drawing"))
        return h("tr", *out)

    def cells(row: list[Any]) -> Html:
        out = []
        for i, value in enumerate(row):
            attributes = {"scope": "row"} if i == 0 else {"data_label": markup.clean(block.columns[i])[:60]}
            tag, style = "th" if i == 0 else "td", "num" if numeric[i] else None
            out.append(h(tag, cell(value, block.columns[i]), class_=style, **attributes))
            if scale is not None and i == drawn:
                marks = None
                if isinstance(value, Value):
                    marks = whisker_marks(scale, value.value, value.low, value.high, reference)
                out.append(h("td", marks, class_="drawing"))
        return h("tr", *out)

    drawing = markup.table(heads(), map(cells, shown), class_=f"grid{' cards' if cards else ''}")
    cut = f"The first {GRID_ROWS:,} of {len(block.rows):,} rows; all are in the run's folder."
    rest = h("p", cut, class_="muted") if len(shown) < len(block.rows) else None
    return join([scrolling(block.title or "Table", drawing), rest])


TICK = h("svg", h("circle", cx=9, cy=9, r=9), h("path", d="M5 9.4 L8 12.2 L13.2 6.4"), class_="badge ok",
         viewBox="0 0 18 18", aria_hidden="true")  # fmt: skip
CROSS = h("svg", h("rect", width=18, height=18, rx=3), h("path", d="M5.4 5.4 L12.6 12.6 M12.6 5.4 L5.4 12.6"),
          class_="badge no", viewBox="0 0 18 18", aria_hidden="true")  # fmt: skip


def hits(block: blocks.Hits, context: RenderContext) -> Html:
    """Render queries with their hits."""
    if not block.rows:
        return h("p", "There are none.", class_="muted")
    keep = max(1, math.ceil(len(block.rows) * context.row_fraction))
    style = "hits" if context.images.shown else "hits bare"
    names = {tuple(hit_list.name for hit_list in row.lists) for row in block.rows}
    only = next(iter(names))[0] if len(names) == 1 and all(len(n) == 1 for n in names) else ""
    caption = h("p", "Hits of ", name(only, 80), class_="muted") if only else None
    rows = join([caption, h("ol", *(_hit_row(row, context, not only) for row in block.rows[:keep]), class_=style)])
    if keep == len(block.rows):
        return rows
    cut = f"{keep} of {len(block.rows)} rows are shown, to keep this file small enough to send."
    return join([rows, h("p", cut, class_="muted")])


def _hit_row(row: blocks.HitRow, context: RenderContext, labeled: bool) -> Html:
    caption = h("p", name(row.query.label or row.query.alt, 80), class_="caption")
    note = h("p", row.note, class_="caption muted") if row.note else None
    query = h("div", _cell(context, row.query, f"Query: {row.query.alt}"), caption, note, class_="query")
    lists = []
    for hit_list in row.lists:
        label = h("p", name(hit_list.name, 40), class_="label") if hit_list.name and labeled else None
        lists.append(h("div", label, h("ol", *(_hit(hit, context) for hit in hit_list.hits)), class_="found"))
    return h("li", query, h("div", *lists, class_="lists"))


def _cell(context: RenderContext, image: blocks.Image, alt: str, badge: Html | None = None) -> Html | None:
    return h("div", context.image(image, alt), badge, class_="cell") if context.images.shown else None


def _hit(hit: blocks.Hit, context: RenderContext) -> Html:
    word = {True: "right", False: "wrong", None: ""}[hit.ok]
    similarity = h("span", "similarity ", class_="wide")
    p = hit.probability
    text = join([similarity, number(hit.score, 2)]) if p is None else percent_text(p, p, p)
    label = hit.image.label or hit.image.alt
    alt = ", ".join(part for part in (hit.image.alt, word) if part)
    badge = {True: TICK, False: CROSS, None: None}[hit.ok]
    inline = None if context.images.shown else badge
    score = h("span", text, class_="score" if p is not None else "score muted")
    caption = h("p", inline, score, " ", name(label, 80), class_="caption")
    title = f"{label}\nsimilarity {number(hit.score, 3)}"
    return h("li", _cell(context, hit.image, alt, badge), caption, class_=word or None, title=title)


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
    size = MAP_SIDE, round(MAP_SIDE * aspect)
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
        markup.data_block(key, data),
    ])  # fmt: skip


def _sample(count: int, with_image: Iterable[int]) -> np.ndarray:
    """The points that are drawn: all, or a random sample that includes every point with an image."""
    if count <= MAP_POINTS:
        return np.arange(count)
    order = numpy_rng(0, "report-map").permutation(count)
    order = order[np.argsort(~np.isin(order, list(with_image)), kind="stable")]
    return np.sort(order[:MAP_POINTS])


def _colors(counts: Counter[int], names: int) -> np.ndarray:
    """Code → color; of more than twelve names the eleven most frequent have one. −1 is other."""
    color = np.full(names + 1, OTHER)
    ranked = [c for c, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if c >= 0]
    shown = ranked if len(ranked) <= len(PALETTE) and -1 not in counts else ranked[:OTHER]
    for place, code in enumerate(sorted(shown)):
        color[code] = place
    return color


def aspect_ratio(panels: list[blocks.Panel]) -> float:
    """Compute height over width of the panels, so that a flat map does not get an empty square."""
    extents = [(max(p.x) - min(p.x) or 1.0, max(p.y) - min(p.y) or 1.0) for p in panels]
    return min(1.0, max(0.6, max(high / wide for wide, high in extents)))


def _quantized(panel: blocks.Panel, keep: np.ndarray, aspect: float) -> np.ndarray:
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
    high = round(MAP_SIDE * aspect)
    indices = np.full((high, MAP_SIDE), 255, dtype=np.uint8)
    ends = np.array([MAP_SIDE, high])
    at = np.clip(np.round(xy / 65535 * (ends - 1)).astype(np.int64) - size // 2, 0, ends - size)
    order = np.argsort(dots != OTHER, kind="stable")
    for dy in range(size):
        for dx in range(size):
            indices[at[order, 1] + dy, at[order, 0] + dx] = dots[order]
    image = Image.fromarray(indices, "P")
    colors = [int(c[i : i + 2], 16) for c in PALETTE for i in (1, 3, 5)]
    image.putpalette(colors + [0] * (768 - len(colors)))
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
    items = [
        h("li", name(block.names[c], 60), " ", h("span", f"{counts[c]:,}", class_="span")) for c in ranked[:MAP_NAMES]
    ]
    more = f" (the {MAP_NAMES} most frequent of {len(ranked):,})" if len(ranked) > MAP_NAMES else ""
    return folded(f"The names on the map{more}", h("ul", *items, class_="names"))


def heat(block: blocks.Heat, context: RenderContext) -> Html:
    """Render square matrices as colors, with their range and their diagonal in numbers."""
    if not block.names:
        return h("p", "There are no classes to draw.", class_="muted")
    axes = f"One row per {block.y_label}, one column per {block.x_label}; " if block.y_label and block.x_label else ""
    text = f"{axes}{len(block.names):,} of each, in the same order. Blue is above 0, orange below; stronger is more."
    panels = h("div", *map(_heat_panel, block.panels), class_=f"map panels{len(block.panels)}")
    return join([h("p", text, class_="muted"), panels, _diagonal(block)])


def _heat_panel(panel: blocks.HeatPanel) -> Html:
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


def _diagonal(block: blocks.Heat) -> Html:
    """Every name with the numbers on the diagonal."""
    heads = [column("name"), *(column(panel.title, class_="num") for panel in block.panels)]
    rows = []
    for n, text in enumerate(block.names):
        cells = (h("td", plain(panel.values[n][n]), class_="num") for panel in block.panels)
        rows.append(h("tr", h("th", name(text, 60), scope="row"), *cells))
    drawing = markup.table(h("tr", *heads), rows, class_="grid")
    return folded("The diagonal in numbers", scrolling("Diagonal", drawing))


_KINDS = (verdict, text, code, facts, grid, whiskers, lines, hits, arrows, reliability, scatter, heat, bars)
RENDERERS: dict[str, Callable[[Any, RenderContext], Html]] = {kind.__name__: kind for kind in _KINDS}


def render_block(block: Any, context: RenderContext) -> Html:
    """Render a block of any kind with its title and note."""
    tag, title = "div", h("h3", block.title) if block.title else None
    if block.folded:
        tag, title = "details", h("summary", block.title or "More")
    note = h("p", block.note, class_="note") if block.note else None
    return h(tag, title, RENDERERS[block.kind](block, context), note, class_=f"block b-{block.kind}")
