"""What a run would cost, measured on a few of its images and steps."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lookalike import methods
from lookalike.core import folders
from lookalike.core.files import format_bytes
from lookalike.core.progress import Progress, no_warnings, progress_listener
from lookalike.core.run import Run
from lookalike.core.settings import Settings
from lookalike.data import Table, audit
from lookalike.training.loop import Loop
from lookalike.training.own_parts import OwnParts
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import build_setup
from lookalike.training.split import Division

IMAGES = 320  # enough for the runtime that many images are embedded by
ROWS = 1000  # vectors that metrics are timed on
WARM_UP, STEPS = 2, 3


@dataclass(frozen=True)
class Plan:
    """What a run would do; the result of a dry run.

    Args:
        settings: The complete settings.
        facts: Sizes of what is learned from and the estimated cost, by name.
        seconds: Estimated seconds of every stage.

    Example:
        >>> plan = la.train(data="photos", model="test_efficientnet", steps=4, dry_run=True,
        ...                 settings={"model": {"weights": "random", "size": 32}})
        >>> plan.settings.steps, plan.facts["method"], list(plan.seconds)
        (4, 'ms', ['check', 'features', 'train', 'measure', 'report'])
    """

    settings: Settings
    facts: dict[str, Any]
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Facts, seconds and settings as plain values."""
        return {"facts": self.facts, "seconds": self.seconds, "settings": self.settings.model_dump(mode="json")}

    def __str__(self) -> str:
        width = max(map(len, self.facts)) + 3
        lines = [f"{name:<{width}}{value}" for name, value in self.facts.items()]  # last: they must not scroll away
        return "\n".join([yaml.safe_dump(self.settings.model_dump(mode="json"), sort_keys=False), *lines])


def plan_run(
    settings: TrainSettings, table: Table, division: Division, *, report: bool, objects: OwnParts | None = None
) -> Plan:
    """Count what a run would do, and time a few of its images and steps."""
    codes = table.labels()[0]

    def describe(rows: np.ndarray) -> str:
        return f"{len(rows):,} images, {len(np.unique(codes[rows])):,} classes"

    views = len(table) + settings.views.num_cached * len(division.train)
    pooled = settings.views.mode == "cached" and settings.views.layer == "pooled"
    disk = views * 1280 * 4 if pooled else len(table) * round((settings.model.size or 224) / 0.875) ** 2 * 4
    batch, method, own = settings.sampler.size, methods.find(settings.method.name), settings.method.own()
    in_views = f" in {count} views" if (count := method.views_per_image(own)) > 1 else ""
    measured = _seconds(settings, table, division, report, objects or OwnParts())
    seconds = {name: round(value, 2) for name, value in measured.items()}
    facts = {
        "training": describe(division.train),
        "validation": describe(division.validation),
        "test": describe(division.test),
        "split by": division.rule,
        "method": settings.method.name,
        **method.describe_plan(own, len(division.train), min(batch, len(division.train))),
        "model": settings.model.name,
        "steps": f"{settings.steps:,} of {batch:,} images{in_views}",
        "time": f"about {duration(sum(seconds.values()))} the first time: {describe_stages(seconds)}",
        "disk": f"about {format_bytes(disk)} of cache",
    }
    return Plan(settings, facts, seconds)


def duration(seconds: float) -> str:
    """A duration as people write it, as `42 s` or `7 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def describe_stages(seconds: dict[str, float]) -> str:
    """The stages of a run with their times, as `check 3 s, features 40 s, …`."""
    return ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())


class Stages:
    """Seconds of the stages of a job, in their order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def finish(self, stage: str) -> None:
        """Add the time since the last call to a stage."""
        passed, self._since = time.monotonic() - self._since, time.monotonic()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + passed, 2)


class Timeline:
    """Seconds per unit of every progress bar; the first advance of a bar warms up and is left out."""

    def __init__(self) -> None:
        self.bars: dict[str, dict[int, list[tuple[float, int]]]] = {}

    def __call__(self, bar: Progress) -> None:
        if bar.done:
            self.bars.setdefault(bar.what, {}).setdefault(id(bar), []).append((time.monotonic(), bar.done))

    def each(self, what: str) -> float:
        ends = [(points[0], points[-1]) for points in self.bars.get(what, {}).values()]
        units = sum(last[1] - first[1] for first, last in ends)
        return sum(last[0] - first[0] for first, last in ends) / units if units else 0.0


def _seconds(
    settings: TrainSettings, table: Table, division: Division, report: bool, own: OwnParts
) -> dict[str, float]:
    """Run every stage on a few images, with a cache of its own, and scale it up."""
    few, part = _sample(settings, table, division)
    timeline = Timeline()
    home = tempfile.TemporaryDirectory(prefix="lookalike-plan-")
    with home as folder, folders.temporary_cache(), progress_listener(timeline), no_warnings():
        audited = audit(part.mark(few), near=False, max_bad=1.0).table
        run = Run.create(settings.method.name, {}, path=Path(folder) / "run")
        start = time.monotonic()
        own = copy.deepcopy(replace(own, sampler=None, callbacks=()))  # what is tried here must not be changed by it
        setup = build_setup(settings, audited, part.follow(audited), run, own)
        loop = Loop(settings, setup, run)
        prepared = time.monotonic() - start
        try:
            loop.train_mode()
            steps = [timed(loop.take_step, step) for step in range(1, min(settings.steps, WARM_UP + STEPS) + 1)]
        finally:
            loop.method.close()
        vectors = loop.embed(setup.train[:1]).shape[1]
    views = settings.views.num_cached
    embed, decode = timeline.each("Features"), timeline.each("Decoding")
    more = len(table) - len(few) + views * (len(division.train) - len(part.train))
    step = statistics.median(steps[WARM_UP:] or steps or [0.0])
    pooled = settings.views.mode == "cached" and settings.views.layer == "pooled"
    evaluations = 1 + -(-settings.steps // settings.evaluate_every) if len(division.validation) else 0
    each = 0.0 if pooled else embed  # an evaluation runs the model again
    held, test = len(division.validation), len(division.test)
    metrics = {rows: _measure_seconds("metrics", rows, vectors) for rows in {held, test}}
    out = {
        "check": timeline.each("Checking images") * len(table),
        "features": prepared + embed * more + decode * (len(table) - len(few)),
        "train": settings.steps * step + evaluations * (each * held + metrics[held]),
        "measure": each * test + 3 * metrics[test] + _measure_seconds("tests", test, 2),
    }
    return {**out, "report": _measure_seconds("maps", test, vectors)} if report else out


def _sample(settings: TrainSettings, table: Table, division: Division) -> tuple[Table, Division]:
    """Rows for a whole batch of training images, and a few of the others."""
    chosen, train, codes = settings.sampler, division.train, table.labels()[0]
    if chosen.kind == "shuffle":
        train = train[: 2 * chosen.batch_size]
    elif len(train):
        groups = [train[codes[train] == code] for code in np.unique(codes[train])]
        largest = sorted(groups, key=len, reverse=True)[: 2 * chosen.classes_per_batch]
        train = np.concatenate([rows[: max(chosen.images_per_class, 2)] for rows in largest])
    spare = np.setdiff1d(np.arange(len(table)), train)
    rest = spare[:: max(len(spare) // max(IMAGES - len(train), 1), 1)][: max(IMAGES - len(train), 0)]
    rows = np.union1d(train, rest)
    train, validation, test = (np.flatnonzero(np.isin(rows, s)) for s in (train, division.validation, division.test))
    return table.take(rows), replace(division, train=train, validation=validation, test=test)


def timed(function: Callable[..., object], *arguments: object, **options: object) -> float:
    """Seconds of a call."""
    start = time.monotonic()
    function(*arguments, **options)
    return time.monotonic() - start


def _measure_seconds(kind: str, count: int, dim: int) -> float:
    """Seconds of measuring `count` images, timed on random vectors.

    `metrics`: retrieval metrics of one model, whose products grow with the square of the images. `tests`: twelve
    intervals and eight paired tests of the three models. `maps`: two maps of the test images.
    """
    from lookalike.core.seeds import numpy_rng
    from lookalike.evaluation import bootstrap
    from lookalike.evaluation.projection import project
    from lookalike.evaluation.report_sections import MAP_POINTS
    from lookalike.evaluation.retrieval import retrieval_metrics

    count = min(count, MAP_POINTS) if kind == "maps" else count
    few = count if kind == "tests" else min(count, ROWS if kind == "metrics" else ROWS // 2)
    if few < 4:
        return 0.0
    rows, groups = numpy_rng(0, "plan").standard_normal((few, dim)).astype(np.float32), np.arange(few)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "metrics":
        return timed(retrieval_metrics, rows, groups // 2) * (count / few) ** 2
    if kind == "maps":
        return 2 * timed(project, rows) * count / few
    one, other = rows[:, 0], rows[:, 1]
    intervals = timed(bootstrap.bootstrap_interval, one, groups=groups)
    return 12 * intervals + 8 * timed(bootstrap.paired_test, one, other, groups=groups)
