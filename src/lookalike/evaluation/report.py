"""The parts of a report that measure: pure functions from what was measured to `core.sections`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Paired, paired, share
from lookalike.evaluation.projection import project
from lookalike.evaluation.query_images import Measured, Subject
from lookalike.evaluation.verdicts import HIT_WORDS, QUERY_WORDS, evaluation_verdict, training_verdict
from lookalike.evaluation.verification import Verification

MAP_POINTS = 1200
MAP_IMAGES = 240
CLASSES = 60  # listed one by one


def measure_name(key: str) -> str:
    """`map@1000_authors` as people write it."""
    if key.endswith("_authors"):
        return f"{measure_name(key.removesuffix('_authors'))} (ooDML)"
    known = {"map@r": "MAP@R", "r_precision": "R-precision"}
    name = known.get(key) or key.replace("map@", "mAP@").replace("_", " ")
    return name[:1].upper() + name[1:] if not name.startswith("mAP") else name


def p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def differences(before: Measured, after: Measured) -> dict[str, Paired]:
    """Every measure's paired difference over the queries both models were asked."""
    a, b = before.result, after.result
    common, left, right = np.intersect1d(a.query_index, b.query_index, return_indices=True)
    if not len(common):
        return {}
    return {
        key: paired(a.per_query[key][left], b.per_query[key][right], groups=a.labels[left])
        for key in b.per_query
        if key in a.per_query
    }


def verdict_section(
    before: Measured, after: Measured | None = None, *, metric: str = "recall@1", kept: bool = True, line: str = ""
) -> s.Section:
    """One sentence: what training did, or (with one model) how good it is; `kept`: the trained model is."""
    first = s.Value.of(before.intervals[metric])
    count = len(before.result.query_index)
    if after is None:
        block = evaluation_verdict(metric=metric, value=first, images=count, line=line)
    else:
        change = differences(before, after)[metric]
        block = training_verdict(
            metric=metric,
            before=first,
            after=s.Value.of(after.intervals[metric]),
            difference=s.Value(value=change.difference, low=change.low, high=change.high, signed=True),
            images=count,
            kept=kept,
            p=change.p,
            line=line,
        )
    return s.Section(title="Verdict", order=s.VERDICT, blocks=[block])


def compared(a: Measured, b: Measured, change: Paired) -> str:
    """The verdict in words; a difference counts only when its whole interval lies on one side of 0."""
    before, after = a.intervals["recall@1"].value, b.intervals["recall@1"].value
    points = f"{s.number(100 * change.difference, 1, signed=True)} points, 95 % interval "
    points += f"{s.number(100 * change.low, 1)} to {s.number(100 * change.high, 1)}, {p_text(change.p)}"
    figures = f"recall@1 {s.number(before)} and {s.number(after)} ({points}) on {len(b.result.query_index):,} queries"
    if change.better:
        return f"{b.name} is better than {a.name}: {figures}."
    if change.worse:
        return f"{b.name} is worse than {a.name}: {figures}."
    return f"No difference was found between {a.name} and {b.name}: {figures}."


def comparison_section(a: Measured, b: Measured, sentence: str = "") -> s.Section:
    """The verdict on two models neither of which need have been trained here."""
    change = differences(a, b)["recall@1"]
    figures = [s.Figure(label=f"recall@1, {m.name}", value=s.Value.of(m.intervals["recall@1"])) for m in (a, b)]
    gain = s.Value(value=change.difference, low=change.low, high=change.high, signed=True)
    block = s.Verdict(
        sentence=sentence or compared(a, b, change),
        figures=[*figures, s.Figure(label="difference", value=gain, note=p_text(change.p))],
        tone="better" if change.better else "worse" if change.worse else "same",
    )
    return s.Section(title="Verdict", order=s.VERDICT, blocks=[block])


def table_section(models: Sequence[Measured]) -> s.Section:
    """Measures down, models across (frozen, step 0, trained), then the last against the first, paired."""
    means = [model.intervals for model in models]
    keys = [key for key in means[0] if all(key in m for m in means)]
    columns = ["measure", *(model.name for model in models)]
    rows: list[list[s.Cell]] = [[measure_name(k), *(s.Value.of(m[k]) for m in means)] for k in keys]
    note = f"{len(models[0].result.query_index):,} queries; 95 % intervals, whole classes drawn anew."
    if any(key.endswith("_authors") for key in keys):
        note += " (ooDML): as that paper's authors compute it, to compare with published tables."
    if len(models) == 1:
        grid = s.Grid(columns=columns, rows=rows, whisker=models[0].name, note=note)
        return s.Section(title="How good it is", order=s.TABLE, blocks=[grid])
    changes = differences(models[0], models[-1])
    label = f"{models[-1].name} − {models[0].name}"
    for key, row in zip(keys, rows, strict=True):
        c = changes[key]
        row += [s.Value(value=c.difference, low=c.low, high=c.high, signed=True), c.p]
    note += f" The difference is {label}, paired by query; p by flipping the signs of classes."
    grid = s.Grid(columns=[*columns, "difference", "p"], rows=rows, whisker="difference", note=note)
    return s.Section(title="How good it is", order=s.TABLE, blocks=[grid])


def changed_section(subject: Subject, before: Measured, after: Measured, *, count: int = 6, seed: int = 0) -> s.Section:
    """Queries that one model gets right and the other wrong at the first hit: fixed ones, then as many broken ones."""
    index = before.result.query_index
    was, now = before.result.per_query["recall@1"] > 0, after.result.per_query["recall@1"] > 0
    blocks: list[s.Block] = []
    for title, chosen in (("Fixed", ~was & now), ("Broken", was & ~now)):
        rows = [subject.row([before, after], int(q)) for q in _draw(index, chosen, count, seed, title)]
        words = f"{title}: {int(chosen.sum()):,} of {len(index):,} queries"
        blocks.append(s.Hits(title=words, rows=rows) if rows else s.Text(text=f"{words}."))
    return s.Section(title="What changed", order=s.CHANGED, blocks=blocks)


def _draw(index: Ints, chosen: Bools, count: int, seed: int, name: str) -> Ints:
    rows = index[chosen]
    return np.sort(numpy_rng(seed, "report", name).choice(rows, size=min(count, len(rows)), replace=False))


def extremes_section(subject: Subject, model: Measured, *, count: int = 12, metric: str = "map@r") -> s.Section:
    """The worst queries with the class they are confused with, then the best."""
    values, index = model.result.per_query[metric], model.result.query_index
    count = min(count, (len(index) + 1) // 2)
    # Of equally good queries those with more to find say more.
    worst, best = (np.lexsort((-model.result.relevant, order)) for order in (values, -values))
    worst = _few_of_each(worst, model.result.labels, count)
    best = _few_of_each(best[~np.isin(best, worst)], model.result.labels, count)

    def note(place: int) -> str:
        other = subject.taken_for(model, int(index[place]))
        text = f"{measure_name(metric)} {values[place]:.2f}"
        return f"{text}, taken for {other}" if other else text

    blocks: list[s.Block] = [
        s.Hits(title=title, rows=[subject.row([model], int(index[i]), note(int(i))) for i in places])
        for title, places in (("Worst", worst), ("Best", best))
    ]
    return s.Section(title="Worst and best", order=s.WORST, blocks=blocks)


def _few_of_each(order: Ints, labels: Ints, count: int, most: int = 2) -> Ints:
    """The first of an order with at most two of a class: twelve images of one bad class teach no more than two."""
    seen: dict[int, int] = {}
    kept = []
    for place in order:
        label = int(labels[place])
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= most:
            kept.append(place)
        if len(kept) == count:
            break
    return np.array(kept, dtype=np.int64)


def calibration_section(model: Measured) -> s.Section:
    """What the percentages promise against what happened, and how often each verdict was wrong."""
    found = model.calibration
    if found is None:
        text = f"No percentages are given: {model.why_not}." if model.why_not else "No percentages were fitted."
        return s.Section(title="Calibration", order=s.CALIBRATION, blocks=[s.Text(text=text)])
    checked = found.checked
    rows: list[list[s.Cell]] = []
    for kind, words in (("queries", QUERY_WORDS), ("hits", HIT_WORDS)):
        for word in words:
            entry = checked[kind][word]
            rows.append([kind, word, entry["count"], _per_cent(entry["wrong"], entry.get("low"), entry.get("high"))])
    note = (
        f"Fitted to {found.pairs:,} pairs of a query and one of its first hits, {found.positive:,} of them the same; "
        "checked on classes held out from the fit."
    ) + f" {model.note}" * bool(model.note)
    blocks: list[s.Block] = [
        s.Reliability(bins=[s.Bin(**row) for row in checked["bins"]], ece=_ece(checked), note=note),
        s.Grid(
            title="How often each verdict was wrong",
            columns=["of", "verdict", "count", "wrong"],
            rows=rows,
            note="“No good match” is wrong when the best hit was the same thing after all.",
        ),
    ]
    return s.Section(title="Calibration", order=s.CALIBRATION, blocks=blocks)


def _per_cent(value: float | None, low: float | None, high: float | None) -> s.Value | None:
    if value is None:
        return None
    low, high = (None, None) if low is None or high is None else (100 * low, 100 * high)
    return s.Value(value=100 * value, low=low, high=high, digits=1, unit="%")


def _ece(checked: dict[str, Any]) -> s.Value:
    return s.Value(value=checked["ece"], low=checked.get("ece_low"), high=checked.get("ece_high"))


def classes_section(before: Measured, after: Measured, names: Sequence[str], *, metric: str = "recall@1") -> s.Section:
    """Each class's measure, from one model to the other."""
    old, new = before.result.per_class(), after.result.per_class()
    rows = []
    for code in new:
        if code >= 0 and code in old:
            count, value = int(new[code]["count"]), new[code][metric]
            sure = share(value * count, count)
            ends = {"low": sure.low, "high": sure.high}
            rows.append(s.Arrow(name=names[code], before=old[code][metric], after=value, count=count, **ends))
    arrows = s.Arrows(rows=rows, label=measure_name(metric), before=before.name, after=after.name)
    return s.Section(title="Per class", order=s.CLASSES, blocks=[arrows])


def one_model_classes(model: Measured, names: Sequence[str], *, metric: str = "recall@1") -> s.Section:
    """The measures of single classes, the worst first."""
    each = model.result.per_class()
    order = sorted((code for code in each if code >= 0), key=lambda code: (each[code][metric], names[code]))
    rows: list[list[s.Cell]] = [
        [names[c], int(each[c]["count"]), each[c][metric], each[c]["map@r"], each[c]["r_precision"]]
        for c in order[:CLASSES]
    ]
    columns = ["class", "queries", *(measure_name(key) for key in (metric, "map@r", "r_precision"))]
    note = f"The {CLASSES} worst of {len(order):,}; `result.json` has them all." if len(order) > CLASSES else ""
    return s.Section(title="Per class", order=s.CLASSES, blocks=[s.Grid(columns=columns, rows=rows, note=note)])


def verification_section(found: Verification, further: dict[str, str]) -> s.Section:
    """Two images: the same or not? Both error rates over the threshold, and the best one."""
    x, wrong, missed = found.thresholds.tolist(), found.false_accept.tolist(), found.false_reject.tolist()
    lines = s.Lines(
        x_label="score from which two images count as the same",
        y_label="error rate",
        series=[
            s.Series(name="different pairs accepted", x=x, y=wrong),
            s.Series(name="same pairs rejected", x=x, y=missed),
        ],
        marks=[s.Mark(x=found.best_threshold, label="best")],
        note=f"{found.positive:,} pairs of one class and {found.negative:,} of two"
        + (", all there are." if found.complete else ", drawn at random."),
    )
    facts = s.Facts(rows=list(further.items()))
    return s.Section(title="Same or not", order=s.CALIBRATION + 5, blocks=[lines, facts])


def map_section(
    subject: Subject,
    models: Sequence[Measured],
    *,
    points: int = MAP_POINTS,
    images: int = MAP_IMAGES,
    seed: int = 0,
) -> s.Section:
    """The images on a plane, for one or two models; the second map lies over the first."""
    rng = numpy_rng(seed, "map points")
    total = len(subject.labels)
    chosen = np.sort(rng.choice(total, size=min(points, total), replace=False))
    panels, notes = [], []
    like = None
    for model in models[:2]:
        drawn = project(model.rows[chosen], seed=seed, like=like)
        like = drawn.places if like is None else like
        panels.append(s.Panel(title=model.name, x=drawn.places[:, 0].tolist(), y=drawn.places[:, 1].tolist()))
        notes.append(f"{model.name}: {drawn.note}")
    shown = rng.choice(len(chosen), size=min(images, len(chosen)), replace=False)
    block = s.Scatter(
        panels=panels,
        codes=subject.labels[chosen].tolist(),
        names=subject.names,
        images={int(i): subject.image(int(chosen[i])) for i in sorted(shown.tolist())},
        note=f"{len(chosen):,} of {total:,} images. {' '.join(notes)}",
    )
    return s.Section(title="Map", order=s.MAP, blocks=[block])
