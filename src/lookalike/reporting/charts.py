"""Charts as fluid SVG, positions in percent and text in pixels: curves, reliability, and rows with a drawing each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lookalike.core.report_blocks import Arrow, Arrows, Bars, Lines, Reliability, Series, Value, Whiskers, number
from lookalike.reporting import markup
from lookalike.reporting.markup import Html, RenderContext, esc, h, join, name, plain, span

POINTS = 400  # drawn of a curve
ENDS = 30  # arrows drawn at either end; the rest is markup.folded
FOLDED = 400  # markup.folded rows
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
    """Render a line chart with legend and markup.table."""
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
    parts: list[Html] = [*markup.chart_label(key, _title(block), describe(block)), _axes(across, up)]
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
    drawing = h("svg", *parts, class_="plot", **markup.svg_label(key), **frame)
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
    dashed, drawn = ([one.name for one in series if one.dashed is kind] for kind in (True, False))
    return {x: f"g{i % 3}" for i, x in enumerate(dashed)} | {x: f"s{i % 8}" for i, x in enumerate(drawn)}


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
    line = h("line", x1=0, x2=20, y1=6, y2=6, class_=f"curve {style}")
    swatch = h("svg", line, width=20, height=12, aria_hidden="true")
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
    digits = markup.digits_for(places)
    rows = []
    for x in shown:
        texts = (
            _point_text(s, where[x]) if x in where else markup.DASH for s, where in zip(curves, index, strict=True)
        )
        cells = (h("td", text, class_="num") for text in texts)
        rows.append(h("tr", h("th", number(x, digits), scope="row", class_="num"), *cells))
    titles = [block.x_label, *(name(s.name, 60) for s in curves)]
    head = h("tr", *(h("th", title, scope="col", class_="num") for title in titles))
    more = f" ({len(shown)} of {len(places):,} steps)" if len(shown) < len(places) else ""
    return markup.folded(f"Numbers{more}", markup.scrolling(f"Numbers of {_title(block)}", markup.table(head, rows)))


def _point_text(series: Series, i: int) -> Html:
    if series.low is None or series.high is None:
        return esc(plain(series.y[i]))
    return _with_span(Value(value=series.y[i], low=series.low[i], high=series.high[i]))


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
    drawing = h("svg", *markup.chart_label(key, title, text), *parts, class_="plot", **markup.svg_label(key))
    rows = []
    for b in block.bins:
        p, observed, low, high = (f"{100 * v:.0f}" for v in (b.p, b.observed, b.low, b.high))
        cells = (f"{p} %", f"{observed} %", f"{low}{markup.DASH}{high} %", f"{b.count:,}")
        rows.append(h("tr", *(h("td", text, class_="num") for text in cells)))
    columns = ("predicted", "observed", "95 % interval", "pairs")
    head = h("tr", *(h("th", title, scope="col", class_="num") for title in columns))
    axes = (h("p", "observed, %", class_="axis-name"), h("p", "predicted, %", class_="axis-name x"))
    box = h("div", axes[0], drawing, axes[1], class_="plot-box square")
    interval = h("span", f"95 % interval {span(ece)}", class_="label") if span(ece) else None
    label, big = h("span", "Expected calibration error", class_="label"), h("span", ece.number(), class_="big")
    error = h("div", h("p", label, big, interval), class_="figure")
    aside = h("div", error, h("p", READING, class_="muted"), class_="aside")
    return join(
        [
            h("div", box, aside, class_="beside"),
            markup.folded("Numbers", markup.scrolling(f"Numbers of {title}", markup.table(head, rows))),
        ]
    )


def whisker_marks(scale: Scale, value: float, low: float | None, high: float | None, reference: float | None) -> Html:
    """Draw a dot with whiskers in a strip, for the chart and for tables."""
    parts = [_rule(scale, reference)] if reference is not None else []
    if low is not None and high is not None:
        parts.append(h("line", x1=pct(scale.at(low)), x2=pct(scale.at(high)), y1="50%", y2="50%", class_="whisker"))
    parts.append(h("circle", cx=pct(scale.at(value)), cy="50%", r=5, class_="dot s0"))
    return h("svg", *parts, class_="strip", aria_hidden="true")


def _rule(scale: Scale, value: float) -> Html:
    x = pct(scale.at(value))
    return h("line", x1=x, x2=x, y1="0", y2="100%", class_="rule")


def axis(scale: Scale, key: str, title: str, description: str) -> Html:
    """Draw the strip with the ticks, which carries the title and description of the chart."""
    ticks = scale.ticks if len(scale.ticks) <= 6 else scale.ticks[:: (len(scale.ticks) + 4) // 5]
    parts = [*markup.chart_label(key, title, description)]
    for tick in ticks:
        at = scale.at(tick)
        anchor = "start" if at < 4 else "end" if at > 96 else "middle"
        parts.append(h("text", scale.label(tick), x=pct(at), y=14, text_anchor=anchor))
        parts.append(h("line", x1=pct(at), x2=pct(at), y1=20, y2=24, class_="tick"))
    return h("svg", *parts, class_="strip axis", **markup.svg_label(key))


def _table(columns: Sequence[object], drawing: Html, rows: Sequence[Html]) -> Html:
    first, last = columns
    head = h("tr", markup.column(first), markup.column(drawing, class_="drawing"), markup.column(last, class_="num"))
    return markup.table(head, rows, class_="rows")


def _row(title: Html, drawing: Html, text: Html) -> Html:
    return h("tr", h("th", title, scope="row"), h("td", drawing, class_="drawing"), h("td", text, class_="num"))


def whiskers(block: Whiskers, context: RenderContext) -> Html:
    """Render values with their intervals, one a row."""
    if not block.rows:
        return h("p", "Nothing was measured.", class_="muted")
    ends = [v for r in block.rows for v in (r.value, r.low, r.high, block.reference) if v is not None]
    scale = Scale.cover(ends)
    text = "; ".join(f"{r.name} {plain(r.value)}" for r in block.rows[:12])
    widths = [r.high - r.low for r in block.rows if r.low is not None and r.high is not None]
    digits = markup.digits_shown(widths) if widths else markup.digits_for(ends)
    rows = []
    for r in block.rows:
        value = Value(value=r.value, low=r.low, high=r.high, signed=block.reference == 0, digits=digits)
        marks = whisker_marks(scale, r.value, r.low, r.high, block.reference)
        rows.append(_row(_named(r.name, r.note), marks, _with_span(value)))
    title = block.title or block.label or "Values with their intervals"
    return _table(["", block.label], axis(scale, context.key("chart"), title, text), rows)


def _named(title: str, note: str = "") -> Html:
    return join([name(title, 60), h("span", note, class_="span") if note else None])


def _with_span(value: Value) -> Html:
    interval = span(value)
    return join([value.number(), " ", h("span", interval, class_="span") if interval else None])


def bars(block: Bars, context: RenderContext) -> Html:
    """Render a bar chart, one bar a row."""
    if not block.rows:
        return h("p", "Nothing was measured.", class_="muted")
    scale = Scale.cover([0.0, *(r.value for r in block.rows)], tight=True)
    text = "; ".join(f"{r.name} {plain(r.value)}" for r in block.rows[:12])
    rows = []
    digits = markup.digits_for([r.value for r in block.rows])
    for r in block.rows[:FOLDED]:
        start, end = sorted((scale.at(0.0), scale.at(r.value)))
        marks = h("rect", x=pct(start), width=pct(end - start), y="22%", height="56%", rx=2, class_="bar")
        strip = h("svg", marks, class_="strip", aria_hidden="true")
        rows.append(_row(_named(r.name, r.note), strip, esc(number(r.value, digits))))
    title = block.title or block.label or "Values"
    return _table(["", block.label], axis(scale, context.key("chart"), title, text), rows)


def arrows(block: Arrows, context: RenderContext) -> Html:
    """Render changes as arrows: the lowest and the highest by their end; everything between is markup.folded."""
    if not block.rows:
        return h("p", "Nothing was measured.", class_="muted")
    rows = sorted(block.rows, key=lambda r: (r.after, r.before, r.name))
    ends = [v for r in rows for v in (r.before, r.after)]
    unit = min(ends) >= 0 and max(ends) <= 1
    scale = Scale(0.0, 1.0, (0.0, 0.5, 1.0), 1) if unit else Scale.cover(ends)
    up, down = sum(r.after > r.before for r in rows), sum(r.after < r.before for r in rows)
    same = len(rows) - up - down
    text = f"{up:,} of {len(rows):,} rose, {down:,} fell" + (f", {same:,} did not change." if same else ".")

    def part(title: str, some: Sequence[Arrow]) -> Html:
        head = axis(scale, context.key("chart"), f"{block.title or block.label or 'Change'}: {title}", text)
        counted = f"{title} (with their images)" if any(r.count for r in some) else title
        return _table([counted, f"{block.before} → {block.after}"], head, [_arrow_row(r, scale) for r in some])

    intro = h("p", text, class_="muted")
    if len(rows) <= 2 * ENDS:
        return join([intro, part("all, lowest first", rows)])
    middle = rows[ENDS:-ENDS]
    cut = middle[:FOLDED]
    more = f"The other {len(middle):,}" + (f" (the first {FOLDED:,} of them)" if len(cut) < len(middle) else "")
    return join([
        intro,
        part(f"{ENDS} lowest", rows[:ENDS]),
        part(f"{ENDS} highest", list(reversed(rows[-ENDS:]))),
        markup.folded(more, part("between, lowest first", cut)),
    ])  # fmt: skip


def _arrow_row(r: Arrow, scale: Scale) -> Html:
    start, end = scale.at(r.before), scale.at(r.after)
    style = "level" if abs(end - start) < 0.5 else "up" if end > start else "down"
    parts = [h("line", x1="0", x2="100%", y1="50%", y2="50%", class_="track")]
    if r.low is not None and r.high is not None:
        parts.append(h("line", x1=pct(scale.at(r.low)), x2=pct(scale.at(r.high)), y1="50%", y2="50%", class_="reach"))
    parts += [h("line", x1=pct(start), x2=pct(end), y1="50%", y2="50%", class_=f"shaft {style}"),
              h("circle", cx=pct(start), cy="50%", r=3, class_="dot from")]  # fmt: skip
    if style == "level":
        parts.append(h("circle", cx=pct(end), cy="50%", r=4, class_="dot level"))
    else:
        tip = "M-7 -4.5 L2 0 L-7 4.5Z" if style == "up" else "M7 -4.5 L-2 0 L7 4.5Z"
        parts.append(h("svg", h("path", d=tip, class_=f"tip {style}"), x=pct(end), y="50%", overflow="visible"))
    strip = h("svg", *parts, class_="strip", aria_hidden="true")
    after = Value(value=r.after, low=r.low, high=r.high, digits=2)
    interval = h("span", span(after), class_="span") if span(after) else None
    text = join([f"{number(r.before, 2)} → {after.number()}", interval])
    return _row(_named(r.name, f"{r.count:,}" if r.count else ""), strip, text)
