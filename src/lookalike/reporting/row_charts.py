"""Charts made of table rows: a name, a drawing, and the number beside it."""

from __future__ import annotations

from collections.abc import Sequence

from lookalike.core.report_blocks import Arrow, Arrows, Bars, Value, Whiskers, number
from lookalike.reporting.charts import Scale, pct
from lookalike.reporting.markup import (
    Html,
    chart_label,
    column,
    digits_for,
    digits_shown,
    esc,
    folded,
    h,
    join,
    name,
    plain,
    span,
    svg_label,
)
from lookalike.reporting.thumbnails import RenderContext

ENDS = 30  # arrows drawn at either end; the rest is folded
FOLDED = 400  # folded rows


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
    parts = [*chart_label(key, title, description)]
    for tick in ticks:
        at = scale.at(tick)
        anchor = "start" if at < 4 else "end" if at > 96 else "middle"
        parts.append(h("text", scale.label(tick), x=pct(at), y=14, text_anchor=anchor))
        parts.append(h("line", x1=pct(at), x2=pct(at), y1=20, y2=24, class_="tick"))
    return h("svg", *parts, class_="strip axis", **svg_label(key))


def _table(columns: Sequence[object], drawing: Html, rows: Sequence[Html]) -> Html:
    first, last = columns
    head = h("tr", column(first), column(drawing, class_="drawing"), column(last, class_="num"))
    return h("table", h("thead", head), h("tbody", *rows), class_="rows")


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
    digits = digits_shown(widths) if widths else digits_for(ends)
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
    digits = digits_for([r.value for r in block.rows])
    for r in block.rows[:FOLDED]:
        start, end = sorted((scale.at(0.0), scale.at(r.value)))
        marks = h("rect", x=pct(start), width=pct(end - start), y="22%", height="56%", rx=2, class_="bar")
        strip = h("svg", marks, class_="strip", aria_hidden="true")
        rows.append(_row(_named(r.name, r.note), strip, esc(number(r.value, digits))))
    title = block.title or block.label or "Values"
    return _table(["", block.label], axis(scale, context.key("chart"), title, text), rows)


def arrows(block: Arrows, context: RenderContext) -> Html:
    """Render changes as arrows: the lowest and the highest by their end; everything between is folded."""
    if not block.rows:
        return h("p", "Nothing was measured.", class_="muted")
    rows = sorted(block.rows, key=lambda r: (r.after, r.before, r.name))
    ends = [v for r in rows for v in (r.before, r.after)]
    unit = min(ends) >= 0 and max(ends) <= 1
    scale = Scale(0.0, 1.0, (0.0, 0.5, 1.0), 1) if unit else Scale.cover(ends)
    up = sum(r.after > r.before for r in rows)
    down = sum(r.after < r.before for r in rows)
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
        folded(more, part("between, lowest first", cut)),
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
    text = join(
        [f"{number(r.before, 2)} → {after.number()}", h("span", span(after), class_="span") if span(after) else None]
    )
    return _row(_named(r.name, f"{r.count:,}" if r.count else ""), strip, text)
