"""Line charts and the reliability diagram as fluid SVG: positions in percent, text in pixels at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lookalike.core.report_blocks import Lines, Reliability, Series, Value, number
from lookalike.reporting.markup import (
    DASH,
    Html,
    chart_label,
    digits_for,
    esc,
    folded,
    h,
    join,
    name,
    plain,
    scrolling,
    span,
    svg_label,
)
from lookalike.reporting.thumbnails import RenderContext

POINTS = 400  # drawn of a curve
TABLE_ROWS = 24  # listed of a curve
READING = (
    "On the dashed line the percentages are right: of 100 hits shown with 80 %, 80 show the same thing. Above it the "
    "search is better than it says, below it worse. A larger dot stands for more pairs."
)


@dataclass(frozen=True)
class Scale:
    """A linear axis from values to percent of the drawing, which has no fixed size in pixels."""

    low: float
    high: float
    ticks: tuple[float, ...]
    digits: int

    @classmethod
    def cover(cls, values: Sequence[float], *, ticks: int = 5, tight: bool = False) -> Scale:
        """Make an axis that shows all values; ``tight`` ends at the values, else it ends at round numbers."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
            margin = abs(low) * 0.1 or 0.5
            low, high = low - margin, high + margin
        step = _step((high - low) / ticks)
        if not tight:
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        places = tuple(i * step for i in range(first, last + 1))
        power = math.floor(math.log10(step) + 1e-9)
        digits = max(0, -power + (0 if math.isclose(step, round(step / 10.0**power) * 10.0**power) else 1))
        return cls(low, high, places, min(digits, 8))

    def at(self, value: float) -> float:
        """Position of a value, 0 to 100."""
        return 100 * (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        return number(tick, self.digits)


def padded(values: Sequence[float], fraction: float = 0.06) -> list[float]:
    """Extend the range of values by a margin; an end at 0 stays there."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    margin = (high - low) * fraction
    return [low - margin if low else low, high + margin if high else high]


def _step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)


def pct(value: float) -> str:
    """Write a position in percent."""
    return f"{round(value, 2):g}%"


def thin(count: int, keep: int) -> list[int]:
    """Choose at most ``keep`` of ``count`` positions, evenly, the first and the last among them."""
    if count <= keep:
        return list(range(count))
    return sorted({round(i * (count - 1) / (keep - 1)) for i in range(keep)})


def envelope(y: Sequence[float], keep: int) -> list[int]:
    """Choose about ``keep`` points of a curve that preserve its peaks: the lowest and highest of each interval."""
    if len(y) <= keep:
        return list(range(len(y)))
    stretch = math.ceil(len(y) / (keep // 2))
    places = {0, len(y) - 1}
    for start in range(0, len(y), stretch):
        window = range(start, min(start + stretch, len(y)))
        places |= {min(window, key=y.__getitem__), max(window, key=y.__getitem__)}
    return sorted(places)


def lines(block: Lines, context: RenderContext) -> Html:
    """Render a line chart with legend and table."""
    curves = [s for s in block.series if s.x]
    if not curves:
        return h("p", "Nothing was logged.", class_="muted")
    levels = [s for s in curves if s.dashed and len(s.x) == 1]
    curves = [s for s in curves if s not in levels]
    xs = [x for s in curves for x in s.x] or [x for s in levels for x in s.x]
    ys = [y for s in [*curves, *levels] for y in (*s.y, *(s.low or ()), *(s.high or ()))]
    xs += [mark.x for mark in block.marks]
    across, up = Scale.cover(xs, tight=True), Scale.cover(padded(ys), ticks=6, tight=True)
    key = context.key("chart")
    parts: list[Html] = [*chart_label(key, _title(block), describe(block)), _axes(across, up)]
    styles = _styles([*curves, *levels])
    parts += [_curve(series, across, up, styles[series.name]) for series in curves]
    for series in levels:
        y = pct(100 - up.at(series.y[0]))
        parts.append(h("line", x1="0", x2="100%", y1=y, y2=y, class_=f"curve {styles[series.name]}"))
    for mark in block.marks:
        x = across.at(mark.x)
        parts.append(h("line", x1=pct(x), x2=pct(x), y1="0", y2="100%", class_="mark"))
        side = {"dx": 6} if x < 70 else {"dx": -6, "text_anchor": "end"}
        parts.append(h("text", mark.label, x=pct(x), y=0, dy=12, **side))
    frame = {"data_x": f"{across.low:.8g} {across.high:.8g}", "data_y": f"{up.low:.8g} {up.high:.8g}"}
    drawing = h("svg", *parts, class_="plot", **svg_label(key), **frame)
    legend = h("ul", *(_entry(s, styles[s.name]) for s in [*curves, *levels]), class_="legend", aria_label="Lines")
    return join([
        legend if len(block.series) > 1 else None,
        h("div", h("p", block.y_label, class_="axis-name"), drawing, h("p", block.x_label, class_="axis-name x"),
          class_="plot-box", data_chart="lines"),
        _line_table(block),
    ])  # fmt: skip


def _title(block: Lines) -> str:
    return block.title or f"{block.y_label} against {block.x_label}"


def _styles(series: Sequence[Series]) -> dict[str, str]:
    """The CSS class of every curve; references are gray and dashed."""
    styles, color, gray = {}, 0, 0
    for one in series:
        if one.dashed:
            styles[one.name] = f"g{gray % 3}"
            gray += 1
        else:
            styles[one.name] = f"s{color % 8}"
            color += 1
    return styles


def _axes(across: Scale, up: Scale) -> Html:
    parts = []
    for tick in up.ticks:
        y = pct(100 - up.at(tick))
        parts.append(h("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(h("text", up.label(tick), x="0", dx=-8, y=y, dy=4, text_anchor="end"))
    for tick in across.ticks:
        x = pct(across.at(tick))
        parts.append(h("line", x1=x, x2=x, y1="100%", y2="100%", class_="tick"))
        parts.append(h("text", across.label(tick), x=x, y="100%", dy=20, text_anchor="middle"))
    return h("g", *parts, aria_hidden="true")


def _points(x: Sequence[float], y: Sequence[float], across: Scale, up: Scale) -> list[str]:
    return [f"{10 * across.at(a):.1f} {1000 - 10 * up.at(b):.1f}" for a, b in zip(x, y, strict=True)]


def _curve(series: Series, across: Scale, up: Scale, style: str) -> Html:
    """A path in a square of 1,000 units that is stretched to the plot; its line width is not."""
    keep = envelope(series.y, POINTS)
    x, y = [series.x[i] for i in keep], [series.y[i] for i in keep]
    if len(x) == 1:
        return h("circle", cx=pct(across.at(x[0])), cy=pct(100 - up.at(y[0])), r=4, class_=f"dot {style}")
    parts = []
    if series.low is not None and series.high is not None:
        low = _points(x, [series.low[i] for i in keep], across, up)
        high = _points(x, [series.high[i] for i in keep], across, up)
        parts.append(h("path", d=f"M{' L'.join([*high, *reversed(low)])}Z", class_=f"band {style}"))
    data = " ".join(f"{a:.6g} {b:.5g}" for a, b in zip(x, y, strict=True))
    parts.append(h("path", d=f"M{' L'.join(_points(x, y, across, up))}", class_=f"curve {style}",
                   data_name=series.name, data_points=data))  # fmt: skip
    return h("svg", *parts, viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%", height="100%")


def _entry(series: Series, style: str) -> Html:
    swatch = h(
        "svg", h("line", x1=0, x2=20, y1=6, y2=6, class_=f"curve {style}"), width=20, height=12, aria_hidden="true"
    )
    return h("li", swatch, name(series.name, 60), h("span", plain(series.y[-1]), class_="muted"))


def describe(block: Lines) -> str:
    """Describe the chart in words, for screen readers."""
    sentences = []
    for s in block.series:
        if not s.x:
            continue
        if len(s.x) == 1:
            sentences.append(f"{s.name}: {plain(s.y[0])}.")
            continue
        top = max(range(len(s.y)), key=s.y.__getitem__)
        sentences.append(
            f"{s.name}: from {plain(s.y[0])} at {plain(s.x[0])} to {plain(s.y[-1])} at {plain(s.x[-1])}; "
            f"highest {plain(s.y[top])} at {plain(s.x[top])}."
        )
    return f"{block.y_label} against {block.x_label}. " + " ".join(sentences)


def _line_table(block: Lines) -> Html:
    curves = [s for s in block.series if not (s.dashed and len(s.x) == 1)] or block.series  # levels are in the legend
    places = sorted({x for s in curves for x in s.x})
    shown = [places[i] for i in thin(len(places), TABLE_ROWS)]
    index = [{x: i for i, x in enumerate(s.x)} for s in curves]
    digits = digits_for(places)
    rows = []
    for x in shown:
        cells = []
        for series, where in zip(curves, index, strict=True):
            cells.append(h("td", _point_text(series, where[x]) if x in where else DASH, class_="num"))
        rows.append(h("tr", h("th", number(x, digits), scope="row", class_="num"), *cells))
    head = [h("th", block.x_label, scope="col", class_="num")]
    head += [h("th", name(s.name, 60), scope="col", class_="num") for s in curves]
    table = h("table", h("thead", h("tr", *head)), h("tbody", *rows))
    more = f" ({len(shown)} of {len(places):,} steps)" if len(shown) < len(places) else ""
    return folded(f"Numbers{more}", scrolling(f"Numbers of {_title(block)}", table))


def _point_text(series: Series, i: int) -> Html:
    if series.low is None or series.high is None:
        return esc(plain(series.y[i]))
    value = Value(value=series.y[i], low=series.low[i], high=series.high[i])
    return join([value.number(), " ", h("span", span(value), class_="span")])


def reliability(block: Reliability, context: RenderContext) -> Html:
    """Render a reliability diagram: predicted probability across, observed fraction up."""
    scale = Scale(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0), 0)
    bins = [b for b in block.bins if b.count]
    most = max((b.count for b in bins), default=1)
    key = context.key("chart")
    parts = [_axes(scale, scale), h("line", x1="0", y1="100%", x2="100%", y2="0", class_="curve g0")]
    for b in bins:
        x, y, low, high = pct(100 * b.p), *(pct(100 - 100 * v) for v in (b.observed, b.low, b.high))
        text = f"predicted {100 * b.p:.0f} %, observed {100 * b.observed:.0f} % of {b.count:,}"
        radius = round(3 + 5 * (b.count / most) ** 0.5, 1)
        dot = h("circle", h("title", text), cx=x, cy=y, r=radius, class_="dot s0")
        parts += [h("line", x1=x, x2=x, y1=low, y2=high, class_="whisker"), dot]
    ece = block.ece if isinstance(block.ece, Value) else Value(value=block.ece)
    text = f"Expected calibration error {ece}, over {sum(b.count for b in bins):,} pairs in {len(bins)} groups."
    title = block.title or "Reliability of the percentages"
    drawing = h("svg", *chart_label(key, title, text), *parts, class_="plot", **svg_label(key))
    rows = []
    for b in block.bins:
        p, observed, low, high = (f"{100 * v:.0f}" for v in (b.p, b.observed, b.low, b.high))
        cells = (f"{p} %", f"{observed} %", f"{low}{DASH}{high} %", f"{b.count:,}")
        rows.append(h("tr", *(h("td", text, class_="num") for text in cells)))
    columns = ("predicted", "observed", "95 % interval", "pairs")
    head = h("tr", *(h("th", title, scope="col", class_="num") for title in columns))
    table = h("table", h("thead", head), h("tbody", *rows))
    axes = (h("p", "observed, %", class_="axis-name"), h("p", "predicted, %", class_="axis-name x"))
    box = h("div", axes[0], drawing, axes[1], class_="plot-box square")
    interval = h("span", f"95 % interval {span(ece)}", class_="label") if span(ece) else None
    label, big = h("span", "Expected calibration error", class_="label"), h("span", ece.number(), class_="big")
    error = h("div", h("p", label, big, interval), class_="figure")
    aside = h("div", error, h("p", READING, class_="muted"), class_="aside")
    return join([h("div", box, aside, class_="beside"), folded("Numbers", scrolling(f"Numbers of {title}", table))])
