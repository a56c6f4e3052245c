"""Render the blocks of a report: one function a kind of block, which takes the block and returns its markup."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lookalike.core.report_blocks import Code, Facts, Grid, Hit, HitRow, Hits, Image, Text, Value, Verdict, number
from lookalike.evaluation.verdicts import percent_text
from lookalike.reporting.charts import (
    Scale,
    arrows,
    axis,
    bars,
    lines,
    reliability,
    whisker_marks,
    whiskers,
)
from lookalike.reporting.maps import heat, scatter
from lookalike.reporting.markup import (
    Html,
    cell,
    cell_text,
    clean,
    column,
    h,
    is_number,
    join,
    name,
    scrolling,
    span,
    table,
)
from lookalike.reporting.thumbnails import RenderContext

GRID_ROWS = 500


def verdict(block: Verdict, context: RenderContext) -> Html:
    """Render a verdict further down the page; the first one is the headline of the page."""
    line = h("p", block.line, class_="line") if block.line else None
    return join([h("p", block.message, class_="message"), figures(block), line])


def figures(verdict: Verdict) -> Html | None:
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


def text(block: Text, context: RenderContext) -> Html:
    """Render paragraphs."""
    paragraphs = [p.strip() for p in clean(block.text).split("\n\n") if p.strip()]
    return join(h("p", p) for p in paragraphs)


def code(block: Code, context: RenderContext) -> Html:
    """Render a command or a file."""
    return h("pre", h("code", block.text), tabindex="0", role="region", aria_label=block.title or "Command")


def facts(block: Facts, context: RenderContext) -> Html:
    """Render names and values."""
    rows = (h("div", h("dt", name(title)), h("dd", cell(value, title))) for title, value in block.rows)
    return h("dl", *rows, class_="pairs")


def grid(block: Grid, context: RenderContext) -> Html:
    """Render a table, one of its columns also drawn as dots with whiskers."""
    shown = block.rows[:GRID_ROWS]
    columns = range(len(block.columns))
    numeric = [i > 0 and all(is_number(row[i]) or row[i] is None for row in shown) for i in columns]
    drawn = block.columns.index(block.whisker) if block.whisker else None
    values = [v for row in shown if isinstance(v := row[drawn], Value)] if drawn is not None else []
    ends = [v for x in values for v in (x.value, x.low, x.high) if v is not None]
    ends += [0.0] * any(x.signed for x in values)
    scale = Scale.cover(ends, ticks=3) if values else None
    reference = 0.0 if scale is not None and scale.low <= 0 <= scale.high else None

    # On a phone a row of many numbers becomes a card; a long or narrow table stays a table.
    cards = 3 < len(block.columns) <= 10 and len(shown) <= 40

    def heads() -> Html:
        out = []
        for i, title in enumerate(block.columns):
            out.append(column(title, class_="num" if numeric[i] else None))
            if scale is not None and i == drawn:
                text = "; ".join(f"{cell_text(row[0])}: {cell_text(row[i])}" for row in shown[:12])
                strip = axis(scale, context.key("chart"), title, text)
                out.append(h("th", strip, scope="col", class_="drawing"))
        return h("tr", *out)

    def cells(row: list[Any]) -> Html:
        out = []
        for i, value in enumerate(row):
            attributes = {"scope": "row"} if i == 0 else {"data_label": clean(block.columns[i])[:60]}
            tag, style = "th" if i == 0 else "td", "num" if numeric[i] else None
            out.append(h(tag, cell(value, block.columns[i]), class_=style, **attributes))
            if scale is not None and i == drawn:
                marks = None
                if isinstance(value, Value):
                    marks = whisker_marks(scale, value.value, value.low, value.high, reference)
                out.append(h("td", marks, class_="drawing"))
        return h("tr", *out)

    drawing = table(heads(), map(cells, shown), class_=f"grid{' cards' if cards else ''}")
    cut = f"The first {GRID_ROWS:,} of {len(block.rows):,} rows; all are in the run's folder."
    rest = h("p", cut, class_="muted") if len(shown) < len(block.rows) else None
    return join([scrolling(block.title or "Table", drawing), rest])


TICK = h("svg", h("circle", cx=9, cy=9, r=9), h("path", d="M5 9.4 L8 12.2 L13.2 6.4"), class_="badge ok",
         viewBox="0 0 18 18", aria_hidden="true")  # fmt: skip
CROSS = h("svg", h("rect", width=18, height=18, rx=3), h("path", d="M5.4 5.4 L12.6 12.6 M12.6 5.4 L5.4 12.6"),
          class_="badge no", viewBox="0 0 18 18", aria_hidden="true")  # fmt: skip


def hits(block: Hits, context: RenderContext) -> Html:
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


def _hit_row(row: HitRow, context: RenderContext, labeled: bool) -> Html:
    caption = h("p", name(row.query.label or row.query.alt, 80), class_="caption")
    note = h("p", row.note, class_="caption muted") if row.note else None
    query = h("div", _cell(context, row.query, f"Query: {row.query.alt}"), caption, note, class_="query")
    lists = []
    for hit_list in row.lists:
        label = h("p", name(hit_list.name, 40), class_="label") if hit_list.name and labeled else None
        lists.append(h("div", label, h("ol", *(_hit(hit, context) for hit in hit_list.hits)), class_="found"))
    return h("li", query, h("div", *lists, class_="lists"))


def _cell(context: RenderContext, image: Image, alt: str, badge: Html | None = None) -> Html | None:
    return h("div", context.image(image, alt), badge, class_="cell") if context.images.shown else None


def _hit(hit: Hit, context: RenderContext) -> Html:
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


_KINDS = (verdict, text, code, facts, grid, whiskers, lines, hits, arrows, reliability, scatter, heat, bars)
RENDERERS: dict[str, Callable[[Any, RenderContext], Html]] = {kind.__name__: kind for kind in _KINDS}


def render_block(block: Any, context: RenderContext) -> Html:
    """Render a block of any kind with its title and note."""
    tag, title = "div", h("h3", block.title) if block.title else None
    if block.folded:
        tag, title = "details", h("summary", block.title or "More")
    note = h("p", block.note, class_="note") if block.note else None
    return h(tag, title, RENDERERS[block.kind](block, context), note, class_=f"block b-{block.kind}")
