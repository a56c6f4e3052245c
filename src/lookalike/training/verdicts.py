"""The verdict of a run that learned without labels: by k-NN where there are some to measure with, by the guard else."""

from __future__ import annotations

from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.evaluation.report import p_text
from lookalike.training.guard_section import guard_state, last_readings
from lookalike.training.knn_eval import Neighbors
from lookalike.training.outcome import Outcome
from lookalike.training.setup import Assembly


def unmeasured_section(run: Run, parts: Assembly, outcome: Outcome) -> s.Section:
    """The verdict where there was nothing to measure on: what the guard read stands in for it."""
    found = last_readings(run.read_log())
    figures = [
        s.Figure(label=name.replace("_", " "), value=round(found[name], 3))
        for name in ("clusters", "in_use", "consistency", "balance", "spread")
        if name in found
    ]
    state = guard_state(run.read_log())
    sentence = outcome.sentence + (f" The guard says: {state}." if state else "")
    line = f"{parts.table.name}, {len(parts.train):,} images, seed {parts.settings.seed}"
    return s.Section(
        title="Verdict", order=s.VERDICT, blocks=[s.Verdict(sentence=sentence, figures=figures, line=line)]
    )


def neighbors_section(found: Neighbors, sentence: str, line: str) -> s.Section:
    """The verdict on what was learned without labels, and every model's k-NN accuracy."""
    change = found.difference
    gain = {name: 100 * getattr(change, name) for name in ("low", "high")}
    figures = [
        s.Figure(label=f"k-NN accuracy, {name}", value=s.Value.of(band)) for name, band in found.intervals.items()
    ]
    points = s.Value(value=100 * change.difference, **gain, digits=1, signed=True, unit="points")
    figures.append(s.Figure(label="difference", value=points, note=p_text(change.p)))
    tone = "better" if change.better else "worse" if change.worse else "same"
    counts = list(next(iter(found.accuracy.values())))
    rows: list[list[s.Cell]] = [[name, *(round(by[k], 4) for k in counts)] for name, by in found.accuracy.items()]
    blocks: list[s.Block] = [
        s.Verdict(sentence=sentence, figures=figures, line=line, tone=tone),  # type: ignore[arg-type]
        s.Grid(title="k-NN accuracy", columns=["model", *(f"{k} neighbors" for k in counts)], rows=rows),
    ]
    return s.Section(title="Verdict", order=s.VERDICT, blocks=blocks)
