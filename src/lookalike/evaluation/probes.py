"""Classifiers fitted on a model: linear probe and SVMs on frozen features, and fine-tuning.

Fine-tuning follows the schedules of the CARP paper, SGD on random crops and flips: with few labels the backbone is
trained too, on 1 % or 10 % of the training images (section 5.3 and appendix C.2, after SimCLR); the linear evaluation
trains the classifier alone, on all of them (appendix C.1, with the learning rate steps of its source, MoCo).
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress, track
from lookalike.core.seeds import numpy_rng, torch_rng
from lookalike.evaluation.arrays import Bools, Doubles, Floats, Ints, as_common_codes, as_rows

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models import Embedder

WEIGHT_DECAYS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
SVM: dict[str, Any] = {"C": 0.5, "class_weight": {1: 2.0, 0: 1.0}, "tol": 1e-4, "max_iter": 2000}
SHOTS, LOW_SHOT_DRAWS = (1, 2, 4, 8, 16), 5
BATCH_SIZE, MOMENTUM = 256, 0.9


@dataclass(frozen=True)
class ProbeResult:
    """Result of :func:`linear_probe`."""

    accuracy: float
    weight_decay: float
    tried: dict[float, float]  # weight decay → accuracy on the held-out part of the train rows
    correct: Bools  # of each labeled test row


def linear_probe(
    train: Any,
    train_labels: Any,
    test: Any,
    test_labels: Any,
    *,
    held_out: Any = None,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    iterations: int = 100,
    seed: int = 0,
) -> ProbeResult:
    """Fit a multinomial logistic regression on frozen features and measure its accuracy.

    The weight decay is chosen on held-out train rows; the classifier is then fitted on all train rows.

    Args:
        train: Train vectors.
        train_labels: Their labels; rows without one are left out.
        test: Test vectors.
        test_labels: Their labels.
        held_out: Mask of the train rows that choose the weight decay; by default a fifth of each class.
        weight_decays: The weight decays to try.
        iterations: At most so many iterations of L-BFGS for each fit.
        seed: Seed of the held-out rows.

    Returns:
        The accuracy on the test rows, and how the classifier was fitted.

    Example:
        >>> from lookalike.evaluation import linear_probe
        >>> rows, labels = np.repeat(np.eye(3), 10, axis=0), np.repeat(["a", "b", "c"], 10)
        >>> linear_probe(rows, labels, rows, labels).accuracy
        1.0
    """
    x, queries = as_rows(train, "train rows"), as_rows(test, "test rows")
    codes, truth = as_common_codes(train_labels, test_labels, (len(x), len(queries)))
    x, codes = x[codes >= 0], codes[codes >= 0]
    classes = len(np.unique(codes))
    if classes < 2:
        raise LookalikeError(f"A linear probe needs at least 2 classes; there are {classes}.")
    center = x.mean(axis=0)
    scale = float(np.sqrt(np.square(x - center).mean())) or 1.0  # one number: directions keep their weight
    x, queries = (x - center) / scale, (queries - center) / scale
    aside = hold_out_fifth(codes, seed) if held_out is None else np.asarray(held_out, dtype=bool)
    tried: dict[float, float] = {}
    if len(weight_decays) > 1 and aside.any() and not aside.all():
        model = None
        for weight_decay in sorted(weight_decays, reverse=True):  # each starts where the last one ended
            model = _logistic_regression(x[~aside], codes[~aside], weight_decay, iterations, model)
            tried[weight_decay] = float((model.predict(x[aside]) == codes[aside]).mean())
    best = max(tried, key=lambda d: (tried[d], d)) if tried else weight_decays[0]
    predicted = _logistic_regression(x, codes, best, iterations).predict(queries)
    correct = np.asarray(predicted == truth)[truth >= 0]
    return ProbeResult(float(correct.mean()) if len(correct) else float("nan"), best, tried, correct)


def hold_out_fifth(codes: Ints, seed: int) -> Bools:
    """Draw a fifth of the rows of each class, rounded; classes of one or two rows stay whole."""
    order = numpy_rng(seed, "probe").permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    _, start, size = np.unique(codes[order], return_index=True, return_counts=True)
    place = np.arange(len(codes)) - np.repeat(start, size)
    out = np.zeros(len(codes), bool)
    out[order] = place < np.repeat(np.round(size / 5), size)
    return out


def _logistic_regression(x: Floats, codes: Ints, weight_decay: float, iterations: int, start: Any = None) -> Any:
    """Fit mean cross-entropy + weight_decay / 2 · |W|², the bias without decay."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    # scikit-learn fits two classes by one vector w instead of ±w / 2, whose squares sum to half as much.
    binary = len(np.unique(codes)) == 2
    model = LogisticRegression(C=(1 + binary) / (weight_decay * len(x)), tol=1e-6, max_iter=iterations, warm_start=True)
    if start is not None:
        model.coef_, model.intercept_ = start.coef_, start.intercept_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, codes)


def linear_svm(train: Any, train_members: Any, test: Any, test_members: Any, *, seed: int = 0) -> dict[int, float]:
    """Fit one-vs-rest linear SVMs on unit features and measure the average precision by class, as is usual for VOC07.

    Squared hinge loss, C = 0.5, positives weigh twice as much, as in the evaluation the CARP authors use. Members are
    boolean matrices (rows, classes). Classes without a positive image on either side are left out.
    """
    from sklearn.svm import LinearSVC

    x, queries = (as_rows(rows, "rows") for rows in (train, test))
    x, queries = (rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5) for rows in (x, queries))
    members, truth = np.asarray(train_members, bool), np.asarray(test_members, bool)
    precision: dict[int, float] = {}
    for code in range(members.shape[1]):
        own = members[:, code]
        if not own.any() or own.all() or not truth[:, code].any():
            continue
        machine = LinearSVC(loss="squared_hinge", random_state=seed, **SVM).fit(x, own.astype(np.int64))
        precision[code] = average_precision(machine.decision_function(queries), truth[:, code])
    if not precision:
        raise LookalikeError("An SVM needs a class with images on both sides, and images that are not of it.")
    return precision


def low_shot_svm(
    train: Any, train_members: Any, *test: Any, shots: Sequence[int] = SHOTS, seed: int = 0, progress: bool = False
) -> dict[int, float]:
    """Compute the mAP of SVMs fitted on few positives of each class, the mean over five draws."""
    rows, members = as_rows(train, "rows"), np.asarray(train_members, bool)
    values: dict[int, list[float]] = {count: [] for count in shots}
    draws = list(itertools.product(shots, range(LOW_SHOT_DRAWS)))
    for count, draw in track(draws, "Fitting SVMs on few images", shown=progress):
        rng = numpy_rng(seed, "low shot", count, draw)
        chosen = [rng.permutation(np.flatnonzero(members[:, code]))[:count] for code in range(members.shape[1])]
        some = np.unique(np.concatenate(chosen))  # the positives of a class are the negatives of the others
        precision = linear_svm(rows[some], members[some], *test, seed=seed)
        values[count].append(float(np.mean(list(precision.values()))))
    return {count: float(np.mean(each)) for count, each in values.items()}


def average_precision(scores: Any, relevant: Any) -> float:
    """Compute the area under the precision-recall curve made non-increasing, as VOC does since 2010."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    hits = np.asarray(relevant, bool)[order]
    if not hits.any():
        raise LookalikeError("Average precision needs at least one relevant item.")
    precision: Doubles = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(highest[hits].mean())


@dataclass(frozen=True)
class FineTuneSchedule:
    """Schedule of :func:`fine_tune`."""

    epochs: int
    backbone_lr: float  # 0 freezes it
    classifier_lr: float
    milestones: tuple[int, int]  # epochs at which both learning rates are multiplied by `gamma`
    gamma: float


FEW_LABELS = FineTuneSchedule(20, 0.002, 0.5, (12, 16), 0.2)
LINEAR = FineTuneSchedule(100, 0.0, 0.3, (60, 80), 0.1)


@dataclass(frozen=True)
class FineTuneResult:
    """Result of :func:`fine_tune`."""

    linear: bool  # the classifier alone was trained
    fraction: float  # of the train images
    labeled: int  # number of these images
    top1: float
    top5: float


def sample_labels(labels: Ints, fraction: float, seed: int) -> Ints:
    """Draw rows of a fraction of every class, at least one each."""
    rows = []
    for code in np.unique(labels[labels >= 0]):
        own = np.flatnonzero(labels == code)
        count = max(1, round(fraction * len(own)))
        rows.append(numpy_rng(seed, "few labels", fraction, int(code)).permutation(own)[:count])
    if len(rows) < 2:
        raise LookalikeError(f"Fine-tuning needs at least 2 classes; there are {len(rows)}.")
    return np.sort(np.concatenate(rows))


def fine_tune(
    model: Embedder,
    train: Table,
    train_labels: Ints,
    test: Table,
    test_labels: Ints,
    *,
    fraction: float,
    schedule: FineTuneSchedule = FEW_LABELS,
    seed: int = 0,
    progress: bool = False,
) -> FineTuneResult:
    """Train a classifier on a copy of the model and measure its accuracy.

    Batch-norm statistics stay frozen: those of so few images would be worse.
    """
    import torch
    from torch import nn

    from lookalike.data import PixelCache, RandomView

    rows = sample_labels(train_labels, fraction, seed)
    classes, codes = np.unique(train_labels[rows], return_inverse=True)
    network = copy.deepcopy(model).requires_grad_(schedule.backbone_lr > 0).eval()  # eval: statistics frozen
    layer = nn.Linear(network.feature_dim, len(classes)).to(network.device)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(layer.weight.shape, generator=torch_rng(seed, "classifier")))
        layer.bias.zero_()
    groups = [
        {"params": [*network.backbone.parameters(), *network.pooling.parameters()], "lr": schedule.backbone_lr},
        {"params": layer.parameters(), "lr": schedule.classifier_lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM)
    pre = network.preprocess
    view, pixels = RandomView(pre, scale=(0.08, 1.0)), PixelCache(train.take(rows), round(pre.size / pre.crop))
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, schedule.milestones, schedule.gamma)
    what = "Training a linear classifier" if schedule.backbone_lr == 0 else f"Fine-tuning on {100 * fraction:g} %"
    with Progress(what, schedule.epochs * len(rows), shown=progress) as bar:
        for epoch in range(schedule.epochs):
            order = numpy_rng(seed, "order", epoch).permutation(len(rows))
            for start in range(0, len(order), BATCH_SIZE):
                part = order[start : start + BATCH_SIZE]
                images = np.stack([view(pixels.get(int(i)), numpy_rng(seed, "view", epoch, int(i))) for i in part])
                logits = layer(network.pooled(torch.from_numpy(images).to(network.device)))
                loss = nn.functional.cross_entropy(logits, torch.from_numpy(codes[part]).to(network.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                bar.advance(len(part))
            steps.step()
    labeled = test_labels >= 0
    features = torch.from_numpy(network.features(test.take(labeled), runtime="torch")).to(network.device)
    predicted = layer(features).topk(min(5, len(classes)), dim=1).indices.cpu().numpy()
    right = classes[predicted] == test_labels[labeled][:, None]
    top1, top5 = float(right[:, 0].mean()), float(right.any(1).mean())
    return FineTuneResult(schedule.backbone_lr == 0, fraction, len(rows), top1, top5)
