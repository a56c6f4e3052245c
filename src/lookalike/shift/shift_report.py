"""Report sections of ``shift run`` (curve, tables, ranks, splits, maps, transfer) and of ``shift place``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.seeds import numpy_rng
from lookalike.shift import ags
from lookalike.shift.shift_curve import Placement, ShiftCurve
from lookalike.shift.trials import FROZEN

NAMES = {"recall@1": "recall@1", "map@1000": "mAP@1000"}
POINTS = 1500  # images on a map
SIDES = ("train", "test", "removed")


def write_sections(run: Any, rows: ags.Rows, splits: Any, shared: Any, facts: Mapping[str, Any]) -> None:
    """Write all sections of a run; ``facts`` are those of `experiment.summary`, and a line for the verdict."""
    sections = {"verdict": verdict_section(rows, facts), "table": table_section(rows), "curve": curve_section(rows)}
    sections |= {"ranks": ranks_section(rows), "progression": progression_section(splits)}
    sections |= {"map": map_section(splits, shared), "structure": structure_section(facts["structure"])}
    if len(facts["models"]) > 1:
        sections["models"] = models_section(facts["models"])
    if facts["transfer"]:
        sections["transfer"] = transfer_section(facts["transfer"])
    for name, section in sections.items():
        run.write_section(name, section)


def verdict_section(rows: ags.Rows, facts: Mapping[str, Any]) -> s.Section:
    """The best method, with its AGS and its recall on the easiest and the hardest split."""
    measure = "recall@1"
    trained = [row for row in rows if row["method"] != FROZEN] or list(rows)
    best, score = next(iter(ags.scores(trained, measure).items()))
    values = ags.values_of(trained, best, measure)
    first, last = float(values[0].mean()), float(values[-1].mean())
    message = (
        f"Over {len(values)} splits of growing difficulty, {best} holds up best: recall@1 {first:.3f} on the easiest, "
        f"{last:.3f} on the hardest."
    )
    figures = [
        s.Figure(label=f"AGS, {best}", value=_value(score), note="area under the curve, recall@1"),
        s.Figure(label="easiest split", value=s.Value.of(ags.t_interval(values[0]))),
        s.Figure(label="hardest split", value=s.Value.of(ags.t_interval(values[-1]))),
    ]
    verdict = s.Verdict(message=message, figures=figures, line=str(facts.get("line", "")))
    return s.Section(title="Performance under shift", order=s.VERDICT, blocks=[verdict])


def table_section(rows: ags.Rows) -> s.Section:
    """Every method on every split, with AGS."""
    blocks: list[s.Block] = []
    columns = ["method", *[f"split {k}" for k in ags.fids_of(rows)], "AGS"]
    for measure, name in NAMES.items():
        cells: list[list[s.Cell]] = []
        for method, score in ags.scores(rows, measure).items():
            means = [s.Value(value=float(v.mean())) for v in ags.values_of(rows, method, measure)]
            cells.append([method, *means, _value(score)])
        blocks.append(s.Grid(title=name, columns=columns, rows=cells, whisker="AGS"))
    text = (
        "AGS is the area under the measure over the normalized FID of the splits: it depends on their range, so "
        "compare it within one file of splits only. Intervals are bootstraps over seeds within each split."
    )
    return s.Section(title="Every method on every split", order=s.TABLE, blocks=[*blocks, s.Text(text=text)])


def curve_section(rows: ags.Rows) -> s.Section:
    """Performance over FID for every method, and removals beside random ones."""
    blocks: list[s.Block] = []
    fids = list(ags.fids_of(rows).values())
    for measure, name in NAMES.items():
        series = []
        for method in ags.methods_of(rows):
            bands = [ags.t_interval(v) for v in ags.values_of(rows, method, measure)]
            wide = any(b.high > b.low for b in bands)
            extra = {"low": [b.low for b in bands], "high": [b.high for b in bands]} if wide else {}
            y = [b.value for b in bands]
            series.append(s.Series(name=method, x=fids, y=y, dashed=method == FROZEN, **extra))
        blocks.append(s.Lines(x_label="FID between the sides", y_label=name, series=series))
    beside: list[list[s.Cell]] = [
        [f"split {pair['split']}", pair["method"], s.Value(value=pair["removal"]), s.Value(value=pair["random"])]
        for pair in ags.compare_removals(rows)
    ]
    if beside:
        columns = ["split", "method", "after removal", "on random classes"]
        note = "Fewer classes raise recall by themselves: a removal counts against random subsets of the same size."
        blocks.append(s.Grid(title="Targeted against random removal", columns=columns, rows=beside, note=note))
    return s.Section(title="The curve", order=s.TABLE + 2, blocks=blocks)


def ranks_section(rows: ags.Rows) -> s.Section:
    """Rank of every method on every split."""
    ranks = ags.ranks([row for row in rows if row["method"] != FROZEN] or rows, "recall@1")
    columns = ["method", *[f"split {k}" for k in ranks["splits"]]]
    cells: list[list[s.Cell]] = [[name, *places] for name, places in ranks["places"].items()]
    cells.append(["pairs in another order than on the first split", *ranks["pairs_swapped"]])
    note = "Ranks by recall@1; 1 is best."
    return s.Section(title="Ranks", order=s.TABLE + 4, blocks=[s.Grid(columns=columns, rows=cells, note=note)])


def progression_section(splits: Any) -> s.Section:
    """FID along the whole sequence with the chosen splits marked, beside random removals."""
    series = [
        s.Series(name=name, x=[p[0] for p in points], y=[p[1] for p in points], dashed=name.startswith("random"))
        for name, points in splits.progression().items()
    ]
    marks = [s.Mark(x=float(x), label=str(k)) for k, x in splits.positions().items()]
    lines = s.Lines(
        x_label="steps of swapping and removal", y_label=f"FID ({splits.measure})", series=series, marks=marks
    )
    columns = ["split", "step", "FID", "classes per side", "removed"]
    largest = max(p.fid for p in splits.splits)  # the scale depends on the reference model
    digits = min(8, max(1, 3 - math.floor(math.log10(largest)))) if largest > 0 else 1
    cells: list[list[s.Cell]] = [
        [p.id, str(p.step), s.Value(value=p.fid, digits=digits), len(p.test), len(p.removed)] for p in splits.splits
    ]
    table = s.Grid(columns=columns, rows=cells)
    blocks: list[s.Block] = [lines, table] if series else [table]  # a file of the authors has no sequence
    return s.Section(title="The splits", order=s.CURVES, blocks=blocks)


def map_section(splits: Any, shared: Any, *, points: int = POINTS, seed: int = 0) -> s.Section:
    """The same images three times: their side in an easy, a middle and a hard split."""
    from lookalike.evaluation.projection import project

    rows = np.flatnonzero(shared.labels >= 0)
    rows = np.sort(numpy_rng(seed, "shift map").permutation(rows)[:points])
    drawn = project(shared.vectors(rows), seed=seed)
    order = sorted(splits.splits, key=lambda split: split.fid)
    blocks: list[s.Block] = []
    for place, difficulty in {0: "easy", len(order) // 2: "middle", len(order) - 1: "hard"}.items():
        split = order[place]
        side = {name: code for code, names in enumerate((split.train, split.test, split.removed)) for name in names}
        codes = [side.get(shared.names[label], -1) for label in shared.labels[rows]]
        x, y = drawn.places.T.tolist()
        panel = s.Panel(title=f"{difficulty}: split {split.id}", x=x, y=y)
        blocks.append(s.Scatter(panels=[panel], codes=codes, names=list(SIDES), note=drawn.note))
    return s.Section(title="Easy, middle, hard", order=s.MAP, blocks=blocks)


def structure_section(correlations: Mapping[str, Mapping[str, Mapping[str, float]]]) -> s.Section:
    """Correlation of structural measures with performance."""
    blocks: list[s.Block] = []
    for measure, name in NAMES.items():
        rows = [
            s.Whisker(name=key, value=v["rho"], low=v["low"], high=v["high"])
            for key, v in correlations[measure].items()
        ]
        blocks.append(s.Whiskers(title=name, rows=rows, label="Spearman's ρ over all runs", reference=0.0))
    return s.Section(title="Correlation with performance", order=s.CLASSES, blocks=blocks)


def models_section(by_model: Mapping[str, Mapping[str, Any]]) -> s.Section:
    """AGS of several starting models."""
    cells: list[list[s.Cell]] = [
        [model, method, *[_value(scores[measure]) for measure in NAMES]]
        for model, methods in by_model.items()
        for method, scores in methods.items()
    ]
    columns = ["starting model", "method", *[f"AGS, {name}" for name in NAMES.values()]]
    return s.Section(title="Starting models", order=s.CLASSES + 2, blocks=[s.Grid(columns=columns, rows=cells)])


def transfer_section(by_set: Mapping[str, Mapping[str, Mapping[str, float]]]) -> s.Section:
    """Models of the default split on other data sets, beside the frozen model."""
    cells: list[list[s.Cell]] = []
    for name, methods in by_set.items():
        frozen = methods[FROZEN]["value"]
        for method, score in methods.items():
            gain = None if method == FROZEN else s.Value(value=100 * (score["value"] - frozen), digits=1, signed=True)
            cells.append([name, method, _value(score), gain])
    columns = ["measured on", "method", "recall@1", "points over frozen"]
    return s.Section(title="Other data sets", order=s.CLASSES + 4, blocks=[s.Grid(columns=columns, rows=cells)])


def _value(score: Mapping[str, float]) -> s.Value:
    return s.Value(value=score["value"], low=score["low"], high=score["high"])


BINS = 8


def placement_sections(placement: Placement, curve: ShiftCurve) -> dict[str, s.Section]:
    """Sections of a placed folder: the estimate, and the model on its calibration folders by distance."""
    line = f"{placement.images:,} images; calibrated on {len(curve.folders):,} folders of known classes"
    shown = {"without seeing the folder": placement.baseline}
    if placement.recall is not None:
        shown = {"recall@1 to expect": placement.recall, **shown}
    options = {"digits": 2, "level": placement.level}
    figures = [s.Figure(label=label, value=s.Value.of(value, **options)) for label, value in shown.items()]
    verdict = s.Verdict(message=placement.message, figures=figures, line=line)
    out = {"verdict": s.Section(title="Recall without labels", order=s.VERDICT, blocks=[verdict])}
    if placement.distance is not None:
        order = sorted(curve.folders, key=lambda folder: folder.distance)
        groups: list[Any] = [group for group in np.array_split(np.arange(len(order)), BINS) if len(group)]
        recalls = [np.array([order[k].recall for k in group]) for group in groups]
        series = s.Series(
            name="this model on folders of known classes",
            x=[float(np.mean([order[k].distance for k in group])) for group in groups],
            y=[float(np.median(values)) for values in recalls],
            low=[float(np.quantile(values, 0.05)) for values in recalls],
            high=[float(np.quantile(values, 0.95)) for values in recalls],
        )
        mark = s.Mark(x=placement.distance, label="this folder")
        note = "Band: 90 % of the folders. Distance is the square root of FID in 64 directions at equal size."
        lines = s.Lines(x_label="distance from training", y_label="recall@1", series=[series], marks=[mark], note=note)
        out["curve"] = s.Section(title="Recall over distance from training", order=s.TABLE, blocks=[lines])
    return out
