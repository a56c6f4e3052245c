"""One run along a curve: train on one side of a split, measure on the other.

The product's own loop takes the steps; around it nothing is computed twice. Functions here are jobs: plain
arguments in, JSON out, so that they run in other processes and are stored by name.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core import progress
from lookalike.core.device import threads
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.data.table import Table
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.shift import shared_features
from lookalike.shift.embedding_structure import structure
from lookalike.shift.shared_features import SharedFeatures
from lookalike.training import checkpoint
from lookalike.training.loop import Loop, TrainingProgress
from lookalike.training.selection import query_gallery_masks
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import TrainingSetup
from lookalike.training.setup import build_setup as assemble_whole
from lookalike.training.split import Division

FROZEN = "frozen"  # the starting model itself, beside the methods
STRUCTURE = 3000  # images that structural measures are taken on: more do not move them, and cost seconds
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
    """Recall and mAP on the classes `test` after training on the classes `train`.

    `validation` are training classes that choose the step (drawn otherwise).
    `controls` are other sets of test classes (by a name) to measure recall on: what removal does by itself.
    `transfer` names other tables to measure the same model on. `fingerprint` only tells tables apart.
    """
    chosen = TrainSettings.model_validate(dict(settings))
    with quiet():
        found = shared_features.load(table, chosen)
        started = time.monotonic()
        rows = found.rows_of(test)
        if method == FROZEN:
            found.model.head, found.model.norm = found.top
            encode, done = found.vectors, TrainingProgress()
        else:
            division = divide(found, chosen, train, test, select, validation)
            encode, done = _train(found, chosen, division)
        trained = time.monotonic()
        vectors = encode(rows)
        out = retrieval_scores(found, rows, vectors)
        some = np.sort(numpy_rng(0, "structure").permutation(len(rows))[:STRUCTURE])
        out["structure"] = structure(vectors[some], found.labels[rows][some])
        out["controls"] = {
            name: [_recall_among(found, rows, vectors, classes) for classes in sets]
            for name, sets in (controls or {}).items()
        }
        if transfer:
            out["transfer"] = _transfer(found, chosen, transfer)
    seconds = {"train": round(trained - started, 2), "measure": round(time.monotonic() - trained, 2)}
    return {**out, "best_step": done.best_step, "steps": done.step, "scores": done.scores, "seconds": seconds}


def divide(
    found: SharedFeatures,
    settings: TrainSettings,
    train: Sequence[str],
    test: Sequence[str],
    select: str = "validation",
    validation: Sequence[str] = (),
) -> Division:
    """The training classes less some that choose the step: `validation`, or a share drawn at random.

    `select="test"` is the authors' way: the test classes choose.
    """
    if select == "test":
        return Division(found.rows_of(train), found.rows_of(test), found.rows_of(test), "shift")
    share = settings.data.validation_fraction
    if not validation and share and len(train) >= 4:
        order = numpy_rng(settings.data.split_seed, "shift validation").permutation(sorted(train)).tolist()
        wanted = max(2, round(share * len(order)))
        validation = [name for name in order if len(found.rows_of([name])) >= 2][:wanted]  # one image finds no other
    kept = [name for name in train if name not in set(validation)]
    return Division(found.rows_of(kept), found.rows_of(validation), found.rows_of(test), "shift")


def _train(found: SharedFeatures, settings: TrainSettings, division: Division) -> tuple[Any, TrainingProgress]:
    """(encode(rows), how the training went)."""
    with tempfile.TemporaryDirectory(prefix="lookalike-shift-") as folder:
        run = Run.create(settings.method.name, {}, path=Path(folder) / "run")
        parts: TrainingSetup
        if settings.views.mode == "cached" and settings.views.layer == "pooled":
            parts = shared_features.build_setup(found, settings, division, run)
        else:
            parts = assemble_whole(settings, found.table, division, run)
        return fit(parts, run)


def fit(parts: TrainingSetup, run: Run) -> tuple[Any, TrainingProgress]:
    """Take the steps, go back to the best one, and give what embeds any rows of the table."""
    loop = Loop(parts.settings, parts, run)
    done = loop.go()
    checkpoint.load_trainable_state(parts.model, checkpoint.read(run.checkpoints / checkpoint.BEST)["model"])

    def encode(rows: np.ndarray) -> np.ndarray:
        return loop.embed(rows).cpu().numpy()

    return encode, done


def retrieval_scores(found: SharedFeatures, rows: np.ndarray, vectors: np.ndarray) -> dict[str, Any]:
    """Recall@1 and mAP@1000, corrected and as the authors have it, with the query and gallery sets of the table."""
    table = found.table.take(rows)
    how = query_gallery(table, found.labels[rows])
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    result = retrieval_metrics(vectors, found.labels[rows], coarse=coarse, recall_at=(1,), top=1000, **how)
    means = result.mean()
    values = {name: means[name] for name in MEASURES if name in means}
    return {**values, "queries": len(result.query_index), "classes": len(np.unique(found.labels[rows]))}


def _recall_among(found: SharedFeatures, rows: np.ndarray, vectors: np.ndarray, classes: Sequence[str]) -> float:
    """Recall@1 among the rows of some of the classes, with the same query and gallery sets."""
    kept = np.isin(rows, found.rows_of(classes))
    labels = found.labels[rows[kept]]
    how = query_gallery(found.table.take(rows[kept]), labels)
    return retrieval_metrics(vectors[kept], labels, recall_at=(1,), top=1, **how).mean()["recall@1"]


def query_gallery(table: Table, labels: np.ndarray) -> dict[str, Any]:
    """Query and gallery where the table has them for every class; else none, and each image asks all others. After
    swapping, classes that were for training are tested, and some data sets part only the others."""
    how = query_gallery_masks(table)
    marked = np.unique(labels[how["query"] | how["gallery"]]) if how else labels[:0]
    return how if np.isin(labels, marked).all() else {}


def recall_at_1(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Recall@1 of every row among the others."""
    _, index = top_k(vectors, vectors, 1, exclude=np.arange(len(vectors)))
    return float((labels[index[:, 0]] == labels).mean())


def _transfer(found: SharedFeatures, settings: TrainSettings, others: Mapping[str, str]) -> dict[str, Any]:
    """The model as it is now on other data sets."""
    out = {}
    for name, path in others.items():
        other = shared_features.load(path, settings)
        rows = np.flatnonzero(other.labels >= 0)
        values = retrieval_scores(other, rows, other.vectors(rows, shared_features.copy_head(found.model)))
        out[name] = {key: values[key] for key in ("recall@1", "map@1000")}
    return out


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A worker says nothing, and uses the threads it was given."""
    torch.set_num_threads(threads())
    level = progress.level()
    progress.set_level(0)
    try:
        yield
    finally:
        progress.set_level(level)
