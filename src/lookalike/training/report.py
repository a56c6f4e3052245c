"""The sections a training run writes for its report."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from lookalike import methods
from lookalike.core import report_blocks as s
from lookalike.core.imports import package_versions
from lookalike.core.run import Run
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation import retrieval, training_overlap, verdicts
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.report_sections import EvaluatedModel, ReportImages
from lookalike.methods.base import ReportContext
from lookalike.methods.collapse import HEALTHY, STATES
from lookalike.training import checkpoint, drift
from lookalike.training.loop import TrainingProgress
from lookalike.training.selection import FROZEN, START, TRAINED, KNNComparison, Outcome, PrototypeFacet, embed_features
from lookalike.training.setup import TrainingSetup

GUARD_ORDER, PROTOTYPES_ORDER, GUARD_PREFIX = s.CURVES + 6, s.CURVES + 7, "guard/"
_TERMS = {"consistency": "disagreement of views", "balance": "imbalance of prototypes"}
_COUNTS = {"in_use": "in use", "in_use_at_random": "if chosen at random", "perplexity": "in use, weighted"}
_CLUSTERS = (
    "exp of the mutual information of image and prototype inside a block: 1 for whatever ignores the image, at most "
    "the smaller of block and batch."
)
_SPREAD = "About 1 when they point everywhere, 0 when all are one; it falls late in a collapse or not at all."
GUARD_CHARTS = (  # title, label of the axis, lines and note
    ("What the prototypes say about an image", "clusters", {"clusters": "distinguished by the prototypes"}, _CLUSTERS),
    ("The two terms against their extremes", "fraction of log M", _TERMS, ""),
    ("Prototypes of the last images", "prototypes", _COUNTS, ""),
    ("Features", "spread", {"spread": "of the features"}, _SPREAD),
)
LARGEST, NEAREST = 12, 6


def write_sections(
    run: Run, parts: TrainingSetup, done: TrainingProgress, outcome: Outcome, audit: dict[str, Any], shown: Any = None
) -> None:
    """Write every section of the report, as JSON and thumbnails in the run."""
    written: dict[str, s.Section | None] = {
        "curves": curves_section(run, parts, done),
        "drift": drift.drift_section(run.read_log(), parts.settings.log.drift_every_n_steps),
        **method_sections(run, parts),
        "audit": audit_section(audit, parts),
        "settings": settings_section(run, parts),
        "guard": guard_section(run.read_log()),
        "prototypes": None if shown is None else prototypes_section(run, parts, shown),
        **(measured_sections(run, parts, outcome) if outcome.measured else {}),
    }
    if not outcome.measured:
        written["verdict"] = unmeasured_section(run, parts, outcome)
    for name, section in written.items():
        if section is not None:
            run.write_section(name, section)


def measured_sections(run: Run, parts: TrainingSetup, outcome: Outcome) -> dict[str, s.Section | None]:
    """The sections on what was measured on held-out images."""
    table, labels, names = parts.table.take(outcome.rows), parts.labels[outcome.rows], parts.table.labels()[1]
    result, gallery = outcome.measured[TRAINED].result, outcome.gallery
    report_images = ReportImages(table, run, labels, names, gallery)
    frozen, after, selected = (outcome.measured[name] for name in (FROZEN, TRAINED, outcome.selected))
    calibration, why = calibrate(selected.vectors, labels, query=result.query_index, gallery=gallery)
    before = training_overlap.known_images(parts.settings.model.name)  # a run may go on from another
    made = before.find(table.take(result.query_index))[1] if before else []
    note = training_overlap.overlap_note(before, made)
    selected = EvaluatedModel(selected.name, selected.vectors, selected.result, calibration, why, note)
    if outcome.selected == TRAINED:
        after = selected
    line = f"{parts.table.name}, {len(result.query_index):,} queries, seed {parts.settings.seed}"
    if outcome.neighbors is not None:
        verdict = knn_section(outcome.neighbors, outcome.message, line)
    else:
        use_trained = outcome.selected == TRAINED
        verdict = sections.verdict_section(sections.verdict(frozen, after, use_trained=use_trained, line=line))
    return {
        "verdict": verdict,
        "table": table_section(outcome),
        "changed": sections.changed_section(report_images, frozen, after),
        "extremes": sections.extremes_section(report_images, selected),
        "calibration": sections.calibration_section(selected),
        "classes": sections.class_changes_section(frozen, after, names),
        "map": sections.map_section(report_images, [frozen, after]),
    }


def method_sections(run: Run, parts: TrainingSetup) -> dict[str, s.Section]:
    """Sections that only the method can write, from its state after the last step."""
    kind = methods.find(parts.settings.method.name)
    if not kind.has_report:
        return {}
    last = checkpoint.read(run.checkpoints / checkpoint.LAST)
    model = copy.deepcopy(parts.model)
    checkpoint.load_trainable_state(model, last["model"])
    own, every = kind.Settings.parse(parts.settings.method.own()), parts.table.labels()[1]
    names = [every[code] for code in np.unique(parts.labels[parts.train]) if code >= 0]
    images = (parts.train_table, parts.train_labels, names, parts.random_view(), parts.settings.seed)
    return kind.report_sections(ReportContext(run, own, model.eval(), last["method"], *images))


def table_section(outcome: Outcome) -> s.Section:
    """The three models side by side, and trained against each of the others."""
    section = sections.table_section([outcome.measured[name] for name in (FROZEN, START, TRAINED)])
    changes = {name: outcome.differences[name]["recall@1"] for name in (FROZEN, START)}
    rows = [
        s.Whisker(name=f"trained − {name}", value=100 * c.difference, low=100 * c.low, high=100 * c.high)
        for name, c in changes.items()
    ]
    title, label = "Better than both?", "points of recall@1"
    section.blocks.append(s.Whiskers(title=title, rows=rows, label=label, reference=0.0, note=outcome.message))
    return section


def curves_section(run: Run, parts: TrainingSetup, done: TrainingProgress) -> s.Section:
    """Loss and validation metric over the steps, with the starting model and step 0 as dashed lines."""
    log, rows = run.read_log(), parts.validation
    metric = parts.settings.metric if parts.settings.metric != "r_precision" else "map@r"
    note = f"{len(rows):,} images held out of training to choose the step."
    label = f"{verdicts.metric_name(metric)}, validation"
    score = s.log_lines(log, label, {f"validation/{metric}": TRAINED}, note=note)
    blocks: list[s.Block] = []
    if score.series:
        start = embed_features(parts.first_head, parts.features[rows], parts.first_norm)
        frozen = retrieval.retrieval_metrics(start, parts.labels[rows], recall_at=(1,)).mean()[metric]
        for name, value in ((FROZEN, frozen), (START, score.series[0].y[0])):
            score.series.append(s.Series(name=name, x=[0], y=[value], dashed=True))
        score.marks = [s.Mark(x=done.best_step, label=f"best: step {done.best_step}")]
        blocks.append(score)
    near = {"knn/accuracy@20": "k-NN accuracy", "knn/student_accuracy@20": "of the student"}
    note = f"{len(parts.test):,} held-out images, 20 neighbors among {len(parts.known):,} training images."
    charts = [s.log_lines(log, "k-NN accuracy", near, note=note), s.log_lines(log, "loss", {"loss": "loss"})]
    blocks += [chart for chart in charts if chart.series]
    return s.Section(title="Curves", order=s.CURVES, blocks=blocks or [s.Text(text="No step was taken.")])


def audit_section(audit: dict[str, Any], parts: TrainingSetup) -> s.Section:
    """Sizes of the splits and the facts of the image audit."""
    rows: list[tuple[str, s.Cell]] = [("images", len(parts.table))]
    for name in ("train", "validation", "test"):
        chosen = getattr(parts, name)
        classes = len(np.unique(parts.labels[chosen][parts.labels[chosen] >= 0]))
        rows.append((name, f"{len(chosen):,} images, {classes:,} classes"))
    rows.append(("parted by", parts.division.rule))
    blocks: list[s.Block] = [s.Facts(rows=rows, note=" ".join(parts.division.notes))]
    if audit:
        blocks.append(s.Facts(title="Audit", rows=[(name.replace("_", " "), value) for name, value in audit.items()]))
    return s.Section(title="Data", order=s.AUDIT, blocks=blocks)


def settings_section(run: Run, parts: TrainingSetup) -> s.Section:
    """The command and settings that repeat the run, and the versions of the packages."""
    text = yaml.safe_dump(parts.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    name = methods.find(parts.settings.method.name).command
    words = ["lookalike", name, parts.settings.data.source, "--recipe", f"{run.path.name}/config.yaml"]
    repeated = s.Code(title="The command that repeats it", text=shlex.join(words))
    versions = s.Facts(title="Versions", rows=[*package_versions().items()], folded=True)
    blocks: list[s.Block] = [repeated, s.Code(title="Settings", text=text, folded=True), versions]
    return s.Section(title="Settings", order=s.SETTINGS, blocks=blocks)


def unmeasured_section(run: Run, parts: TrainingSetup, outcome: Outcome) -> s.Section:
    """The verdict without labeled images: the readings of the collapse guard."""
    readings = last_guard_readings(run.read_log())
    names = [name for name in ("clusters", "in_use", "consistency", "balance", "spread") if name in readings]
    figures = [s.Figure(label=name.replace("_", " "), value=round(readings[name], 3)) for name in names]
    state = f" The guard says: {STATES[int(readings['state'])]}." if "state" in readings else ""
    line = f"{parts.table.name}, {len(parts.train):,} images, seed {parts.settings.seed}"
    verdict = s.Verdict(message=outcome.message + state, figures=figures, line=line)
    return s.Section(title="Verdict", order=s.VERDICT, blocks=[verdict])


def knn_section(knn: KNNComparison, message: str, line: str) -> s.Section:
    """The verdict on a model trained without labels, and the k-NN accuracy of every model."""
    figures = verdicts.comparison_figures("k-NN accuracy", knn.intervals, knn.difference)
    counts = list(next(iter(knn.accuracy.values())))
    rows: list[list[s.Cell]] = [[name, *(round(by[k], 4) for k in counts)] for name, by in knn.accuracy.items()]
    blocks: list[s.Block] = [
        s.Verdict(message=message, figures=figures, line=line, tone=knn.difference.tone),
        s.Grid(title="k-NN accuracy", columns=["model", *(f"{k} neighbors" for k in counts)], rows=rows),
    ]
    return s.Section(title="Verdict", order=s.VERDICT, blocks=blocks)


def last_guard_readings(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The latest value of every reading of the collapse guard; empty without one."""
    return {name.removeprefix(GUARD_PREFIX): row[name] for row in log for name in row if name.startswith(GUARD_PREFIX)}


def guard_section(log: Sequence[Mapping[str, Any]]) -> s.Section | None:
    """The section on collapse, from the rows of the log; None without a guard."""
    readings = last_guard_readings(log)
    if "state" not in readings:
        return None
    alarms = [row["step"] for row in log if row.get("guard/state", HEALTHY) != HEALTHY]
    state = STATES[int(readings["state"])]
    alarm = f" The guard first warned at step {alarms[0]:,}." if alarms else ""
    blocks: list[s.Block] = [s.Text(text=f"At the end the run is {state}.{alarm}")]
    dashed = [GUARD_PREFIX + "in_use_at_random"]
    for title, label, names, note in GUARD_CHARTS:
        keys = {GUARD_PREFIX + name: text for name, text in names.items()}
        blocks.append(s.log_lines(log, label, keys, title=title, note=note, dashed=dashed))
    rows: list[tuple[str, s.Cell]] = [(name.replace("_", " "), value) for name, value in sorted(readings.items())]
    blocks.append(s.Facts(title="Last readings", rows=rows, folded=True))
    return s.Section(title="Collapse guard", order=GUARD_ORDER, blocks=blocks)


def prototypes_section(run: Run, parts: TrainingSetup, facet: PrototypeFacet) -> s.Section:
    """The largest prototypes with the images nearest to them."""
    report_images = ReportImages(parts.table, run, parts.labels, parts.table.labels()[1], np.arange(len(parts.table)))
    number, score, _ = facet.assigned
    counts = np.bincount(number, minlength=len(facet.prototypes))
    shown = []
    for prototype in np.argsort(-counts, kind="stable")[:LARGEST]:
        own = np.flatnonzero(number == prototype)
        best = own[np.argsort(-score[own], kind="stable")][: NEAREST + 1]
        images = [report_images.image(int(facet.rows[i])) for i in best]
        hits = [s.Hit(image=p, score=float(score[i])) for p, i in zip(images[1:], best[1:], strict=True)]
        name = f"prototype {prototype}: {counts[prototype]:,} images"
        shown.append(s.HitRow(query=images[0], lists=[s.HitList(name=name, hits=hits)]))
    note = (
        f"{len(facet.prototypes):,} prototypes have two or more of {len(facet.rows):,} images; the rest is dropped. "
        "`lookalike index` tags every image with its prototype, to filter and browse by."
    )
    return s.Section(title="Prototypes", order=PROTOTYPES_ORDER, blocks=[s.Hits(rows=shown, note=note)])
