"""The sections a training run writes for its report."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import numpy as np
import yaml

from lookalike import methods
from lookalike.core import report_blocks as s
from lookalike.core.imports import package_versions
from lookalike.core.run import Run
from lookalike.evaluation import report as measured
from lookalike.evaluation import training_overlap
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.query_images import Measured, Subject
from lookalike.evaluation.retrieval import retrieval
from lookalike.methods.base import ReportContext
from lookalike.training import checkpoint
from lookalike.training.drift_section import drift_section
from lookalike.training.guard_section import guard_section
from lookalike.training.loop import TrainingProgress
from lookalike.training.outcome import FROZEN, START, TRAINED, Outcome, head_rows
from lookalike.training.prototypes import Facet, prototypes_section
from lookalike.training.setup import Assembly
from lookalike.training.verdicts import neighbors_section, unmeasured_section


def write_sections(
    run: Run,
    parts: Assembly,
    done: TrainingProgress,
    outcome: Outcome,
    audit: dict[str, Any],
    shown: Facet | None = None,
) -> None:
    """Everything the report draws, as JSON and thumbnails in the run."""
    run.write_section("curves", curves_section(run, parts, done))
    drift = drift_section(run.read_log(), parts.settings.log.drift_every_n_steps)
    if drift is not None:
        run.write_section("drift", drift)
    for name, section in method_sections(run, parts).items():
        run.write_section(name, section)
    run.write_section("audit", audit_section(audit, parts))
    run.write_section("settings", settings_section(run, parts))
    guard = guard_section(run.read_log())
    if guard is not None:
        run.write_section("guard", guard)
    if shown is not None:
        run.write_section("prototypes", prototypes_section(run, parts, shown))
    if not outcome.measured:
        run.write_section("verdict", unmeasured_section(run, parts, outcome))
        return
    table = parts.table.take(outcome.rows)
    labels, names = parts.labels[outcome.rows], parts.table.labels()[1]
    result, gallery = outcome.measured[TRAINED].result, outcome.gallery
    subject = Subject(table, run, labels, names, gallery)
    frozen, after, kept = (outcome.measured[name] for name in (FROZEN, TRAINED, outcome.kept))
    found, why = calibrate(kept.rows, labels, query=result.query_index, gallery=gallery)
    note = training_overlap.note(
        parts.settings.model.name, table.take(result.query_index)
    )  # a run may go on from another
    kept = Measured(kept.name, kept.rows, kept.result, found, why, note)
    if outcome.kept == TRAINED:
        after = kept
    line = f"{parts.table.name}, {len(result.query_index):,} queries, seed {parts.settings.seed}"
    verdict = measured.verdict_section(frozen, after, kept=outcome.kept == TRAINED, line=line)
    if outcome.neighbors is not None:
        verdict = neighbors_section(outcome.neighbors, outcome.sentence, line)
    written = {
        "verdict": verdict,
        "table": table_section(outcome),
        "changed": measured.changed_section(subject, frozen, after),
        "extremes": measured.extremes_section(subject, kept),
        "calibration": measured.calibration_section(kept),
        "classes": measured.classes_section(frozen, after, names),
        "map": measured.map_section(subject, [frozen, after]),
    }
    for name, section in written.items():
        run.write_section(name, section)


def method_sections(run: Run, parts: Assembly) -> dict[str, s.Section]:
    """What the method itself has to show, as it was after the last step."""
    kind = methods.find(parts.settings.method.name)
    if not kind.has_report:
        return {}
    last = checkpoint.read(run.checkpoints / checkpoint.LAST)
    model = copy.deepcopy(parts.model)
    checkpoint.put_back(model, last["model"])
    names = parts.table.labels()[1]
    context = ReportContext(
        run=run,
        settings=kind.Settings.parse(parts.settings.method.own()),
        model=model.eval(),
        state=last["method"],
        table=parts.train_table,
        labels=parts.train_labels,
        names=[names[code] for code in np.unique(parts.labels[parts.train]) if code >= 0],
        view=parts.random_view(),
        seed=parts.settings.seed,
    )
    return kind.report_sections(context)


def table_section(outcome: Outcome) -> s.Section:
    """The three models side by side, and trained against each of the others."""
    section = measured.table_section([outcome.measured[name] for name in (FROZEN, START, TRAINED)])
    rows = []
    for name in (FROZEN, START):
        change = outcome.differences[name]["recall@1"]
        values = {k: 100 * getattr(change, k) for k in ("low", "high")}
        rows.append(s.Whisker(name=f"trained − {name}", value=100 * change.difference, **values))
    section.blocks.append(
        s.Whiskers(
            title="Better than both?", rows=rows, label="points of recall@1", reference=0.0, note=outcome.sentence
        )
    )
    return section


def curves_section(run: Run, parts: Assembly, done: TrainingProgress) -> s.Section:
    """Loss and validation measure over the steps; the starting model and step 0 dashed."""
    log = run.read_log()
    loss = [(row["step"], row["loss"]) for row in log if "loss" in row]
    key = f"validation/{parts.settings.metric if parts.settings.metric != 'r_precision' else 'map@r'}"
    score = [(row["step"], row[key]) for row in log if key in row]
    blocks: list[s.Block] = []
    name = measured.measure_name(key.removeprefix("validation/"))
    if score:
        x, y = zip(*score, strict=True)
        series = [s.Series(name=TRAINED, x=list(x), y=list(y))]
        rows = parts.validation
        start = head_rows(parts.first_head, parts.features[rows], parts.first_norm)
        frozen = retrieval(start, parts.labels[rows], recall_at=(1,))
        series.append(s.Series(name=FROZEN, x=[0], y=[frozen.mean()[key.removeprefix("validation/")]], dashed=True))
        series.append(s.Series(name=START, x=[0], y=[y[0]], dashed=True))
        note = f"{len(rows):,} images held out of training to choose the step."
        marks = [s.Mark(x=done.best_step, label=f"best: step {done.best_step}")]
        blocks.append(s.Lines(x_label="step", y_label=f"{name}, validation", series=series, marks=marks, note=note))
    lines = []
    for key, named in (("knn/accuracy@20", "k-NN accuracy"), ("knn/student_accuracy@20", "of the student")):
        near = [(row["step"], row[key]) for row in log if key in row]
        if near:
            x, y = zip(*near, strict=True)
            lines.append(s.Series(name=named, x=list(x), y=list(y)))
    if lines:
        note = f"{len(parts.test):,} held-out images, 20 neighbors among {len(parts.known):,} training images."
        blocks.append(s.Lines(x_label="step", y_label="k-NN accuracy", series=lines, note=note))
    if loss:
        x, y = zip(*loss, strict=True)
        blocks.append(s.Lines(x_label="step", y_label="loss", series=[s.Series(name="loss", x=list(x), y=list(y))]))
    if not blocks:
        blocks.append(s.Text(text="No step was taken."))
    return s.Section(title="Curves", order=s.CURVES, blocks=blocks)


def audit_section(audit: dict[str, Any], parts: Assembly) -> s.Section:
    rows: list[tuple[str, s.Cell]] = [("images", len(parts.table))]
    for name in ("train", "validation", "test"):
        chosen = getattr(parts, name)
        classes = len(np.unique(parts.labels[chosen][parts.labels[chosen] >= 0]))
        rows.append((name, f"{len(chosen):,} images, {classes:,} classes"))
    rows.append(("parted by", parts.division.rule))
    blocks: list[s.Block] = [s.Facts(rows=rows, note=" ".join(parts.division.notes))]
    facts: list[tuple[str, s.Cell]] = [(name.replace("_", " "), value) for name, value in audit.items()]
    if facts:
        blocks.append(s.Facts(title="Audit", rows=facts))
    return s.Section(title="Data", order=s.AUDIT, blocks=blocks)


def settings_section(run: Run, parts: Assembly) -> s.Section:
    text = yaml.safe_dump(parts.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    verb = methods.find(parts.settings.method.name).command
    command = shlex.join(["lookalike", verb, parts.settings.data.source, "--recipe", f"{run.path.name}/config.yaml"])
    return s.Section(
        title="Settings",
        order=s.SETTINGS,
        blocks=[
            s.Code(title="The command that repeats it", text=command),
            s.Code(title="Settings", text=text, folded=True),
            s.Facts(title="Versions", rows=[*package_versions().items()], folded=True),
        ],
    )
