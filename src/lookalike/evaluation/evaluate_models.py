"""The commands `evaluate` and `compare`: from images and models to metrics with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import say
from lookalike.core.run import Run
from lookalike.data import Table, with_columns
from lookalike.evaluation import clustering, compare_models
from lookalike.evaluation.arrays import Bools, Ints, as_codes, as_index
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.classification import Classification, classification_split, classify, fine_tune_all
from lookalike.evaluation.compare_models import ModelComparison
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.results import Evaluation, Overlap
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.evaluation.training_overlap import KnownImages, image_keys, known_images, overlap_note
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
    all: bool = False,  # noqa: A002 -- the option `--all`
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
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
    """Measure how well a model finds images of the same class.

    Computes recall@k, mAP@k, MAP@R and R-precision with 95 % intervals, on images that did not train the model. The
    options `knn`, `probe`, `linear`, `retriever`, `svm` and `fine_tune` also measure classification: images of the
    split `train` (without one, four fifths of each class) name the others.

    Args:
        data: Folder or table of labeled images.
        model: Model name, model folder or run.
        weights: Local file with weights for a timm model name.
        split: Evaluate only this split, of the data or else of the model's run; `all` for every image. By default the
            data's own test split, if it has one.
        all: Also evaluate images that a model was trained on, which are left out by default.
        layout: Layout of the data.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        mode: Which images are queries. `query-gallery` takes the marked ones, `leave-one-out` every image; `auto` is
            `query-gallery` if the table marks queries.
        baseline: Second model to compare with, on the same queries.
        recall_at: The k of recall@k.
        top: Depth of mAP.
        leave_out_copies: Leave images with equal pixels out of each other's hits.
        verification: Measure the error rates of deciding whether two images show the same class.
        nmi: Measure how well k-means clusters agree with the classes.
        knn: Measure k-NN classification with 10, 20, 100 and 200 neighbors.
        probe: Measure a linear probe on center crops, fitted to convergence.
        linear: Measure a linear classifier trained for 100 epochs on random crops (slow).
        retriever: Measure k-NN classification by plain majority.
        svm: Measure one-vs-rest linear SVMs, also with few images of each class.
        fine_tune: Measure fine-tuning on 1 % and 10 % of the labels (slow).
        calibration: Fit the probability that a hit shows the same thing.
        batch_size: Images encoded at a time.
        runtime: Runtime that encodes the images.
        device: Device that encodes the images.
        seed: Seed of everything that is drawn.
        out: Run folder to write the report sections and the metrics of every query to.
        progress: Show progress.

    Returns:
        The metrics, with the baseline's and the paired differences if there is one.

    Example:
        >>> evaluation = la.evaluate(data="photos", recall_at=(1, 2))  # doctest: +SKIP
        >>> print(evaluation)  # doctest: +SKIP
    """
    layout = with_columns(layout, image_column, label_column, split_column)
    choose(mode, MODES, "a mode of evaluation")
    if out is not None:
        Run.check_available(out)
    recall_at = sorted({1, *recall_at})  # the verdict is on recall@1
    single_label = knn or probe or linear or retriever or fine_tune
    sources = [*([baseline] if baseline is not None else []), model]
    known = [known_images(source) for source in sources]
    if weights is not None:
        known[-1] = None  # a file with weights says nothing of its training
    table, evaluated, trained = _images(data, layout, split, known, include_trained=all, with_train=single_label or svm)
    left_out = 0 if all else int(trained.any(0).sum())
    hint = f" {left_out:,} images that trained a model are left out; --all includes them." if left_out else ""
    table, labels, names = _labels(table, leave_out_copies, hint)
    if single_label and labels.ndim > 1:
        reason = "k-NN, the probe and fine-tuning need one each"
        raise LookalikeError(f"The images of `{table.name}` have several labels: {reason}.")
    models = [_embedder(source, device, weights if n == len(sources) - 1 else None) for n, source in enumerate(sources)]
    model_names = [str(one.name) for one in models]
    if len(set(model_names)) < len(models):
        last = sources[-1]
        folder = Path(last).name if isinstance(last, (str, Path)) else ""
        model_names[-1] += f" ({folder if folder not in model_names else models[-1].fingerprint()[:4]})"
    overlap = Overlap(
        int(evaluated.sum()),
        int(trained.any(0).sum()),
        [name for name, rows in zip(model_names, trained, strict=True) if rows.any()],
        [name for name, images in zip(model_names, known, strict=True) if images is None],
        left_out=not all,
        identical=len(models) > len({one.fingerprint() for one in models}),
    )
    how: dict[str, Any] = {"batch_size": batch_size, "runtime": runtime, "progress": progress}
    encoded = [one.encode(table, on_error="skip", **how) for one in models]
    read = np.ones((len(models), len(table)), bool)
    for mask, (_, failures) in zip(read, encoded, strict=True):
        mask[[failure.index for failure in failures]] = False
    readable: Bools = np.asarray(read.all(0))  # by every model, so that both answer the same queries
    vectors = [rows[readable[mask]] for mask, (rows, _) in zip(read, encoded, strict=True)]
    table, labels, evaluated = table.take(readable), labels[readable], evaluated[readable]
    classifications: list[Classification | None] = [None] * len(models)
    if single_label or svm:
        members = labels.astype(bool) if labels.ndim > 1 else None
        codes = labels.astype(np.int64) if members is None else np.where(members.any(1), 0, -1)
        train, test = classification_split(table, codes, evaluated, seed=seed)
        how = {"knn": knn, "probe": probe, "retriever": retriever, "svm": svm, "members": members}
        for n, one in enumerate(models):
            result = classify(vectors[n], codes, train, test, seed=seed, **how)
            plan: dict[str, Any] = {"linear": linear, "few_labels": fine_tune, "seed": seed}
            result.fine_tuned.extend(fine_tune_all(one, table, codes, train, test, **plan))
            classifications[n] = result
    if not evaluated.all():
        table, labels, vectors = table.take(evaluated), labels[evaluated], [rows[evaluated] for rows in vectors]
    query, gallery, mode = _query_gallery(table, mode)
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    ids = as_codes(table.column("content_id"), len(table), "content ids") if leave_out_copies else None
    done: Evaluation | None = None
    single = labels.ndim == 1
    sides: dict[str, Any] = {"query": query, "gallery": gallery, "ids": ids}
    for name, trained_on, rows, classification in zip(model_names, known, vectors, classifications, strict=True):
        metrics = retrieval_metrics(rows, labels, **sides, coarse=coarse, recall_at=recall_at, top=top)
        if not len(metrics.query_index):
            raise LookalikeError(
                f"No image of `{table.name}` has another one of its class: evaluation needs classes with at least 2 "
                f"images.{hint}"
            )
        fitted, reason, note = None, "", ""
        if calibration and single:
            fitted, reason = calibrate(rows, labels, **sides, seed=seed)
            note = overlap_note(trained_on, table.take(metrics.query_index))
        searched = as_index(gallery, len(table), "gallery")
        pairs = _verify(rows, labels, ids, seed) if verification and single else None
        agreement = clustering.nmi(rows, labels, seed=seed) if nmi and single else None
        evaluated_model = EvaluatedModel(name, rows, metrics, fitted, reason, note)
        measured: Any = (pairs, agreement, classification, encoded[-1][1], done, overlap)
        done = Evaluation(table, evaluated_model, labels, names, mode, searched, ids, *measured)
    assert done is not None
    if out is not None:
        run = Run.create("evaluate", {"data": table.name, "model": done.model.name, "seed": seed}, path=out)
        with run.removed_if_failed():
            for name, section in done.sections(run, seed=seed).items():
                run.write_section(name, section)
            done.write_queries(run.path / "queries.csv")
            run.write_result(**done.to_json())
    return done


def compare(
    *,
    data: str | Path | Table,
    a: str | Path | Embedder | None = None,
    b: str | Path | Embedder | None = None,
    models: str | Sequence[Any] | None = None,
    split: str | None = None,
    all: bool = False,  # noqa: A002 -- the option `--all`
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
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
) -> Evaluation | ModelComparison:
    """Compare models on the same images, paired by query.

    Of two models, `a` and `b`: the difference of every metric with its interval and p-value, and which model is better
    if either is. Of several `models`: which to start from: one table with intervals, the best one, those that tie with
    it, and what each costs.

    Args:
        data: Folder or table of labeled images.
        a: First model: name, model folder or run.
        b: Second model.
        models: Several models in place of `a` and `b`, separated by commas.
        split: Evaluate only this split, of the data or else of the model's run; `all` for every image. By default the
            data's own test split, if it has one.
        all: Also evaluate images that a model was trained on, which are left out by default.
        layout: Layout of the data.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        mode: Which images are queries. `query-gallery` takes the marked ones, `leave-one-out` every image; `auto` is
            `query-gallery` if the table marks queries.
        recall_at: The k of recall@k.
        top: Depth of mAP.
        leave_out_copies: Leave images with equal pixels out of each other's hits.
        batch_size: Images encoded at a time.
        runtime: Runtime that encodes the images.
        device: Device that encodes the images.
        seed: Seed of everything that is drawn.
        out: Run folder to write the report sections and the metrics of every query to.
        progress: Show progress.

    Returns:
        The evaluation of b, with that of a as its `baseline` and the paired differences b − a; of several models
        their comparison.

    Example:
        >>> la.compare(data="photos", a="resnet18", b="efficientnet_lite0").verdict  # doctest: +SKIP
        'No difference was found between resnet18 and efficientnet_lite0: recall@1 …'
    """
    layout = with_columns(layout, image_column, label_column, split_column)
    options: dict[str, Any] = dict(locals())
    several = options.pop("models")
    if (several is None) == (a is None or b is None) or (several is not None and (a is not None or b is not None)):
        raise LookalikeError("Give two models with --a and --b, or several with --models.")
    if several is not None:
        return _compare_models(compare_models.names_of(several), options)
    return evaluate(model=options.pop("b"), baseline=options.pop("a"), **options)


def _compare_models(sources: list[Any], o: dict[str, Any]) -> ModelComparison:
    choose(o["mode"], MODES, "a mode of evaluation")
    out = None if o["out"] is None else Path(o["out"])
    if out is not None:
        Run.check_available(out)
    known = [known_images(source) for source in sources]
    table, *_ = _images(o["data"], o["layout"], o["split"], known, include_trained=o["all"], with_train=False)
    table, labels, _ = _labels(table, o["leave_out_copies"], "")
    how = {key: o[key] for key in ("batch_size", "runtime", "progress")}
    made, readable, failures = compare_models.encode_all(sources, table, lambda one: _embedder(one, o["device"]), how)
    table, labels = table.take(readable), labels[readable]
    query, gallery, _ = _query_gallery(table, o["mode"])
    ids = as_codes(table.column("content_id"), len(table), "content ids") if o["leave_out_copies"] else None
    which: dict[str, Any] = {"query": query, "gallery": gallery, "ids": ids, "top": o["top"]}
    which["recall_at"] = sorted({1, *o["recall_at"]})
    models = [EvaluatedModel(one["name"], one["rows"], retrieval_metrics(one["rows"], labels, **which)) for one in made]
    if not len(models[0].result.query_index):
        raise LookalikeError(
            f"No image of `{table.name}` has another one of its class: evaluation needs classes with at least 2 images."
        )
    return compare_models.rank(table.name, models, [one["cost"] for one in made], failures, out)


def _images(
    data: str | Path | Table,
    layout: str,
    split: str | None,
    known: list[KnownImages | None],
    *,
    include_trained: bool,
    with_train: bool,
) -> tuple[Table, Bools, Bools]:
    """The images, which of them are evaluated, and which of the selected images trained which model.

    Without `include_trained` no image that trained a model is evaluated. Those of the table's split `train` may be
    added `with_train`, to classify by.
    """
    from lookalike.data import read_table

    table = read_table(data, layout=layout)
    keys = image_keys(table)
    selected = np.ones(len(table), bool)
    own_split = table.has("split")
    if split is None and own_split and not include_trained:
        split = default_split(table)
    if split == "all":
        split = None
    if split is not None:
        splits = next((images.splits for images in reversed(known) if images and images.splits), {})
        if not own_split and any(key in splits for key in keys):
            marked = table.with_column("split", pyarrow.array(map(splits.get, keys), pyarrow.string()))
        else:
            marked = table
        selected = np.isin(table.column("row_id"), read_table(marked, split=split).column("row_id"))
    trained = np.array([[images is not None and key in images.made for key in keys] for images in known])
    trained &= selected
    evaluated = selected if include_trained else selected & ~trained.any(0)
    if selected.any() and not evaluated.any():
        raise LookalikeError(
            f"A model was trained on all {selected.sum():,} images, or chosen by them: give other images, or --all to "
            "measure on these."
        )
    rows = evaluated
    if with_train and own_split and not evaluated.all():
        rows = evaluated | (table.column("split") == "train")
    return table.take(rows), evaluated[rows], trained


def default_split(table: Table) -> str | None:
    """Return the split to measure on: the table's own test split, or its validation split; None for all images."""
    from lookalike.data.readers.columns import split_counts, unused_split

    there = set(table.column("split"))
    own = next((name for name in ("test", "val") if name in there), None)
    if own is None or "train" not in there:
        if unused := unused_split(table):
            say(unused)
        return None
    counts = split_counts(table.column("split"))
    say(f"`{table.name}` has a split of its own ({counts}): measured on `{own}`; --split all measures on every image.")
    return own


def _labels(table: Table, copies: bool, hint: str) -> tuple[Table, Ints | Bools, list[str]]:
    """The labels and class names; with `copies` the table gets content ids."""
    from lookalike.data import audit
    from lookalike.data.readers.columns import hint as column_hint

    if copies and not table.has("content_id"):
        table = audit(table, near=False).table
    if not table.has("label"):
        raise LookalikeError(
            f"`{table.name}` has no labels: give a folder with one subfolder per class, or a table."
            f"{column_hint(table, 'label')}"
        )
    multilabel = pyarrow.types.is_list(table.arrow["label"].type)
    labels, names = table.label_matrix() if multilabel else table.labels()
    if len(names) < 2:
        what = "1 class, so that every hit would be right" if names else "no labels"
        raise LookalikeError(f"`{table.name}` holds {what}; evaluation needs at least 2 classes.{hint}")
    return table, labels, names


def _embedder(model: str | Path | Embedder, device: str, weights: str | Path | None = None) -> Embedder:
    if not isinstance(model, (str, Path)):
        return model
    from lookalike.models import Embedder

    return Embedder.from_pretrained(model, device=device, weights=weights)


def _query_gallery(table: Table, mode: str) -> tuple[Ints | None, Ints | None, str]:
    """Query and gallery rows, None if every row is both."""
    marked = table.has("is_query") and table.has("is_gallery")
    query, gallery = (table.column(n) if marked else np.zeros(len(table), bool) for n in ("is_query", "is_gallery"))
    if mode == "leave-one-out" or (mode == "auto" and not (query.any() and gallery.any())):
        return None, None, "leave-one-out"
    if not (query.any() and gallery.any()):
        raise LookalikeError(f"`{table.name}` does not say which images are queries and which are the gallery.")
    return np.flatnonzero(query), np.flatnonzero(gallery), "query-gallery"


def _verify(vectors: Any, labels: Any, ids: Ints | None, seed: int) -> Verification | None:
    labeled = labels[labels >= 0]
    if len(np.unique(labeled)) < 2 or len(np.unique(labeled)) == len(labeled):
        return None
    return verify(vectors, labels, ids=ids, max_pairs=400_000, seed=seed)
