"""Numbers as people read them: thousands parted, a real minus, an interval wherever one is known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from lookalike.core.report_blocks import Cell, Value, number
from lookalike.reporting.markup import Html, esc, h, name

DASH = "–"


def plain(value: float) -> str:
    """A number that came without a wish for its digits."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return number(value, 0)
    size = abs(value)
    if size and size < 0.001:
        mantissa, power = f"{value:.1e}".split("e")
        digits = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa.replace('-', '−')} × 10{digits}"
    return number(value, 1 if size >= 100 else 2 if size >= 10 else 3)


def digits_for(values: Sequence[float]) -> int:
    """Digits that a column of numbers shares: none for counts, fewer for large ones."""
    if all(float(v).is_integer() for v in values):
        return 0
    size = max(abs(v) for v in values)
    return 1 if size >= 100 else 2 if size >= 10 else 3


def digits_shown(widths: Sequence[float]) -> int:
    """Digits for values with intervals: two that mean something in the narrowest of them."""
    narrowest = min((w for w in widths if w > 0), default=0.0)
    return min(5, max(0, math.ceil(-math.log10(narrowest)) + 1)) if narrowest else 3


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else number(p, 3)


def per_cent(p: float) -> str:
    """`94 %`, but never a certainty."""
    if p > 0.99:
        return "over 99 %"
    return "under 1 %" if p < 0.01 else f"{100 * p:.0f} %"


def span(value: Value) -> str:
    """The interval alone: `0.598–0.626`, or with words where a minus sign would run into the dash."""
    if value.low is None or value.high is None:
        return ""
    low, high = number(value.low, value.digits), number(value.high, value.digits)
    return f"{low} to {high}" if value.low < 0 or value.signed else f"{low}{DASH}{high}"


def cell(value: Cell, column: str = "") -> Html:
    """One cell of a table."""
    if value is None:
        return h("span", DASH, class_="muted")
    if isinstance(value, bool):
        return esc("yes" if value else "no")
    if isinstance(value, Value):
        shown = h("span", f"{value.number()} {value.unit}".rstrip(), class_="nowrap")
        interval = span(value)
        return esc([shown, " ", h("span", interval, class_="span")]) if interval else shown
    if isinstance(value, (int, float)):
        return esc(p_value(value) if column.strip().lower() == "p" else plain(value))
    return h("span", value, class_="nowrap") if 0 < len(value) <= 12 else name(value, 400)


_NUMBER = re.compile(r"[<>≈+−-]? ?[\d.,]+( ?(%|s|ms|MB|points))?|–")


def is_number(value: Cell) -> bool:
    """What is set flush right: numbers, and text that is one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float, Value)) and not isinstance(value, bool)


def cell_text(value: Cell) -> str:
    """A cell where there is no markup: titles and descriptions."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return plain(value)
    return DASH if value is None else str(value)
