"""The commands `evaluate` and `compare`: from images and models to metrics with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import Progress, say
from lookalike.core.run import Run
from lookalike.data import Table, with_columns
from lookalike.evaluation import clustering, compare_models
from lookalike.evaluation.arrays import Bools, Floats, Ints, as_codes, as_index
from lookalike.evaluation.calibration import calibrate
from lookalike.evaluation.classification import Classification, classification_split, classify, fine_tune_all
from lookalike.evaluation.compare_models import ModelComparison
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.results import Evaluation, Overlap
from lookalike.evaluation.retrieval import RetrievalResult, retrieval_metrics
from lookalike.evaluation.training_overlap import KnownImages, known_images, overlap_note
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
    sources = [*([baseline] if baseline is not None else []), model]
    single_label = knn or probe or linear or retriever or fine_tune
    selection: dict[str, Any] = {"layout": layout, "split": split, "mode": mode, "copies": leave_out_copies}
    selection |= {"include_trained": all, "with_train": single_label or svm, "weights": weights, "out": out}
    images = _read(data, sources, **selection, progress=progress)
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
    readable, vectors = compare_models.readable_rows(len(images.table), encoded)
    images = images.take(readable)
    overlap = images.overlap(model_names, identical=len(models) > len({one.fingerprint() for one in models}))
    classifications: list[Classification | None] = [None] * len(models)
    if single_label or svm:
        members = images.labels.astype(bool) if images.labels.ndim > 1 else None
        codes = images.labels.astype(np.int64) if members is None else np.where(members.any(1), 0, -1)
        split_up = codes, *classification_split(images.table, codes, images.evaluated, seed=seed)
        how = {"knn": knn, "probe": probe, "retriever": retriever, "svm": svm, "members": members}
        how |= {"seed": seed, "progress": progress}
        plan: dict[str, Any] = {"linear": linear, "few_labels": fine_tune, "seed": seed, "progress": progress}
        for n, one in enumerate(models):
            classifications[n] = result = classify(vectors[n], *split_up, **how)
            result.fine_tuned.extend(fine_tune_all(one, images.table, *split_up, **plan))
    vectors = [rows[images.evaluated] for rows in vectors]
    images = images.take(images.evaluated)
    table, labels = images.table, images.labels
    query, gallery, mode = _query_gallery(table, mode)
    done: Evaluation | None = None
    single = labels.ndim == 1
    coarse = table.labels("coarse")[0] if table.has("coarse") else None
    which: dict[str, Any] = {"query": query, "gallery": gallery, "ids": images.ids}
    for n, (name, rows) in enumerate(zip(model_names, vectors, strict=True)):
        with Progress("Ranking", shown=progress):
            metrics = _metrics(rows, images, coarse=coarse, recall_at=recall_at, top=top, **which)
        fitted, reason, note = None, "", ""
        if calibration and single:
            with Progress("Calibrating", shown=progress):
                fitted, reason = calibrate(rows, labels, **which, seed=seed)
            note = overlap_note(images.known[n], images.made[n, metrics.query_index])
        pairs, agreement = None, None
        if verification and single:
            with Progress("Verifying pairs", shown=progress):
                pairs = _verify(rows, labels, images.ids, seed)
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
        return _compare_models(compare_models.names_of(several), options)
    return evaluate(model=options.pop("b"), baseline=options.pop("a"), **options)


def _compare_models(sources: list[Any], o: dict[str, Any]) -> ModelComparison:
    o["copies"], o["include_trained"] = o["leave_out_copies"], o["all"]
    names = ("layout", "split", "mode", "copies", "include_trained", "out", "progress")
    images = _read(o["data"], sources, **{name: o[name] for name in names})
    how = {key: o[key] for key in ("batch_size", "runtime", "progress")}
    made = compare_models.encode_all(sources, images.table, partial(_embedder, device=o["device"]), how)
    encoded, costs = zip(*made.values(), strict=True)
    readable, vectors = compare_models.readable_rows(len(images.table), encoded)
    images = images.take(readable)
    query, gallery, _ = _query_gallery(images.table, o["mode"])
    which: dict[str, Any] = {"query": query, "gallery": gallery, "ids": images.ids}
    which |= {key: o[key] for key in ("recall_at", "top")}
    named, overlap = zip(made, vectors, strict=True), images.overlap(list(made))
    with Progress("Ranking", shown=o["progress"]):
        models = [EvaluatedModel(name, rows, _metrics(rows, images, **which)) for name, rows in named]
        return compare_models.rank(images.table.name, models, costs, encoded[-1][1], overlap, o["out"])


@dataclass(frozen=True)
class _Images:
    """The images to evaluate, and those that only classify them."""

    table: Table
    labels: Ints | Bools
    names: list[str]
    evaluated: Bools
    known: list[KnownImages | None]  # what is known of each model's training
    made: Any  # (models, images): the split of an image that made the model, else empty
    left_out: Any  # the same of images that are not evaluated because they made a model
    include_trained: bool
    copies: bool  # leave copies out of each other's hits
    hint: str  # for errors: how many images are left out

    @cached_property
    def ids(self) -> Ints | None:
        """Content ids, by which copies are left out."""
        return as_codes(self.table.column("content_id"), len(self.table), "content ids") if self.copies else None

    def take(self, rows: Bools) -> _Images:
        some: dict[str, Any] = {"table": self.table.take(rows), "labels": self.labels[rows]}
        return replace(self, evaluated=self.evaluated[rows], made=self.made[:, rows], **some)

    def overlap(self, names: list[str], *, identical: bool = False) -> Overlap:
        trained = (self.made[:, self.evaluated] if self.include_trained else self.left_out) != ""
        trained_models = [name for name, rows in zip(names, trained, strict=True) if rows.any()]
        unknown = [name for name, images in zip(names, self.known, strict=True) if images is None]
        counts = int(self.evaluated.sum()), int(trained.any(0).sum())
        return Overlap(*counts, trained_models, unknown, not self.include_trained, identical)


def _read(
    data: str | Path | Table,
    sources: Sequence[Any],
    *,
    weights: str | Path | None = None,
    layout: str,
    split: str | None,
    mode: str,
    copies: bool,
    include_trained: bool,
    with_train: bool = False,
    out: str | Path | None,
    progress: bool,
) -> _Images:
    """Read the images, and find those that trained one of the models.

    Without `include_trained` no image that trained a model is evaluated. Those of the table's split `train` may be
    added `with_train`, to classify by.
    """
    from lookalike.data import read_table

    choose(mode, MODES, "a mode of evaluation")
    if out is not None:
        Run.check_available(out)
    known = [known_images(source) for source in sources]
    if weights is not None:
        known[-1] = None  # a file with weights says nothing of its training
    table = read_table(data, layout=layout)
    find: dict[str, Any] = {"contents": {}, "progress": progress}
    selected = np.ones(len(table), bool)
    own_split = table.has("split")
    if split is None and own_split and not include_trained:
        split = default_split(table)
    if split not in (None, "all"):
        marked, images = table, next((images for images in reversed(known) if images and images.has_splits), None)
        if not own_split and images and any(splits := images.find(table, **find)[0]):
            marked = table.with_column("split", pyarrow.array(splits, pyarrow.string()))
        selected = np.isin(table.column("row_id"), read_table(marked, split=split).column("row_id"))
    made = np.full((len(known), len(table)), "", dtype="<U5")
    for rows, images in zip(made, known, strict=True):
        if images is not None:
            rows[selected] = images.find(table.take(selected), **find)[1]
    evaluated = selected if include_trained else selected & (made == "").all(0)
    if selected.any() and not evaluated.any():
        raise LookalikeError(
            f"A model was trained on all {selected.sum():,} images, or chosen by them: give other images, or --all to "
            "measure on these."
        )
    rows = evaluated
    if with_train and own_split and not evaluated.all():
        rows = evaluated | (table.column("split") == "train")
    left_out = made[:, selected & ~evaluated]
    count = left_out.shape[1]
    hint = f" {count:,} images that trained a model are left out; --all includes them." if count else ""
    table, labels, names = _labels(table.take(rows), copies, hint)
    return _Images(table, labels, names, evaluated[rows], known, made[:, rows], left_out, include_trained, copies, hint)


def _metrics(rows: Floats, images: _Images, *, recall_at: Sequence[int], **options: Any) -> RetrievalResult:
    metrics = retrieval_metrics(rows, images.labels, recall_at=sorted({1, *recall_at}), **options)  # 1 for the verdict
    if not len(metrics.query_index):
        raise LookalikeError(
            f"No image of `{images.table.name}` has another one of its class: evaluation needs classes with at least "
            f"2 images.{images.hint}"
        )
    return metrics


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
        audited = audit(table, near=False).table
        ids = dict(zip(audited.column("row_id"), audited.column("content_id"), strict=True))
        table = table.with_column("content_id", [ids.get(row_id) for row_id in table.column("row_id")])
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
