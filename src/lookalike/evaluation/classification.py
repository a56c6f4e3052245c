"""Classification with frozen features: train images name test images, by neighbors or by a fitted classifier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress
from lookalike.core.report_blocks import number
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation import probes
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints, as_common_codes, as_rows
from lookalike.evaluation.bootstrap import Interval, bootstrap_interval
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.verdicts import interval_text

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models import Embedder

KNN_NEIGHBORS, KNN_TEMPERATURE = 20, 0.07  # as the literature on self-supervised learning evaluates features
KNN_COUNTS = (10, 20, 100, 200)
RETRIEVER_COUNTS = (1, 3, 5, 10, 20, 50, 100)
MAJORITY_TEMPERATURE = 1e6  # so flat that every neighbor counts the same, and only ties go to the more similar
LABEL_FRACTIONS = (0.01, 0.1)
BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class KnnResult:
    """Accuracy by k, and the predicted class of each row for each k."""

    accuracy: dict[int, float]
    predicted: dict[int, Ints]


def weighted_knn(
    train: Any,
    train_labels: Any,
    test: Any,
    test_labels: Any,
    *,
    k: int | Sequence[int] = 20,
    temperature: float = 0.07,
) -> KnnResult:
    """Classify test rows by a weighted vote of their nearest train rows.

    A row takes the class with the largest sum of exp(score / temperature) over its k nearest train rows. Rows without
    a label are left out.

    Args:
        train: Train vectors.
        train_labels: Their labels.
        test: Test vectors.
        test_labels: Their labels.
        k: Number of neighbors, or several to compare.
        temperature: Temperature of the weights.

    Returns:
        Accuracy and predictions for each k. Predictions are codes: the labels themselves if they are integers, else
        positions in the sorted list of all labels.

    References:
        Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", section 3.4.

    Example:
        >>> from lookalike.evaluation import weighted_knn
        >>> rows = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
        >>> weighted_knn(rows, [0, 0, 1], rows[::-1], [1, 0, 0], k=1).accuracy
        {1: 1.0}
    """
    counts = sorted({k} if isinstance(k, int) else set(k))
    x, queries = as_rows(train, "train rows"), as_rows(test, "test rows")
    codes, truth = as_common_codes(train_labels, test_labels, (len(x), len(queries)))
    x, codes = x[codes >= 0], codes[codes >= 0]
    queries, truth = queries[truth >= 0], truth[truth >= 0]
    if not len(x) or not len(queries) or counts[0] < 1:
        raise LookalikeError("weighted_knn needs labeled train and test rows, and k of at least 1.")
    classes, codes = np.unique(codes, return_inverse=True)
    scores, index = top_k(queries, x, min(counts[-1], len(x)))
    predicted = {n: classes[_vote(scores[:, :n], codes[index[:, :n]], len(classes), temperature)] for n in counts}
    return KnnResult({n: float((guess == truth).mean()) for n, guess in predicted.items()}, predicted)


def _vote(scores: Floats, codes: Ints, classes: int, temperature: float) -> Ints:
    """The winning class of each row, ties to the lower code."""
    weights: Doubles = np.exp((scores - scores[:, :1]).astype(np.float64) / temperature)  # the best neighbor weighs 1
    out = np.empty(len(scores), np.int64)
    step = max(1, BLOCK_BYTES // (8 * classes))
    for start in range(0, len(scores), step):
        part = codes[start : start + step]
        flat = part + classes * np.arange(len(part))[:, None]
        votes = np.bincount(flat.ravel(), weights[start : start + step].ravel(), classes * len(part))
        out[start : start + step] = votes.reshape(len(part), classes).argmax(axis=1)
    return out


@dataclass(frozen=True)
class RetrieverKnn:
    """Accuracy by majority vote, the chosen k, and the accuracy of every k on the train rows that chose it."""

    k: int
    accuracy: Interval
    tried: dict[int, float]


def retriever_knn(vectors: Any, labels: Ints, train: Bools, test: Bools, *, seed: int = 0) -> RetrieverKnn:
    """Measure how good a model is as a retriever: k-NN accuracy by majority vote.

    References:
        The T3AR paper, supplement, table 5.
    """
    order = numpy_rng(seed, "choice of k").permutation(np.flatnonzero(train))
    aside, rest = np.split(order, [max(1, len(order) // 10)])
    if not len(rest):
        raise LookalikeError("Scoring a retriever needs at least 2 train images.")
    counts = [k for k in RETRIEVER_COUNTS if k <= len(rest)]

    def majority(train: Any, test: Any, k: int | Sequence[int]) -> KnnResult:
        sides = (vectors[train], labels[train], vectors[test], labels[test])
        return weighted_knn(*sides, k=k, temperature=MAJORITY_TEMPERATURE)

    tried = majority(rest, aside, counts).accuracy
    k = max(counts, key=lambda n: (tried[n], -n))
    final = majority(train, test, k)
    return RetrieverKnn(k, bootstrap_interval(final.predicted[k] == labels[test], groups=labels[test]), tried)


@dataclass(frozen=True)
class Classification:
    """Accuracies on the test images."""

    train: int  # number of images
    test: int
    knn: Interval | None = None  # by 20 neighbors
    probe: Interval | None = None
    retriever: RetrieverKnn | None = None
    knn_at: dict[int, float] = field(default_factory=dict)  # by number of neighbors
    svm: float | None = None  # mAP
    low_shot: dict[int, float] = field(default_factory=dict)  # mAP by number of positives of each class
    fine_tuned: list[probes.FineTuneResult] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> dict[str, str]:
        """Name → value of each figure, for tables."""
        named = {"k-NN accuracy": self.knn, "Linear probe accuracy": self.probe}
        out = {name: interval_text(accuracy) for name, accuracy in named.items() if accuracy is not None}
        if self.retriever is not None:
            text = f"{interval_text(self.retriever.accuracy)}, k = {self.retriever.k}"
            out["As a retriever: k-NN by majority"] = text
        if self.knn_at:
            out[f"k-NN accuracy, {_joined(self.knn_at)} neighbors"] = _joined(map(number, self.knn_at.values()))
        if self.svm is not None:
            out["One-vs-rest SVM mAP"] = number(self.svm)
            out[f"SVM mAP, {_joined(self.low_shot)} of each class"] = _joined(map(number, self.low_shot.values()))
        for tuned in self.fine_tuned:
            title = "Linear, by SGD" if tuned.linear else f"Fine-tuned on {100 * tuned.fraction:g} %"
            out[f"{title} ({tuned.labeled:,} images): top-1 / top-5"] = f"{number(tuned.top1)} / {number(tuned.top5)}"
        return out


def _joined(values: Iterable[Any]) -> str:
    return " / ".join(map(str, values))


def classification_split(table: Table, labels: Ints, evaluated: Bools, *, seed: int) -> tuple[Bools, Bools]:
    """Masks of train and test rows: the split `train` and the evaluated rows, or without one a fifth of each class."""
    labeled = labels >= 0
    if table.has("split"):
        split = table.column("split")
        train, test = labeled & (split == "train"), labeled & evaluated & (split != "train")
        if (test & (split == "test")).any():
            test &= split == "test"
        if train.any() and test.any():
            if not np.isin(labels[test], labels[train]).any():
                raise LookalikeError(
                    f"The split of `{table.name}` has no class in both train and test: k-NN and the linear probe need "
                    "images of the same classes on both sides."
                )
            return train, test
    labeled &= evaluated
    test = np.zeros(len(table), bool)
    test[labeled] = probes.hold_out_fifth(labels[labeled], seed)
    if not test.any():
        raise LookalikeError("k-NN and the linear probe need classes with at least 3 images, or a split `train`.")
    return labeled & ~test, test


def classify(
    rows: Any, labels: Ints, train: Bools, test: Bools, ways: dict[str, bool], members: Any, seed: int, progress: bool
) -> Classification:
    """Classify the test rows by the train rows, in the requested ways: `knn`, `probe`, `retriever`, `svm`."""
    sides, truth = (rows[train], labels[train], rows[test], labels[test]), labels[test]
    out: dict[str, Any] = {}
    if ways["knn"]:
        with Progress("Classifying by neighbors", shown=progress):
            result = weighted_knn(*sides, k=KNN_COUNTS, temperature=KNN_TEMPERATURE)
            interval = bootstrap_interval(result.predicted[KNN_NEIGHBORS] == truth, groups=truth)
        out |= {"knn": interval, "knn_at": result.accuracy}
    if ways["probe"]:
        with Progress("Fitting the linear probe", shown=progress):
            correct = probes.linear_probe(*sides, seed=seed).correct
        out["probe"] = bootstrap_interval(correct, groups=truth)
    if ways["retriever"]:
        with Progress("Classifying by majority", shown=progress):
            out["retriever"] = retriever_knn(rows, labels, train, test, seed=seed)
    if ways["svm"]:
        matrix = labels[:, None] == np.unique(labels[train]) if members is None else members
        both = (rows[train], matrix[train], rows[test], matrix[test])
        with Progress("Fitting SVMs", shown=progress):
            out["svm"] = float(np.mean(list(probes.linear_svm(*both, seed=seed).values())))
        out["low_shot"] = probes.low_shot_svm(*both, seed=seed, progress=progress)
    return Classification(int(train.sum()), int(test.sum()), **out)


def fine_tune_all(
    model: Embedder, table: Table, codes: Ints, train: Bools, test: Bools, *, linear: bool, few_labels: bool, **how: Any
) -> list[probes.FineTuneResult]:
    """Classify the test images after training on random crops of the train images."""
    sides = (model, table.take(train), codes[train], table.take(test), codes[test])
    plans = [(1.0, probes.LINEAR)] * linear + [(part, probes.FEW_LABELS) for part in LABEL_FRACTIONS] * few_labels
    return [probes.fine_tune(*sides, fraction=fraction, schedule=schedule, **how) for fraction, schedule in plans]
