"""How long ``shift run`` will take, from timing a few images, steps and measurements on this machine."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core import folders, progress
from lookalike.core.device import threads
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.data.table import Table
from lookalike.evaluation.projection import project
from lookalike.shift import shared_features
from lookalike.shift.class_swaps import Names, swap_states
from lookalike.shift.embedding_structure import structure
from lookalike.shift.experiment import summary
from lookalike.shift.fid import ClassFID
from lookalike.shift.make_splits import default_sides
from lookalike.shift.shared_features import SharedFeatures
from lookalike.shift.shift_report import POINTS
from lookalike.shift.split_set import SplitSet, data_facts
from lookalike.shift.trials import FROZEN, divide, on_pooled_features, quiet, retrieval_scores, train_head
from lookalike.training.estimate import STEPS, WARM_UP, Stages, Timeline, plan_run, timed
from lookalike.training.loop import Loop
from lookalike.training.settings import TrainSettings
from lookalike.training.split import Division

SAMPLE = 128  # images that features are timed on
MOST = 2000  # images of a side that steps and measurements are timed on
MAPPED = 500  # points that a map is timed on
WORKER_SECONDS = 5.0  # until a process of its own has loaded torch


def running_time(
    config: Mapping[str, Any],
    tables: Sequence[Table],
    stored: SplitSet | None,
    settings_of: Callable[..., TrainSettings],
    workers: int,
    *,
    report: bool,
) -> dict[str, float]:
    """Seconds that the stages of ``shift run`` will take; what is cached takes less.

    Args:
        config: Options of the run.
        tables: The images, then those of ``transfer``.
        stored: The splits, if a file has them.
        settings_of: Returns the training settings of a method and a starting model.
        workers: Number of parallel runs.
        report: Whether the report's sections will be written.
    """
    table, counts = tables[0], data_facts(tables[0])["classes"]
    if stored is None:
        sides = [tuple(list(counts)[code] for code in side) for side in default_sides(table)]
    else:
        sides = [stored.splits[0].train, stored.splits[0].test]
    splits = max(2, len(config["only"] or range(config["count"] if stored is None else len(stored.splits))))
    trials, out = splits * config["seeds"], dict.fromkeys(("splits", "features", "runs", "report"), 0.0)
    home = tempfile.TemporaryDirectory(prefix="lookalike-plan-")
    with home as folder, folders.temporary_cache(), progress.no_warnings(), quiet():
        torch.set_num_threads(1 if workers > 1 else threads())
        for model in config["models"]:
            settings = settings_of(None, model)
            each, prepared, small = _features(table, settings)
            views = 1 + settings.views.num_cached * (settings.views.mode == "cached")
            out["features"] += prepared + each * views * sum(map(len, tables))
            sample = _sample(table, sides, small, settings)
            train, test = (tuple(name for name in side if name in sample.names) for side in sides)
            if stored is None and not out["splits"]:
                out["splits"] = _splits(sample, train, test, len(sides[0])) + each * len(table)  # at the center crop
                out["features"] -= each * len(table)
            rows = sample.rows_of(test)
            vectors = sample.vectors(rows)
            retrieval = timed(retrieval_scores, sample, rows, vectors) / len(rows) ** 2
            of_vectors = structure(vectors, sample.labels[rows])
            tested = sum(counts[name] for name in sides[1])
            measure = retrieval * tested**2 + timed(structure, vectors, sample.labels[rows])
            out["runs"] += splits * measure  # the frozen model
            division = divide(sample, settings, train, test, config["select"])
            for method in config["methods"]:
                chosen = settings_of(method, model)
                if on_pooled_features(chosen):
                    learn = _training(sample, chosen, division, Path(folder))
                else:
                    learn = plan_run(chosen, sample.table, division, report=False).seconds["train"]
                out["runs"] += trials * (learn + measure)
                out["runs"] += config["seeds"] * sum(retrieval * len(other) ** 2 for other in tables[1:])
        if report:
            out["report"] = _report(config, splits, of_vectors, vectors, len(table))
    if workers > 1:
        out["runs"] = out["runs"] / min(workers, trials * len(config["methods"])) + WORKER_SECONDS
    return {name: round(seconds, 2) for name, seconds in out.items()}


def _features(table: Table, settings: TrainSettings) -> tuple[float, float, SharedFeatures]:
    """Seconds of the features of an image, those of preparing, and the center crops of some images."""
    few = table.take(np.unique(np.linspace(0, len(table) - 1, SAMPLE).astype(int)))
    center = settings.model_copy(update={"views": settings.views.model_copy(update={"num_cached": 0})})
    timeline, stages = Timeline(), Stages()
    with progress.progress_listener(timeline):
        small = shared_features.prepare(few, center)
    stages.finish("prepared")
    each = timeline.each("Features")
    return each, max(0.0, stages.seconds["prepared"] - each * len(few)), small


def _sample(table: Table, sides: Sequence[Names], small: SharedFeatures, settings: TrainSettings) -> SharedFeatures:
    """Some classes of both sides with random features: what they are does not change the time."""
    codes, names = table.labels()
    places, counts = {name: code for code, name in enumerate(names)}, np.bincount(codes[codes >= 0])
    chosen: list[int] = []
    for side in sides:
        classes = [places[name] for name in side]
        chosen += classes[: max(4, int(np.searchsorted(np.cumsum(counts[classes]), MOST)) + 1)]
    part = table.take(np.flatnonzero(np.isin(codes, chosen)))
    shape = (len(part), small.features.shape[1])
    features = np.abs(numpy_rng(0, "running time").standard_normal(shape, np.float32))
    count = settings.views.num_cached
    views = np.broadcast_to(features, (count, *shape)) if count and settings.views.mode == "cached" else None
    return SharedFeatures(part, *part.labels(), small.model, features, views)


def _training(sample: SharedFeatures, settings: TrainSettings, division: Division, folder: Path) -> float:
    """Seconds of a training run: one step with all around it, and the other steps."""
    one = settings.model_copy(update={"steps": 1, "evaluate_every": 1})
    around = min(timed(train_head, sample, one, division, folder / "one") for _ in range(2))
    run = Run.create(settings.method.name, {}, path=folder / "run")
    loop = Loop(settings, shared_features.build_setup(sample, settings, division, run), run)
    with contextlib.closing(loop.method):
        loop.train_mode()
        steps = [timed(loop.take_step, step) for step in range(1, min(settings.steps, WARM_UP + STEPS) + 1)]
    shutil.rmtree(run.path)
    return around + (settings.steps - 1) * statistics.median(steps[WARM_UP:] or steps)


def _splits(sample: SharedFeatures, train: Names, test: Names, size: int) -> float:
    """Seconds of all FIDs of a sequence of swaps and removals, with so many classes on a side."""
    class_fid = ClassFID(sample.features, sample.labels)
    sides = [tuple(sample.names.index(name) for name in side) for side in (train, test)]
    few = [(sides[0], sides[1])] * (2 * threads())
    return min(timed(class_fid.along, few) for _ in range(2)) / len(few) * swap_states(size)


def _report(
    config: Mapping[str, Any], splits: int, of_vectors: Mapping[str, float], vectors: np.ndarray, images: int
) -> float:
    """Seconds of the summary, which the report repeats in part, and of the map."""
    rng = numpy_rng(0, "running time")
    rows = []
    for model, method, split in itertools.product(config["models"], (*config["methods"], FROZEN), range(splits)):
        for seed in range(config["seeds"] if method != FROZEN else 1):
            about = {"method": method, "model": model, "split": split, "fid": float(split), "seed": seed}
            values = {name: float(rng.random()) for name in ("recall@1", "map@1000")}
            rows.append({**about, **values, "structure": {name: float(rng.random()) for name in of_vectors}})
    mapped = timed(project, vectors[:MAPPED]) * min(POINTS, images) / min(MAPPED, len(vectors))
    return 2 * timed(summary, rows, config) + mapped
