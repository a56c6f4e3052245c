"""A training run from start to end: prepare the images, fit, measure, save, write the result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core import distributed, progress
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.imports import package_versions
from lookalike.core.run import Run
from lookalike.training.settings import TrainSettings, resolve

if TYPE_CHECKING:
    from lookalike.data.table import Table
    from lookalike.training.split import Division

TABLE, PREPARED = "table.parquet", "prepared.json"


def split_images(source: Any, settings: TrainSettings) -> tuple[Table, Division]:
    """Read the images and split them into training, validation and test.

    Args:
        source: A folder, a table file, a list file or a `Table`.
        settings: Settings of the run; `data` and `method.name` are used.

    Returns:
        The table and its split.

    Raises:
        LookalikeError: If there are no images, or too few classes for the split.
    """
    from lookalike import methods
    from lookalike.data import check_classes, read_table
    from lookalike.training.split import divide

    table = read_table(source, layout=settings.data.layout, progress=True)
    labeled = methods.find(settings.method.name).needs_labels
    if labeled:
        small = check_classes(table)
        if small:
            named = ", ".join(f"`{name}`" for name in small[:3]) + (", …" if len(small) > 3 else "")
            count = f"{len(small)} classes have" if len(small) > 1 else "1 class has"
            progress.warn(f"{count} only one image and cannot be retrieved correctly: {named}.")
    division = divide(table, settings.data)
    if not labeled:
        division = division.with_unlabeled(table)
    for note in division.notes:
        progress.say(note)
    return table, division


def _prepare(run: Run, settings: TrainSettings, table: Table, division: Division) -> tuple[Table, Division]:
    """Audit the images, leave out unreadable ones, and record the table in the run."""
    from lookalike.data import audit

    result = audit(
        division.mark(table), near=settings.data.near_duplicates, max_bad=settings.data.max_unreadable, progress=True
    )
    table, division = result.table, division.follow(result.table)
    facts = result.facts()
    if facts["unreadable"]:
        named = "; ".join(f"{row}: {why}" for row, why in result.unreadable[:3])
        count = f"{facts['unreadable']:,} images" if facts["unreadable"] > 1 else "1 image"
        progress.warn(f"{count} cannot be read and will be left out ({named}).")
    across = facts["across_exact"] + facts["across_near"]
    if across:
        count = f"{across:,} groups" if across > 1 else "1 group"
        progress.warn(f"{count} of equal or nearly equal images are on both sides of the split.")
    table.save(run.path / TABLE)
    document = {
        "audit": facts,
        "rule": division.rule,
        "notes": division.notes,
        "unreadable": result.unreadable,
        "fingerprint": table.fingerprint(),
        "versions": package_versions(),
    }
    write_json(run.path / PREPARED, document)
    return table, division


def resumed_images(run: Run, settings: TrainSettings) -> tuple[Table, Division]:
    """The images and the split of a run that is resumed.

    Raises:
        LookalikeError: If the images have changed since the run began.
    """
    from lookalike.data import read_table

    if not (run.path / PREPARED).exists():  # stopped before the images were audited
        return split_images(settings.data.source, settings)
    table, division = load_table(run)
    if table.root is not None and Path(settings.data.source).exists():
        now = read_table(settings.data.source, layout=settings.data.layout, progress=True)
        ids = {row: place for place, row in enumerate(now.column("row_id"))}
        rows = [ids.get(row, -1) for row in table.column("row_id")]
        if min(rows, default=0) < 0 or now.take(rows).fingerprint() != table.fingerprint():
            raise LookalikeError(
                f"The images in `{settings.data.source}` have changed since the run `{run.path}` began; "
                "it cannot be resumed."
            )
    return table, division


def load_table(run: Run) -> tuple[Table, Division]:
    """Load the images of a run and their split."""
    import numpy as np

    from lookalike.data.table import Table
    from lookalike.training.split import Division

    table = Table.load(run.path / TABLE)
    about = read_json(run.path / PREPARED, "run's data")
    none = np.empty(0, np.int64)
    return table, Division(none, none, none, about["rule"], about["notes"]).follow(table)


def say_where(run: Run, settings: TrainSettings) -> None:
    """Print where a resumed run continues, before anything else is read."""
    from lookalike.training import checkpoint

    if (run.checkpoints / checkpoint.LAST).exists():
        step = checkpoint.read(run.checkpoints / checkpoint.LAST)["step"]
        progress.say(f"Resuming at step {step:,} of {settings.steps:,}.")
    else:
        where = "after the check of the images" if (run.path / PREPARED).exists() else "from its start"
        progress.say(f"Resuming {where}: no step was taken yet.")


def run_training(run: Run, settings: TrainSettings, table: Table, division: Division, *, report: bool) -> Run:
    """Prepare, fit, measure, save and report; also continues a run that was stopped.

    Args:
        run: The run folder to write to.
        settings: The complete settings.
        table: All images.
        division: Their split.
        report: Write the images and maps of the report.

    Returns:
        The finished run.
    """
    from lookalike.training.loop import Loop, TrainingProgress
    from lookalike.training.report import last_guard_readings, write_sections
    from lookalike.training.selection import save_models, select_model
    from lookalike.training.setup import build_setup

    seconds: dict[str, float] = {}
    since = time.monotonic()

    def finish(stage: str) -> None:
        nonlocal since
        seconds[stage], since = round(time.monotonic() - since, 2), time.monotonic()

    if not (run.path / PREPARED).exists():
        table, division = _prepare(run, settings, table, division)
    finish("check")
    parts = build_setup(settings, table, division, run)
    loop = Loop(settings, parts, run) if settings.processes == 1 else None
    finish("features")
    if loop is not None:
        done = loop.go(resume=True)
    else:
        done = TrainingProgress(**distributed.launch(fit_in_process, settings.processes, folder=str(run.path))[0])
    finish("train")
    with progress.Progress("Measuring"):
        outcome = select_model(parts, done, run)
    finish("measure")
    about = read_json(run.path / PREPARED, "run's data")
    with progress.Progress("Saving the model and the report"):
        shown = save_models(run, parts, outcome, done)
        if report:
            write_sections(run, parts, done, outcome, about["audit"], shown)
    finish("report")
    readings = last_guard_readings(run.read_log())
    run.write_result(
        finished=True,
        method=settings.method.name,
        model=settings.model.name,
        steps=done.step,
        best_step=done.best_step,
        best_validation=done.best_score,
        stopped_early=done.stopped_early,
        images={name: len(getattr(division, name)) for name in ("train", "validation", "test")},
        classes=parts.classes,
        seconds=seconds,
        audit=about["audit"],
        **({"guard": readings} if readings else {}),
        **outcome.to_json(),
    )
    return run


def fit_in_process(folder: str) -> dict[str, Any]:
    """Run the loop in one of several processes, set up from the run folder and the caches."""
    from dataclasses import asdict

    from lookalike.training.loop import Loop
    from lookalike.training.setup import build_setup

    run = Run(folder)
    settings = resolve(run.config)
    return asdict(Loop(settings, build_setup(settings, *load_table(run), run), run).go(resume=True))
