"""One-vs-rest linear SVMs on frozen features and the mean of their average precision, in VOC07's manner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Doubles, Floats, as_rows

COST, TOLERANCE, ITERATIONS, POSITIVE = 0.5, 1e-4, 2000, 2.0
SHOTS, DRAWS = (1, 2, 4, 8, 16), 5


@dataclass(frozen=True)
class Svm:
    """Average precision by class; classes without a positive on either side are left out."""

    precision: dict[int, float]

    @property
    def map(self) -> float:
        return float(np.mean(list(self.precision.values())))

    def to_json(self) -> dict[str, Any]:
        return {"map": self.map, "precision": {str(code): value for code, value in self.precision.items()}}


def svm(train: Any, train_members: Any, test: Any, test_members: Any, *, seed: int = 0) -> Svm:
    """`members` are boolean (rows, classes): an image may show several. Features are brought to length one.

    Squared hinge, C 0.5, positives weigh twice as much, as in the evaluation that the CARP authors took over.
    """
    from sklearn.svm import LinearSVC

    known, asked = (_unit(as_rows(rows, "rows")) for rows in (train, test))
    members, truth = np.asarray(train_members, bool), np.asarray(test_members, bool)
    found: dict[int, float] = {}
    for code in range(members.shape[1]):
        own = members[:, code]
        if not own.any() or own.all() or not truth[:, code].any():
            continue
        machine = LinearSVC(
            C=COST, class_weight={1: POSITIVE, 0: 1.0}, loss="squared_hinge", tol=TOLERANCE, max_iter=ITERATIONS,
            random_state=seed,
        )  # fmt: skip
        machine.fit(known, own.astype(np.int64))
        found[code] = average_precision(machine.decision_function(asked), truth[:, code])
    if not found:
        raise LookalikeError("An SVM needs a class with images on both sides, and images that are not of it.")
    return Svm(found)


def low_shot(
    train: Any, train_members: Any, test: Any, test_members: Any, *, shots: Sequence[int] = SHOTS, seed: int = 0
) -> dict[int, float]:
    """mAP with so many positives of every class and as many negatives, the mean over five draws."""
    rows, members = as_rows(train, "rows"), np.asarray(train_members, bool)
    out: dict[int, float] = {}
    for count in shots:
        values = []
        for draw in range(DRAWS):
            some = _draw(members, count, numpy_rng(seed, "low shot", count, draw))
            values.append(svm(rows[some], members[some], test, test_members, seed=seed).map)
        out[count] = float(np.mean(values))
    return out


def average_precision(scores: Any, relevant: Any) -> float:
    """The area under the curve of precision made non-increasing: VOC's since 2010, not its eleven points."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    hits = np.asarray(relevant, bool)[order]
    if not hits.any():
        raise LookalikeError("There is no average precision where nothing is relevant.")
    precision: Doubles = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(highest[hits].mean())


def _draw(members: Bools, count: int, rng: np.random.Generator) -> Any:
    """Rows with `count` positives of every class (all, of a smaller one); the others are its negatives."""
    chosen = [rng.permutation(np.flatnonzero(members[:, code]))[:count] for code in range(members.shape[1])]
    return np.unique(np.concatenate(chosen))


def _unit(rows: Floats) -> Floats:
    found: Floats = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5)
    return found
