"""One training run on a split: train on one side, evaluate on the other.

The functions here are jobs: plain arguments in, JSON out, so that they run in other processes and their results are
stored by name.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core import progress
from lookalike.core.device import threads
from lookalike.core.files import hash_bytes
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.data.table import Table
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.shift import shared_features
from lookalike.shift.embedding_structure import structure
from lookalike.shift.shared_features import SharedFeatures
from lookalike.training import checkpoint
from lookalike.training.loop import Loop, TrainingProgress
from lookalike.training.selection import query_gallery_masks
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import TrainingSetup
from lookalike.training.setup import build_setup as build_whole_setup
from lookalike.training.split import Division

UNFINISHED = "unfinished"
"""Folder of the runs that are being trained, beside the table."""
FROZEN = "frozen"  # the starting model itself, beside the methods
STRUCTURE_IMAGES = 3000  # images that structural measures are taken on: more do not move them, and cost seconds
MEASURES = ("recall@1", "map@1000", "map@1000_authors", "map@r", "coarse_recall@1")


def trial(
    *,
    table: str,
    train: Sequence[str],
    test: Sequence[str],
    method: str,
    settings: Mapping[str, Any],
    select: str = "validation",
    validation: Sequence[str] = (),
    controls: Mapping[str, Sequence[Sequence[str]]] | None = None,
    transfer: Mapping[str, str] | None = None,
    fingerprint: str = "",
) -> dict[str, Any]:
    """Train on some classes and evaluate retrieval on others.

    Args:
        table: Path of the stored table.
        train: Training classes.
        test: Test classes.
        method: Training method, or ``"frozen"`` for the starting model itself.
        settings: Training settings as a nested mapping.
        select: ``"validation"``, or ``"test"`` to choose the step on the test classes as the authors did.
        validation: Training classes that choose the step; drawn at random if empty.
        controls: Further sets of test classes, by name, on which recall@1 is evaluated (random removals).
        transfer: Further tables, by name, on which the same model is evaluated.
        fingerprint: Identity of the table; only distinguishes the stored jobs.

    Returns:
        The measures, structural measures of the embeddings, the best step, validation scores and seconds.
    """
    resolved = TrainSettings.model_validate(dict(settings))
    with quiet():
        shared = shared_features.load(table, resolved)
        started = time.monotonic()
        rows = shared.rows_of(test)
        if method == FROZEN:
            shared.model.head, shared.model.norm = shared.top
            encode, done = shared.vectors, TrainingProgress()
        else:
            division = divide(shared, resolved, train, test, select, validation)
            rows_of = [side.tolist() for side in (division.train, division.validation, division.test)]
            identity = json.dumps([fingerprint, *rows_of, resolved.model_dump(mode="json")])
            encode, done = train_head(
                shared, resolved, division, Path(table).parent / UNFINISHED / hash_bytes(identity)
            )
        trained = time.monotonic()
        vectors = encode(rows)
        out = retrieval_scores(shared, rows, vectors)
        sample = np.sort(numpy_rng(0, "structure").permutation(len(rows))[:STRUCTURE_IMAGES])
        out["structure"] = structure(vectors[sample], shared.labels[rows][sample])
        out["controls"] = {
            name: [_recall_among(shared, rows, vectors, classes) for classes in sets]
            for name, sets in (controls or {}).items()
        }
        if transfer:
            out["transfer"] = _transfer(shared, resolved, transfer)
    seconds = {"train": round(trained - started, 2), "measure": round(time.monotonic() - trained, 2)}
    return {**out, "best_step": done.best_step, "steps": done.step, "scores": done.scores, "seconds": seconds}


def divide(
    shared: SharedFeatures,
    settings: TrainSettings,
    train: Sequence[str],
    test: Sequence[str],
    select: str = "validation",
    validation: Sequence[str] = (),
) -> Division:
    """Rows for training, validation and test."""
    if select == "test":
        return Division(shared.rows_of(train), shared.rows_of(test), shared.rows_of(test), "shift")
    fraction = settings.data.validation_fraction
    if not validation and fraction and len(train) >= 4:
        order = numpy_rng(settings.data.split_seed, "shift validation").permutation(sorted(train)).tolist()
        size = max(2, round(fraction * len(order)))
        validation = [name for name in order if len(shared.rows_of([name])) >= 2][:size]  # one image finds no other
    training = [name for name in train if name not in set(validation)]
    return Division(shared.rows_of(training), shared.rows_of(validation), shared.rows_of(test), "shift")


def train_head(
    shared: SharedFeatures, settings: TrainSettings, division: Division, folder: Path
) -> tuple[Any, TrainingProgress]:
    """The encoder of row numbers, and how the training went; a killed one goes on from its checkpoint in `folder`."""
    run = Run(folder) if Run.is_run(folder) else Run.create(settings.method.name, {}, path=folder)
    setup: TrainingSetup
    if on_pooled_features(settings):
        setup = shared_features.build_setup(shared, settings, division, run)
    else:
        setup = build_whole_setup(settings, shared.table, division, run)
    encoder = fit(setup, run)
    shutil.rmtree(folder)
    return encoder


def on_pooled_features(settings: TrainSettings) -> bool:
    """Whether runs share features, so that only heads are trained."""
    return settings.views.mode == "cached" and settings.views.layer == "pooled"


def fit(setup: TrainingSetup, run: Run) -> tuple[Any, TrainingProgress]:
    """Run the training loop, from its last checkpoint if there is one, and return to the best step."""
    loop = Loop(setup.settings, setup, run)
    done = loop.go(resume=True)
    checkpoint.load_trainable_state(setup.model, checkpoint.read(run.checkpoints / checkpoint.BEST)["model"])

    def encode(rows: np.ndarray) -> np.ndarray:
        return loop.embed(rows).cpu().numpy()

    return encode, done


def retrieval_scores(shared: SharedFeatures, rows: np.ndarray, vectors: np.ndarray) -> dict[str, Any]:
    """Recall@1 and mAP@1000, corrected and as in the authors' code, by the protocol of the table."""
    table = shared.table.take(rows)
    masks = query_gallery(table, shared.labels[rows])
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    result = retrieval_metrics(vectors, shared.labels[rows], coarse=coarse, recall_at=(1,), top=1000, **masks)
    means = result.mean()
    values = {name: means[name] for name in MEASURES if name in means}
    return {**values, "queries": len(result.query_index), "classes": len(np.unique(shared.labels[rows]))}


def _recall_among(shared: SharedFeatures, rows: np.ndarray, vectors: np.ndarray, classes: Sequence[str]) -> float:
    """Recall@1 among the rows of some of the classes, by the same protocol."""
    among = np.isin(rows, shared.rows_of(classes))
    labels = shared.labels[rows[among]]
    masks = query_gallery(shared.table.take(rows[among]), labels)
    return retrieval_metrics(vectors[among], labels, recall_at=(1,), top=1, **masks).mean()["recall@1"]


def query_gallery(table: Table, labels: np.ndarray) -> dict[str, Any]:
    """Query and gallery masks where the table has them for every class, else none.

    Without masks each image is a query against all others. After swapping, former training classes are tested, and some
    data sets mark queries and gallery only for the other classes.
    """
    masks = query_gallery_masks(table)
    marked = np.unique(labels[masks["query"] | masks["gallery"]]) if masks else labels[:0]
    return masks if np.isin(labels, marked).all() else {}


def _transfer(shared: SharedFeatures, settings: TrainSettings, others: Mapping[str, str]) -> dict[str, Any]:
    """Scores of the current model on other data sets."""
    out = {}
    for name, path in others.items():
        other = shared_features.load(path, settings)
        rows = np.flatnonzero(other.labels >= 0)
        values = retrieval_scores(other, rows, other.vectors(rows, shared_features.copy_head(shared.model)))
        out[name] = {key: values[key] for key in ("recall@1", "map@1000")}
    return out


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence progress messages, and use the number of threads this process may use."""
    torch.set_num_threads(threads())
    level = progress.level()
    progress.set_level(0)
    try:
        yield
    finally:
        progress.set_level(level)
