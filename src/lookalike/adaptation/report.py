"""Report sections of an adaptation: the decision, its evidence, and the receipts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookalike.core.report_blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Facts,
    Figure,
    Grid,
    Hit,
    HitList,
    HitRow,
    Hits,
    Image,
    Lines,
    Section,
    Series,
    Text,
    Verdict,
)
from lookalike.core.run import Run
from lookalike.data import Table, thumbnail

if TYPE_CHECKING:
    from lookalike.adaptation.pool import Pool
    from lookalike.adaptation.trial import Trial

SHOWN = 20
IMAGES = 5


def report_sections(trial: Trial, pool: Pool, run: Run) -> dict[str, Section]:
    """The report sections of a trial, by name.

    Args:
        trial: The candidate and its decision.
        pool: The pool it retrieved from.
        run: The run folder, where thumbnails are stored.
    """
    decision = trial.decision
    figures = [Figure(label=name, value=value) for name, value in decision.headline.items()]
    verdict = Verdict(
        sentence=decision.sentence,
        figures=figures,
        tone="better" if decision.promoted else "same",
        line=trial.classes,
    )
    out = {"adapt-verdict": Section(title="Verdict", order=10, blocks=[verdict])}
    facts: list[tuple[str, Cell]] = [(name.replace("_", " "), count) for name, count in trial.counts.items()]
    rest: list[tuple[str, Cell]] = [(name.replace("_", " "), value) for name, value in decision.figures.items()]
    blocks: list[Block] = [
        Facts(title="Images", rows=facts),
        Facts(title=f"Evidence ({decision.evidence})", rows=rest),
    ]
    out["adapt-evidence"] = Section(title="What this rests on", order=20, blocks=blocks)
    if trial.log:
        names = [name for name in ("loss", "contrast", "labels", "diversity") if name in trial.log[0]]
        series = [_curve(name, trial.log) for name in names]
        out["adapt-curve"] = Section(
            title="The way there", order=60, blocks=[Lines(x_label="step", y_label="loss", series=series)]
        )
    receipts = ([_retrieved(trial, pool, run)] if trial.receipts else []) + _receipts(trial)
    out["adapt-receipts"] = Section(title="Images from outside", order=65, blocks=receipts)
    return out


def _curve(name: str, log: Sequence[Mapping[str, float]]) -> Series:
    """As far as there are numbers: what diverged has none."""
    known = [row for row in log if math.isfinite(row[name])]
    return Series(name=name, x=[row["step"] for row in known], y=[row[name] for row in known])


def _receipts(trial: Trial) -> list[Block]:
    if not trial.receipts:
        return [Text(text="No image from outside was used.")]
    counts, edges = np.histogram(trial.found.scores[trial.found.index >= 0], bins=20)
    bars = [
        Bar(name=f"{low:.2f} to {high:.2f}", value=int(n))
        for n, low, high in zip(counts, edges, edges[1:], strict=False)
    ]
    most = sorted(trial.receipts, key=lambda row: (-row["times_negative"], row["path"]))
    rows = [
        [
            row["path"],
            len(row["served"]),
            max(s["score"] for s in row["served"]),
            row["steps_loaded"],
            row["times_negative"],
        ]
        for row in most[:SHOWN]
    ]
    columns = ["image", "retrieved for", "best score", "steps loaded", "times a negative"]
    note = f"The {len(rows)} used most of {len(most)}; `receipts.json` of the version has all, with every score."
    return [
        Bars(title="Scores of retrieved images", rows=bars, label="pairs"),
        Grid(columns=columns, rows=rows, note=note),
    ]


def _retrieved(trial: Trial, pool: Pool, run: Run) -> Hits:
    """Target images whose best pool image is the least and the most alike, and some between; what each got."""
    found = trial.found
    some = np.flatnonzero(found.index[:, 0] >= 0)
    order = some[np.argsort(found.scores[some, 0], kind="stable")]
    chosen = np.unique(np.linspace(0, len(order) - 1, min(IMAGES, len(order))).round().astype(int))
    rows = []
    for row in order[chosen]:
        hits = [
            Hit(image=_image(run, *pool.images(int(i))), score=float(score))
            for i, score in zip(found.index[row], found.scores[row], strict=True)
            if i >= 0
        ]
        rows.append(HitRow(query=_image(run, trial.learn, int(row)), lists=[HitList(name="retrieved", hits=hits)]))
    return Hits(title="What is retrieved, from the least to the most alike", rows=rows)


def _image(run: Run, table: Table, row: int) -> Image:
    jpeg = thumbnail(table.open_bytes(row), box=table.box(row))
    return Image(file=run.store_image(jpeg), alt=str(table.column("path")[row]))
