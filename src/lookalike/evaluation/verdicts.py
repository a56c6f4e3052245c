"""The wording of results: one place for what reports, terminal and web page say about figures and hits."""

from __future__ import annotations

from collections.abc import Mapping

from lookalike.core.report_blocks import Figure, Value, Verdict, number
from lookalike.evaluation.bootstrap import Interval, PairedDifference

LIKELY, POSSIBLE = 0.8, 0.5  # probabilities
HIT_VERDICTS = ("Very likely the same", "Possibly", "Similar look only")
QUERY_VERDICTS = ("Very likely found", "Possibly found", "No good match")


def hit_verdict(p: float) -> str:
    """Describe a hit by its probability of showing the same thing as the query."""
    return HIT_VERDICTS[0] if p >= LIKELY else HIT_VERDICTS[1] if p >= POSSIBLE else HIT_VERDICTS[2]


def query_verdict(p: float, low: float) -> str:
    """Describe a query by the probability of its best hit; "very likely" needs the lower bound to agree."""
    return QUERY_VERDICTS[0] if low >= LIKELY else QUERY_VERDICTS[1] if p >= POSSIBLE else QUERY_VERDICTS[2]


def percent_text(p: float, low: float, high: float) -> str:
    """Write a probability as `94 %`, or `about 85 %` if its interval is wider than ±3; never as 0 or 100."""
    if p > 0.99:
        return "over 99 %"
    if p < 0.01:
        return "under 1 %"
    if max(p - low, high - p) <= 0.03:
        return f"{round(100 * p)} %"
    return f"about {min(95, max(5, 5 * round(20 * p)))} %"


def p_text(p: float) -> str:
    """Write a p-value as `p = 0.012` or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {number(p)}"


def metric_name(key: str) -> str:
    """Write the key of a metric as people do: `map@r` as `MAP@R`, `map@1000` as `mAP@1000`."""
    if key.endswith("_authors"):
        return f"{metric_name(key.removesuffix('_authors'))} (ooDML)"
    names = {"map@r": "MAP@R", "r_precision": "R-precision"}
    name = names.get(key) or key.replace("map@", "mAP@").replace("_", " ")
    return name[:1].upper() + name[1:] if not name.startswith("mAP") else name


def interval_text(interval: Interval) -> str:
    """Write a value with its confidence interval: `0.612 (0.598–0.626)`."""
    return f"{number(interval.value)} ({number(interval.low)}–{number(interval.high)})"


def points_text(change: PairedDifference) -> str:
    """Write a difference in percentage points with its interval: `+4.1 points, 95 % interval 2.9 to 5.2`."""
    points = f"{number(100 * change.difference, 1, signed=True)} points"
    return f"{points}, 95 % interval {number(100 * change.low, 1)} to {number(100 * change.high, 1)}"


def evaluation_verdict(value: Interval, count: int, line: str = "") -> Verdict:
    """Write the verdict on one model by its recall@1 on ``count`` queries."""
    shown = Value.of(value)
    interval = f"95 % interval {shown.number(value.low)} to {shown.number(value.high)}"
    message = f"Recall@1 is {shown.number()} ({interval}) on {count:,} queries."
    return Verdict(message=message, figures=[Figure(label="recall@1", value=shown)], line=line)


def training_verdict(
    before: Interval, after: Interval, change: PairedDifference, count: int, *, use_trained: bool, line: str = ""
) -> Verdict:
    """Write the verdict on a training run; ``use_trained``: the trained model becomes its result."""
    values = f"recall@1 from {number(before.value)} to {number(after.value)}"
    figures = f"{values} ({points_text(change)}) on {count:,} unseen images"
    better = use_trained and change.better
    message = f"Training raised {figures}." if better else f"Training moved {figures}, which may be due to chance."
    if not use_trained:
        message = "Training did not help; the starting model is kept."
    cards = comparison_figures("recall@1", {"starting model": before, "trained": after}, change)
    return Verdict(message=message, figures=cards, line=line, tone="better" if better else "same")


def comparison_verdict(
    a: str, b: str, before: Interval, after: Interval, change: PairedDifference, count: int, line: str = ""
) -> Verdict:
    """Write the verdict on two models; a difference counts if its whole interval is on one side of 0."""
    values = f"recall@1 {number(before.value)} and {number(after.value)}"
    figures = f"{values} ({points_text(change)}, {p_text(change.p)}) on {count:,} queries"
    tone = change.tone
    message = f"No difference was found between {a} and {b}" if tone == "same" else f"{b} is {tone} than {a}"
    cards = comparison_figures("recall@1", {a: before, b: after}, change)
    return Verdict(message=f"{message}: {figures}.", figures=cards, line=line, tone=tone)


def comparison_figures(metric: str, intervals: Mapping[str, Interval], change: PairedDifference) -> list[Figure]:
    """Make the cards of a verdict: the metric of every model, and the difference in points."""
    cards = [Figure(label=f"{metric}, {name}", value=Value.of(interval)) for name, interval in intervals.items()]
    low, value, high = (100 * v for v in (change.low, change.difference, change.high))
    points = Value(value=value, low=low, high=high, digits=1, signed=True, unit="points")
    return [*cards, Figure(label="difference", value=points, note=p_text(change.p))]
