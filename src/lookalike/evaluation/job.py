"""The verbs `evaluate` and `compare`: images and models in, measured quality with intervals out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.evaluation import training_overlap
from lookalike.evaluation.arrays import Bools, Ints, as_codes, as_index
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.classifying import Classified, classify, sides, tune
from lookalike.evaluation.clustering import nmi as cluster
from lookalike.evaluation.query_images import Measured
from lookalike.evaluation.results import Comparison, Evaluation
from lookalike.evaluation.retrieval import retrieval
from lookalike.evaluation.verification import Verification, verify

if TYPE_CHECKING:
    from lookalike.models import Embedder

MODES = ("auto", "leave-one-out", "query-gallery")


def evaluate(
    *,
    data: str | Path | Table,
    model: str | Path | Embedder = "efficientnet_lite0",
    weights: str | Path | None = None,
    split: str | None = None,
    layout: str = "auto",
    mode: str = "auto",
    baseline: str | Path | Embedder | None = None,
    recall_at: Sequence[int] = (1, 10, 100, 1000),
    top: int = 1000,
    leave_out_copies: bool = False,
    verification: bool = True,
    nmi: bool = False,
    knn: bool = False,
    probe: bool = False,
    linear: bool = False,
    retriever: bool = False,
    svm: bool = False,
    fine_tune: bool = False,
    calibration: bool = True,
    batch_size: int = 32,
    runtime: str = "auto",
    device: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
) -> Evaluation:
    """Measure how well a model finds images of the same class, with intervals; beside a `baseline` if one is given.

    `weights` is a local weight file for a timm name.
    `mode`: query-gallery where the table says which images are which, else leave-one-out. `leave_out_copies`
    takes images of equal pixels out of each other's hits. `knn`, `probe` (a linear classifier to the end, on center
    crops), `linear` (one by 100 epochs of SGD on random crops, which takes long), `retriever` (plain majority, how
    expert the model is as a retriever), `svm` and `fine_tune` (1 % and 10 % of the labels) also let the images of the
    split `train` (without one: four fifths of each class) name the others. `out` makes a run folder with the report's
    sections and every query's figures.
    """
    choose(mode, MODES, "a mode of evaluation")
    if out is not None:
        Run.refuse_taken(out)
    recall_at = sorted({1, *recall_at})  # the verdict speaks of recall@1
    naming = knn or probe or linear or retriever or svm or fine_tune
    table, labels, names, measured = _images(data, layout, split, leave_out_copies, and_train=naming)
    if (knn or probe or linear or retriever or fine_tune) and labels.ndim > 1:
        raise LookalikeError(
            f"The images of `{table.name}` have several labels: k-NN, the probe and fine-tuning need one each."
        )
    models = [_embedder(model, device, weights)]
    models += [_embedder(baseline, device)] if baseline is not None else []
    given = (models[0] if weights else model, baseline)  # a file of weights says nothing of its training
    encoded = [_encode(found, table, batch_size, runtime, progress) for found in models]
    readable = np.ones(len(table), bool)  # by every model, so that both answer the same queries
    for _, failures in encoded:
        readable[[failure.index for failure in failures]] = False
    rows = [_rows(vectors, failures, readable) for vectors, failures in encoded]
    table, labels, measured = table.take(readable), labels[readable], measured[readable]
    named: list[Classified | None] = [None] * len(models)
    if naming:
        several = labels.astype(bool) if labels.ndim > 1 else None
        codes = labels.astype(np.int64) if several is None else np.where(several.any(1), 0, -1)
        known, asked = sides(table, codes, measured, seed=seed)
        how: dict[str, Any] = {"knn": knn, "probe": probe, "retriever": retriever, "svm": svm}
        how |= {"members": several, "seed": seed}
        named = [classify(vectors, codes, known, asked, **how) for vectors in rows]
        for model_found, about in zip(models, named, strict=True):
            assert about is not None
            about.fine_tuned.extend(
                tune(model_found, table, codes, known, asked, linear=linear, few=fine_tune, seed=seed)
            )
    if not measured.all():
        table, labels, rows = table.take(measured), labels[measured], [vectors[measured] for vectors in rows]
    query, gallery, mode = _sides(table, mode)
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    ids = as_codes(table.column("content_id"), len(table), "content ids") if leave_out_copies else None
    done: list[Evaluation] = []
    # The baseline first.
    for found, told, vectors, classified in reversed(list(zip(models, given, rows, named, strict=False))):
        result = retrieval(
            vectors, labels, query=query, gallery=gallery, coarse=coarse, ids=ids, recall_at=recall_at, top=top
        )
        if not len(result.query_index):
            raise LookalikeError(
                f"No image of `{table.name}` has another one of its class to find: evaluation needs classes with "
                "at least 2 images."
            )
        single = labels.ndim == 1
        fitted, why, note = None, "", ""
        if calibration and single:
            fitted, why = calibrate(vectors, labels, query=query, gallery=gallery, ids=ids, seed=seed)
            note = training_overlap.note(told, table.take(result.query_index))
        done.append(
            Evaluation(
                table,
                Measured(_name(found, done), vectors, result, fitted, why, note),
                labels,
                names,
                mode,
                as_index(gallery, len(table), "gallery"),
                ids,
                _verified(vectors, labels, ids, seed) if verification and single else None,
                cluster(vectors, labels, seed=seed) if nmi and single else None,
                classified,
                encoded[0][1],
                done[0] if done else None,
            )
        )
    final = done[-1]
    if out is not None:
        _keep(final, Path(out), seed)
    return final


def compare(
    *,
    data: str | Path | Table,
    a: str | Path | Embedder,
    b: str | Path | Embedder,
    split: str | None = None,
    layout: str = "auto",
    mode: str = "auto",
    recall_at: Sequence[int] = (1, 10, 100, 1000),
    top: int = 1000,
    leave_out_copies: bool = False,
    batch_size: int = 32,
    runtime: str = "auto",
    device: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
) -> Comparison:
    """Two models on the same images, paired by query: the differences, and which one is better if either is."""
    found = evaluate(
        data=data,
        model=b,
        baseline=a,
        split=split,
        layout=layout,
        mode=mode,
        recall_at=recall_at,
        top=top,
        leave_out_copies=leave_out_copies,
        batch_size=batch_size,
        runtime=runtime,
        device=device,
        seed=seed,
        out=out,
        progress=progress,
    )
    assert found.baseline is not None
    return Comparison(found.baseline, found)


def _images(
    data: str | Path | Table, layout: str, split: str | None, copies: bool, *, and_train: bool
) -> tuple[Table, Ints | Bools, list[str], Bools]:
    """The images, their labels and names, and which of them are measured: all, but for added ones to learn from."""
    from lookalike.data import audit, read_table

    whole = read_table(data, layout=layout)
    table = read_table(whole, split=split)
    measured = np.ones(len(table), bool)
    if and_train and split is not None:
        part = whole.column("split")
        measured = np.isin(whole.column("row_id"), table.column("row_id"))
        table, measured = whole.take(measured | (part == "train")), measured[measured | (part == "train")]
    if copies and not table.has("content_id"):
        table = audit(table, near=False).table
    if not table.has("label"):
        raise LookalikeError(f"`{table.name}` has no labels: give a folder with one subfolder a class, or a table.")
    several = pyarrow.types.is_list(table.arrow["label"].type)
    labels, names = table.label_matrix() if several else table.labels()
    if len(names) < 2:
        what = "1 class, so that every hit would be right" if names else "no labels"
        raise LookalikeError(f"`{table.name}` holds {what}; evaluation needs at least 2 classes.")
    return table, labels, names, measured


def _embedder(given: str | Path | Embedder, device: str, weights: str | Path | None = None) -> Embedder:
    if not isinstance(given, (str, Path)):
        return given
    from lookalike.models import Embedder

    return Embedder.from_pretrained(given, device=device, weights=weights)


def _encode(model: Embedder, table: Table, batch_size: int, runtime: str, progress: bool) -> tuple[Any, list[Any]]:
    vectors, failures = model.encode(table, batch_size=batch_size, runtime=runtime, on_error="skip", progress=progress)
    return vectors, failures


def _rows(vectors: Any, failures: list[Any], readable: Bools) -> Any:
    """The vectors of images that every model could read."""
    own = np.ones(len(readable), bool)
    own[[failure.index for failure in failures]] = False
    return vectors[readable[own]]


def _name(model: Embedder, done: list[Evaluation]) -> str:
    name = str(model.name)
    taken = {other.model.name for other in done}
    return name if name not in taken else f"{name} ({model.fingerprint()[:4]})"


def _sides(table: Table, mode: str) -> tuple[Ints | None, Ints | None, str]:
    """Query and gallery rows, None where every row is both."""
    parted = table.has("is_query") and table.has("is_gallery")
    query, gallery = (table.column(n) if parted else np.zeros(len(table), bool) for n in ("is_query", "is_gallery"))
    if mode == "leave-one-out" or (mode == "auto" and not (query.any() and gallery.any())):
        return None, None, "leave-one-out"
    if not (query.any() and gallery.any()):
        raise LookalikeError(f"`{table.name}` does not say which images are queries and which are to be found.")
    return np.flatnonzero(query), np.flatnonzero(gallery), "query-gallery"


def _verified(vectors: Any, labels: Any, ids: Ints | None, seed: int) -> Verification | None:
    known = labels[labels >= 0]
    if len(np.unique(known)) < 2 or len(np.unique(known)) == len(known):
        return None
    return verify(vectors, labels, ids=ids, max_pairs=400_000, seed=seed)


def _keep(found: Evaluation, out: Path, seed: int) -> None:
    run = Run.create("evaluate", {"data": found.table.name, "model": found.model.name, "seed": seed}, path=out)
    with run.or_nothing():
        for name, section in found.sections(run, seed=seed).items():
            run.write_section(name, section)
        found.write_queries(run.path / "queries.csv")
        run.write_result(**found.to_json())
