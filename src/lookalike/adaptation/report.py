"""Report sections of an adaptation: the decision, its evidence, and the receipts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lookalike.adaptation import gate
from lookalike.adaptation.target_classes import names_of
from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.data import Table, thumbnail
from lookalike.models import Embedder

if TYPE_CHECKING:
    from lookalike.adaptation.candidate import Candidate
    from lookalike.adaptation.pool import Pool

SHOWN = 20
IMAGES = 5
CHANGED = 8


def report_sections(made: Candidate, pool: Pool, run: Run) -> dict[str, s.Section]:
    """The report sections of a candidate, by name.

    Args:
        made: The candidate and its decision.
        pool: The pool it retrieved from.
        run: The run folder, where thumbnails are stored.
    """
    decision, line = made.decision, made.prepared.classes.how
    figures = [s.Figure(label=name, value=value) for name, value in decision.headline.items()]
    tone: Literal["better", "same"] = "better" if decision.promoted else "same"
    verdict = s.Verdict(message=decision.message, figures=figures, tone=tone, line=line)
    out = {"adapt-verdict": s.Section(title="Verdict", order=10, blocks=[verdict])}
    evidence: dict[str, Mapping[str, s.Cell]] = {"Images": made.counts}
    evidence[f"Evidence ({decision.evidence})"] = decision.figures
    blocks: list[s.Block] = [
        s.Facts(title=title, rows=[(name.replace("_", " "), value) for name, value in facts.items()])
        for title, facts in evidence.items()
    ]
    out["adapt-evidence"] = s.Section(title="What this rests on", order=20, blocks=blocks)
    out["adapt-results"] = s.Section(title="Old and new results", order=30, blocks=[_side_by_side(made, run)])
    if made.log:
        names = [name for name in ("loss", "contrast", "labels", "diversity") if name in made.log[0]]
        series = [_curve(name, made.log) for name in names]
        out["adapt-curve"] = s.Section(
            title="The way there", order=60, blocks=[s.Lines(x_label="step", y_label="loss", series=series)]
        )
    receipts = ([_retrieved(made, pool, run)] if made.receipts else []) + _receipts(made)
    out["adapt-receipts"] = s.Section(title="Images from outside", order=65, blocks=receipts)
    return out


def _side_by_side(made: Candidate, run: Run) -> s.Hits:
    """Held-out target images whose results change most: what the old and the new model find among the others."""
    aside = made.prepared.aside
    rows = [model.encode(aside, runtime="torch") for model in (made.now, made.model)]
    near = [gate.nearest(own, IMAGES) for own in rows]
    stays = (near[0][:, :, None] == near[1][:, None, :]).any(2).mean(1)
    classes = [_predicted(model, own) for model, own in zip((made.now, made.model), rows, strict=True)]
    out = []
    for row in np.argsort(stays, kind="stable")[:CHANGED]:
        lists = []
        for name, own, result, predicted in zip(("old", "new"), rows, near, classes, strict=True):
            hits = [(int(i), float(own[row] @ own[i])) for i in result[row] if i >= 0]
            shown = [s.Hit(image=_image(run, aside, i), score=score) for i, score in hits]
            lists.append(s.HitList(name=f"{name}: {predicted[row]}" if predicted else name, hits=shown))
        out.append(s.HitRow(query=_image(run, aside, int(row)), lists=lists))
    return s.Hits(title="The held-out images whose nearest images change most", rows=out)


def _predicted(model: Embedder, rows: np.ndarray) -> list[str]:
    """Predicted class names; none for a model without a classifier."""
    if model.classifier is None:
        return []
    names = names_of(model)
    return [names[i] if i < len(names) else str(i) for i in gate.probabilities(model, rows).argmax(1)]


def _curve(name: str, log: Sequence[Mapping[str, float]]) -> s.Series:
    """As far as there are numbers: what diverged has none."""
    known = [row for row in log if math.isfinite(row[name])]
    return s.Series(name=name, x=[row["step"] for row in known], y=[row[name] for row in known])


def _receipts(made: Candidate) -> list[s.Block]:
    if not made.receipts:
        return [s.Text(text="No image from outside was used.")]
    counts, edges = np.histogram(made.prepared.retrieved.scores[made.prepared.retrieved.index >= 0], bins=20)
    bars = [s.Bar(name=f"{edges[i]:.2f} to {edges[i + 1]:.2f}", value=int(n)) for i, n in enumerate(counts)]
    most = sorted(made.receipts, key=lambda row: (-row["times_negative"], row["path"]))
    rows: list[list[s.Cell]] = []
    for row in most[:SHOWN]:
        best = max(served["score"] for served in row["served"])
        rows.append([row["path"], len(row["served"]), best, row["steps_loaded"], row["times_negative"]])
    columns = ["image", "retrieved for", "best score", "steps loaded", "times a negative"]
    note = f"The {len(rows)} used most of {len(most)}; `receipts.json` of the version has all, with every score."
    return [
        s.Bars(title="Scores of retrieved images", rows=bars, label="pairs"),
        s.Grid(columns=columns, rows=rows, note=note),
    ]


def _retrieved(made: Candidate, pool: Pool, run: Run) -> s.Hits:
    """Target images whose best pool image is the least and the most alike, and some between; what each got."""
    retrieved = made.prepared.retrieved
    some = np.flatnonzero(retrieved.index[:, 0] >= 0)
    order = some[np.argsort(retrieved.scores[some, 0], kind="stable")]
    chosen = np.unique(np.linspace(0, len(order) - 1, min(IMAGES, len(order))).round().astype(int))
    rows = []
    for row in order[chosen]:
        hits = [
            s.Hit(image=_image(run, *pool.images(int(i))), score=float(score))
            for i, score in zip(retrieved.index[row], retrieved.scores[row], strict=True)
            if i >= 0
        ]
        rows.append(
            s.HitRow(query=_image(run, made.prepared.learn, int(row)), lists=[s.HitList(name="retrieved", hits=hits)])
        )
    return s.Hits(title="What is retrieved, from the least to the most alike", rows=rows)


def _image(run: Run, table: Table, row: int) -> s.Image:
    jpeg = thumbnail(table.open_bytes(row), box=table.box(row))
    return s.Image(file=run.store_image(jpeg), alt=str(table.column("path")[row]))
