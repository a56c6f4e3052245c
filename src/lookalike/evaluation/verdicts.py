"""The words for a probability, the same on the page, in the terminal and in the report."""

from __future__ import annotations

from typing import Literal

from lookalike.core import report_blocks as s

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


def training_verdict(
    *,
    metric: str,
    before: s.Value,
    after: s.Value,
    difference: s.Value,
    images: int,
    kept: bool,
    p: float | None = None,
    line: str = "",
) -> s.Verdict:
    """The verdict of a run. `difference` is a paired one on the metric's own scale; `kept`: the trained model is."""
    gain = s.Value(
        value=100 * difference.value,
        low=None if difference.low is None else 100 * difference.low,
        high=None if difference.high is None else 100 * difference.high,
        digits=1,
        signed=True,
        unit="points",
    )
    change = f"{gain.number()} points"
    if gain.low is not None and gain.high is not None:
        change += f", 95 % interval {s.number(gain.low, 1)} to {s.number(gain.high, 1)}"
    ends = f"from {before.number()} to {after.number()} ({change})"
    where = f"on {images:,} unseen images"
    sure = gain.low is None or gain.low > 0
    tone: Literal["better", "same", "worse", "plain"] = "better"
    if not kept:
        sentence, tone = "Training did not help; the starting model is kept.", "same"
    elif sure and gain.value > 0:
        sentence = f"Training raised {metric} {ends} {where}."
    else:
        sentence, tone = f"Training moved {metric} {ends} {where}, which may be chance.", "same"
    note = "" if p is None else f"p {'< 0.001' if p < 0.001 else '= ' + s.number(p)}"
    figures = [
        s.Figure(label=f"{metric}, starting model", value=before),
        s.Figure(label=f"{metric}, trained", value=after),
        s.Figure(label="difference", value=gain, note=note),
    ]
    return s.Verdict(sentence=sentence, figures=figures, line=line, tone=tone)


def evaluation_verdict(*, metric: str, value: s.Value, images: int, line: str = "") -> s.Verdict:
    """The verdict where only one model was measured."""
    interval = ""
    if value.low is not None and value.high is not None:
        interval = f" (95 % interval {value.number(value.low)} to {value.number(value.high)})"
    sentence = f"{metric[:1].upper()}{metric[1:]} is {value.number()}{interval} on {images:,} images."
    return s.Verdict(sentence=sentence, figures=[s.Figure(label=metric, value=value)], line=line)
