"""HTML elements with escaping, and numbers as text.

Whatever is not `Html` already is escaped on its way in: labels and file names are hostile input, and no part of the
report joins strings by hand.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lookalike.core.report_blocks import Cell, Value, number
from lookalike.evaluation.verdicts import p_text

VOID = frozenset({"img", "meta", "wbr"})
SVG_VOID = frozenset({"path", "line", "circle", "rect", "use", "image"})
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")

_JOINT = re.compile(r"(?<=\w[_/.\\-])(?=\w)")


class Html(str):
    """Text that is safe markup already."""

    __slots__ = ()


def clean(text: object) -> str:
    """Replace what an HTML file may not hold: control characters, and surrogates of file names that are not UTF-8."""
    return _CONTROL.sub("\ufffd", str(text).encode("utf-8", "replace").decode())


def esc(child: object) -> Html:
    """Escape anything that is not markup; None and False give nothing."""
    if isinstance(child, Html):
        return child
    if child is None or child is False:
        return Html("")
    if isinstance(child, (list, tuple)):
        return join(child)
    return Html(html.escape(clean(child), quote=False))


def join(children: Iterable[object], between: str = "") -> Html:
    """Escape and concatenate."""
    return Html(between.join(esc(child) for child in children))


def h(tag: str, /, *children: object, **attributes: Any) -> Html:
    """Make an element.

    Args:
        tag: Name of the element.
        *children: Text, markup, or lists of both.
        **attributes: Attributes; a trailing underscore (`class_`) is dropped, others become hyphens.
    """
    parts = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if name == "style" or name.startswith("on"):
            raise ValueError(f"The attribute `{name}` would be blocked by the content security policy of the report.")
        if value is None or value is False:
            continue
        parts.append(name if value is True else f'{name}="{html.escape(clean(value))}"')
    opening = " ".join(parts)
    if tag in VOID:
        return Html(f"<{opening}>")
    if tag in SVG_VOID and not children:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(children)}</{tag}>")


def name(text: object, limit: int = 160) -> Html:
    """Show a name or path of the user: isolated text direction, long ones shortened.

    Args:
        text: The name.
        limit: Number of characters that are shown.
    """
    whole = clean(text)
    if not whole.strip():
        return h("span", "(no name)", class_="muted")
    short = whole if len(whole) <= limit else whole[: limit - 1] + "…"
    # A long name may be broken at its separators: 104.American_Pipit, sea/IMG_1.jpg.
    parts = _JOINT.split(short) if len(short) > 12 else [short]
    return h("bdi", join(parts, "<wbr>"), title=whole[:1000] if short != whole else None)


def column(text: object, **attributes: Any) -> Html:
    """Make the header cell of a column; an empty one is no header."""
    if not str(text).strip():
        return h("td", **attributes)
    return h("th", text if isinstance(text, Html) else name(text, 60), scope="col", **attributes)


def data_block(key: str, document: Any) -> Html:
    """Embed JSON for a script to read; `<` is escaped so that no text in it can end the element."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{html.escape(key)}">{text}</script>')


def chart_label(key: str, title: str, description: str) -> tuple[Html, Html]:
    """Make `<title>` and `<desc>` of a chart, which refers to them by :func:`svg_label`."""
    return h("title", title, id=f"{key}-t"), h("desc", description, id=f"{key}-d")


def svg_label(key: str) -> dict[str, str]:
    """Attributes by which a chart refers to its title and description."""
    return {"role": "img", "aria_labelledby": f"{key}-t", "aria_describedby": f"{key}-d"}


def folded(summary: str, *body: object, class_: str = "numbers") -> Html:
    """Make a part that opens by a click on its summary."""
    return h("details", h("summary", summary), *body, class_=class_)


def scrolling(label: str, table: Html) -> Html:
    """Make a table scroll in its own box if it is wider than the screen; reachable by keyboard."""
    return h("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def table(head: Html, rows: Iterable[Html], **attributes: Any) -> Html:
    """Make a table of a header row and further rows."""
    return h("table", h("thead", head), h("tbody", *rows), **attributes)


DASH = "–"


def plain(value: float) -> str:
    """Write a number whose digits are not given."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return number(value, 0)
    size = abs(value)
    if size and size < 0.001:
        mantissa, power = f"{value:.1e}".split("e")
        digits = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa.replace('-', '−')} × 10{digits}"
    return number(value, 1 if size >= 100 else 2 if size >= 10 else 3)


def digits_for(values: Sequence[float]) -> int:
    """Choose the digits of a column of numbers: none for counts, fewer for large ones."""
    if all(float(v).is_integer() for v in values):
        return 0
    size = max(abs(v) for v in values)
    return 1 if size >= 100 else 2 if size >= 10 else 3


def digits_shown(widths: Sequence[float]) -> int:
    """Choose the digits of values with intervals: two significant ones of the narrowest interval."""
    narrowest = min((w for w in widths if w > 0), default=0.0)
    return min(5, max(0, math.ceil(-math.log10(narrowest)) + 1)) if narrowest else 3


def span(value: Value) -> str:
    """Write an interval: `0.598–0.626`, or with "to" where a minus sign would meet the dash."""
    if value.low is None or value.high is None:
        return ""
    low, high = number(value.low, value.digits), number(value.high, value.digits)
    return f"{low} to {high}" if value.low < 0 or value.signed else f"{low}{DASH}{high}"


def cell(value: Cell, column: str = "") -> Html:
    """Render one cell of a table; in a column `p` numbers are p-values."""
    if value is None:
        return h("span", DASH, class_="muted")
    if isinstance(value, bool):
        return esc(cell_text(value))
    if isinstance(value, Value):
        shown = h("span", f"{value.number()} {value.unit}".rstrip(), class_="nowrap")
        interval = span(value)
        return esc([shown, " ", h("span", interval, class_="span")]) if interval else shown
    if isinstance(value, (int, float)):
        return esc(p_text(value).lstrip("p= ") if column.strip().lower() == "p" else plain(value))
    return h("span", value, class_="nowrap") if 0 < len(value) <= 12 else name(value, 400)


_NUMBER = re.compile(r"[<>≈+−-]? ?[\d.,]+( ?(%|s|ms|MB|points))?|–")


def is_number(value: Cell) -> bool:
    """Whether a cell is aligned right: numbers, and text that is one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float, Value)) and not isinstance(value, bool)


def cell_text(value: Cell) -> str:
    """Write a cell where there is no markup: titles and descriptions."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return plain(value)
    return DASH if value is None else str(value)
