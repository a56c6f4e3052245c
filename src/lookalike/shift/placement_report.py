"""The report of a placed folder: the sentence, and where it lies on the model's two curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.shift.nearness import MATCHED
from lookalike.shift.shift_curve import Placement, Reach

BINS = 8


def report_sections(found: Placement, reach: Reach) -> dict[str, s.Section]:
    line = f"{found.seen.images:,} images; the curve was learned on {len(reach.points):,} folders of known classes"
    shown = {"without a look at the folder": found.ignoring}
    if found.recall is not None:
        shown = {"recall@1 to expect": found.recall, **shown}
    look = {"digits": 2, "level": found.level}
    figures = [s.Figure(label=label, value=s.Value.of(value, **look)) for label, value in shown.items()]
    verdict = s.Verdict(sentence=found.sentence, figures=figures, line=line)
    out = {"verdict": s.Section(title="Where the folder lies", order=s.VERDICT, blocks=[verdict])}
    if found.seen.distance is not None:
        out["curve"] = s.Section(title="The model's curve", order=s.TABLE, blocks=[curve_block(found, reach)])
    return out


def curve_block(found: Placement, reach: Reach) -> s.Lines:
    """Recall over distance: the recipe retrained on splits, the fixed model on graded folders; the folder marked."""
    assert found.seen.distance is not None
    size = min(found.seen.used, MATCHED)
    series = []
    if reach.splits:
        points = sorted((max(split.distance(size), 0.0) ** 0.5, split.recall) for split in reach.splits)
        series.append(s.Series(name="recipe retrained on splits", x=[x for x, _ in points], y=[y for _, y in points]))
    series.append(_fixed(reach))
    mark = s.Mark(x=max(found.seen.distance, 0.0) ** 0.5, label="this folder")
    note = "Band: 90 % of the graded folders. Distance is the square root of FID in 64 directions at equal size."
    return s.Lines(x_label="distance from training", y_label="recall@1", series=series, marks=[mark], note=note)


def _fixed(reach: Reach) -> s.Series:
    """The graded folders in order of their distance, a few at a time."""
    order = sorted(reach.points, key=lambda point: point.distance)
    groups: list[Any] = [group for group in np.array_split(np.arange(len(order)), BINS) if len(group)]
    recalls = [np.array([order[k].recall for k in group]) for group in groups]
    return s.Series(
        name="this model on graded folders",
        x=[float(np.mean([order[k].distance for k in group])) for group in groups],
        y=[float(np.median(values)) for values in recalls],
        low=[float(np.quantile(values, 0.05)) for values in recalls],
        high=[float(np.quantile(values, 0.95)) for values in recalls],
    )
