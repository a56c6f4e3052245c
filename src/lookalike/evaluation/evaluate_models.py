"""The commands `evaluate` and `compare`: from images and models to metrics with confidence intervals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import Progress
from lookalike.core.report_blocks import Figure, Value, Verdict
from lookalike.core.run import Run
from lookalike.data import Table, with_columns
from lookalike.evaluation import clustering
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation.arrays import Bools, Floats, Ints, as_index
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.classification import Classification, classification_split, classify, fine_tune_all
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.results import Evaluation, ModelComparison, ModelRow
from lookalike.evaluation.retrieval import RetrievalResult, retrieval_metrics, verify
from lookalike.evaluation.training_overlap import EvaluatedImages, overlap_note, select_images

if TYPE_CHECKING:
    from lookalike.models import Embedder

MODES = ("auto", "leave-one-out", "query-gallery")
LEVEL = 0.05  # p-value below which models differ


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
    _check(mode, out)
    sources = [*([baseline] if baseline is not None else []), model]
    single_label = knn or probe or linear or retriever or fine_tune
    selection: dict[str, Any] = {"layout": layout, "split": split, "copies": leave_out_copies, "weights": weights}
    selection |= {"include_trained": all, "with_train": single_label or svm, "progress": progress}
    images = select_images(data, sources, **selection)
    if single_label and images.labels.ndim > 1:
        reason = "k-NN, the probe and fine-tuning need one each"
        raise LookalikeError(f"The images of `{images.table.name}` have several labels: {reason}.")
    models = [_embedder(source, device, weights if n == len(sources) - 1 else None) for n, source in enumerate(sources)]
    model_names = [str(one.name) for one in models]
    if len(set(model_names)) < len(models):
        last = sources[-1]
        folder = Path(last).name if isinstance(last, (str, Path)) else ""
        model_names[-1] += f" ({folder if folder not in model_names else models[-1].fingerprint()[:4]})"
    how: dict[str, Any] = {"batch_size": batch_size, "runtime": runtime, "progress": progress}
    encoded = [one.encode(images.table, on_error="skip", **how) for one in models]
    readable, vectors = _readable_rows(len(images.table), encoded)
    images = images.take(readable)
    overlap = images.overlap(model_names, identical=len(models) > len({one.fingerprint() for one in models}))
    classifications: list[Classification | None] = [None] * len(models)
    if single_label or svm:
        members = images.labels.astype(bool) if images.labels.ndim > 1 else None
        codes = images.labels.astype(np.int64) if members is None else np.where(members.any(1), 0, -1)
        split_up = codes, *classification_split(images.table, codes, images.evaluated, seed=seed)
        ways = {"knn": knn, "probe": probe, "retriever": retriever, "svm": svm}
        how = {"seed": seed, "progress": progress}
        plan = {"linear": linear, "few_labels": fine_tune, **how}
        for n, one in enumerate(models):
            classifications[n] = result = classify(vectors[n], *split_up, ways, members=members, **how)
            result.fine_tuned.extend(fine_tune_all(one, images.table, *split_up, **plan))
    if not images.evaluated.all():
        vectors = [rows[images.evaluated] for rows in vectors]
        images = images.take(images.evaluated)
    table, labels = images.table, images.labels
    query, gallery, mode = _query_gallery(table, mode)
    done: Evaluation | None = None
    single = labels.ndim == 1
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    which: dict[str, Any] = {"query": query, "gallery": gallery, "ids": images.ids}
    sizes = np.unique(labels[labels >= 0], return_counts=True)[1]  # of the classes
    for n, (name, rows) in enumerate(zip(model_names, vectors, strict=True)):
        with Progress("Ranking", shown=progress):
            metrics = _metrics(rows, images, coarse=coarse, recall_at=recall_at, top=top, **which)
        fitted, reason, note = None, "", ""
        if calibration and single:
            with Progress("Calibrating", shown=progress):
                fitted, reason = calibrate(rows, labels, **which, seed=seed)
            note = overlap_note(images.known[n], images.made[n, metrics.query_index])
        pairs, agreement = None, None
        if verification and single and len(sizes) > 1 and sizes.max() > 1:
            with Progress("Verifying pairs", shown=progress):
                pairs = verify(rows, labels, ids=images.ids, max_pairs=400_000, seed=seed)
        if nmi and single:
            with Progress("Clustering", shown=progress):
                agreement = clustering.nmi(rows, labels, seed=seed)
        searched = as_index(gallery, len(table), "gallery")
        evaluated_model = EvaluatedModel(name, rows, metrics, fitted, reason, note)
        measured: Any = (pairs, agreement, classifications[n], encoded[-1][1], done, overlap)
        done = Evaluation(table, evaluated_model, labels, images.names, mode, searched, images.ids, *measured)
    assert done is not None
    with Progress("Computing intervals", shown=progress):
        _ = done.verdict
    if out is not None:
        run = Run.create("evaluate", {"data": table.name, "model": done.model.name, "seed": seed}, path=out)
        with run.removed_if_failed(), Progress("Writing the report", shown=progress):
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
        listed = [several] if isinstance(several, str) else several
        names = [name for item in listed for name in (item.split(",") if isinstance(item, str) else [item])]
        if len(names) < 2 or "" in names:
            raise LookalikeError("`models` needs at least two models, as in --models efficientnet_lite0,resnet50.")
        return _compare_models(names, options)
    return evaluate(model=options.pop("b"), baseline=options.pop("a"), **options)


def _compare_models(sources: list[Any], o: dict[str, Any]) -> ModelComparison:
    from lookalike.models.inference.pipeline import CropEncoder
    from lookalike.models.inference.torch_runtime import MIN_IMAGES

    o["copies"], o["include_trained"] = o["leave_out_copies"], o["all"]
    names = ("layout", "split", "copies", "include_trained", "progress")
    _check(o["mode"], o["out"])
    images = select_images(o["data"], sources, **{name: o[name] for name in names})
    how = {key: o[key] for key in ("batch_size", "runtime", "progress")}
    encoded: list[Any] = []
    costs: dict[str, tuple[float, int, int]] = {}
    for source in sources:  # only one model is in memory at a time
        model = _embedder(source, o["device"])
        name = model.name if model.name not in costs else f"{model.name} ({len(costs) + 1})"
        if o["runtime"] == "auto" and len(images.table) >= MIN_IMAGES:
            CropEncoder(model, fast=True)  # a conversion is no cost of embedding: it is made once
        start = time.perf_counter()
        encoded.append(model.encode(images.table, on_error="skip", **how))
        costs[name] = len(images.table) / (time.perf_counter() - start), model.weight_bytes, model.dim
    readable, vectors = _readable_rows(len(images.table), encoded)
    images = images.take(readable)
    query, gallery, _ = _query_gallery(images.table, o["mode"])
    which: dict[str, Any] = {"query": query, "gallery": gallery, "ids": images.ids}
    which |= {key: o[key] for key in ("recall_at", "top")}
    with Progress("Ranking", shown=o["progress"]):
        named = zip(costs, vectors, strict=True)
        models = [EvaluatedModel(name, rows, _metrics(rows, images, **which)) for name, rows in named]
        done = _rank(images, models, costs, encoded[-1][1])
    if o["out"] is not None:
        run = Run.create("evaluate", {"data": done.data, "models": [row.name for row in done.rows]}, path=o["out"])
        with run.removed_if_failed():
            figure = Figure(label="recall@1", value=Value.of(done.rows[0].metrics["recall@1"]))
            verdict = Verdict(message=done.verdict, figures=[figure], line=done.note)
            run.write_section("verdict", sections.verdict_section(verdict))
            ranked = {model.name: model for model in models}
            run.write_section("metrics", sections.table_section([ranked[row.name] for row in reversed(done.rows)]))
            run.write_result(**done.to_json())
    return done


def _rank(images: EvaluatedImages, models: list[EvaluatedModel], costs: dict[str, Any], failed: Any) -> ModelComparison:
    """Order models by recall@1 and test each against the best, paired by query."""
    overlap = images.overlap([model.name for model in models])
    best, *others = sorted(models, key=lambda model: -model.intervals["recall@1"].value)
    changes = {model.name: sections.differences(best, model)["recall@1"] for model in others}
    rows, largest = [ModelRow(best.name, best.intervals, None, None, False, *costs[best.name])], 0.0
    adjusted = {}
    for place, name in enumerate(sorted(changes, key=lambda name: changes[name].p)):  # Holm
        adjusted[name] = largest = max(largest, min(1.0, changes[name].p * (len(changes) - place)))
    for one in others:
        p = adjusted[one.name]
        rows.append(ModelRow(one.name, one.intervals, changes[one.name], p, p >= LEVEL, *costs[one.name]))
    return ModelComparison(images.table.name, len(best.result.query_index), rows, failed, overlap)


def _check(mode: str, out: str | Path | None) -> None:
    choose(mode, MODES, "a mode of evaluation")
    if out is not None:
        Run.check_available(out)


def _metrics(rows: Floats, images: EvaluatedImages, *, recall_at: Sequence[int], **options: Any) -> RetrievalResult:
    metrics = retrieval_metrics(rows, images.labels, recall_at=sorted({1, *recall_at}), **options)  # 1 for the verdict
    if not len(metrics.query_index):
        raise LookalikeError(
            f"No image of `{images.table.name}` has another one of its class: evaluation needs classes with at least "
            f"2 images.{images.hint}"
        )
    return metrics


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


def _readable_rows(count: int, encoded: Sequence[tuple[Floats, list[Any]]]) -> tuple[Bools, list[Floats]]:
    """Which of the images every model read, so that all answer the same queries, and the vectors of these."""
    read = np.ones((len(encoded), count), bool)
    for mask, (_, failures) in zip(read, encoded, strict=True):
        mask[[failure.index for failure in failures]] = False
    readable: Bools = np.asarray(read.all(0))
    return readable, [rows[readable[mask]] for mask, (rows, _) in zip(read, encoded, strict=True)]
