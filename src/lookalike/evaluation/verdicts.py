"""The words for a probability, the same on the page, in the terminal and in the report."""

from __future__ import annotations

LIKELY, POSSIBLE = 0.8, 0.5
HIT_WORDS = ("Very likely the same", "Possibly", "Similar look only")
QUERY_WORDS = ("Very likely found", "Possibly found", "No good match")


def hit_word(p: float) -> str:
    return HIT_WORDS[0] if p >= LIKELY else HIT_WORDS[1] if p >= POSSIBLE else HIT_WORDS[2]


def found_word(p: float, low: float) -> str:
    """The verdict on a query from its best hit; "very likely" needs the lower bound to agree."""
    return QUERY_WORDS[0] if low >= LIKELY else QUERY_WORDS[1] if p >= POSSIBLE else QUERY_WORDS[2]


def per_cent(p: float, low: float, high: float) -> str:
    """`94 %`; `about 85 %` where the interval is wider than ±3; never 0 or 100."""
    if p > 0.99:
        return "over 99 %"
    if p < 0.01:
        return "under 1 %"
    if max(p - low, high - p) <= 0.03:
        return f"{round(100 * p)} %"
    return f"about {min(95, max(5, 5 * round(20 * p)))} %"
