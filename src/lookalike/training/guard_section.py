"""The report's section on collapse: what the guard read, and what it says of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lookalike.core import report_blocks as s
from lookalike.methods.collapse import HEALTHY, STATES

ORDER = s.CURVES + 6
PREFIX = "guard/"


def last_readings(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The latest value of every reading; empty where no guard stood."""
    return {name.removeprefix(PREFIX): row[name] for row in log for name in row if name.startswith(PREFIX)}


def guard_state(log: Sequence[Mapping[str, Any]]) -> str:
    """How the run ended, in words; empty where no guard stood."""
    found = last_readings(log)
    return STATES[int(found["state"])] if "state" in found else ""


def guard_section(log: Sequence[Mapping[str, Any]]) -> s.Section | None:
    """From the rows of `log.jsonl`; None where no guard stood."""
    found = last_readings(log)
    if "state" not in found:
        return None
    alarms = [row["step"] for row in log if row.get("guard/state", HEALTHY) != HEALTHY]
    state = STATES[int(found["state"])]
    told = f"At the end the run is {state}."
    if alarms:
        told += f" The guard first spoke at step {alarms[0]:,}."
    blocks: list[s.Block] = [
        s.Text(text=told),
        _lines(
            log,
            "clusters",
            {"clusters": "told apart by the prototypes"},
            title="What the prototypes say about an image",
            note="exp of the mutual information of image and prototype inside a block: 1 for whatever ignores the "
            "image, at most the smaller of block and batch.",
        ),
        _lines(
            log,
            "share of log M",
            {"consistency": "disagreement of views", "balance": "imbalance of prototypes"},
            title="The two terms against their extremes",
        ),
        _lines(
            log,
            "prototypes",
            {"in_use": "in use", "in_use_at_random": "if chosen at random", "perplexity": "in use, weighted"},
            title="Prototypes of the last images",
            dashed=("in_use_at_random",),
        ),
        _lines(
            log,
            "spread",
            {"spread": "of the features"},
            title="Features",
            note="About 1 when they point everywhere, 0 when all are one; it falls late in a collapse or not at all.",
        ),
    ]
    rows: list[tuple[str, s.Cell]] = [(name.replace("_", " "), value) for name, value in sorted(found.items())]
    blocks.append(s.Facts(title="Last readings", rows=rows, folded=True))
    return s.Section(title="Collapse guard", order=ORDER, blocks=blocks)


def _lines(
    log: Sequence[Mapping[str, Any]],
    label: str,
    names: Mapping[str, str],
    *,
    title: str,
    note: str = "",
    dashed: Sequence[str] = (),
) -> s.Lines:
    series = []
    for key, name in names.items():
        points = [(row["step"], row[PREFIX + key]) for row in log if PREFIX + key in row]
        x, y = zip(*points, strict=True)
        series.append(s.Series(name=name, x=list(x), y=list(y), dashed=key in dashed))
    return s.Lines(title=title, x_label="step", y_label=label, series=series, note=note)
