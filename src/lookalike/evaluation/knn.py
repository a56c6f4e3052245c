"""Classification by weighted nearest neighbors: a label-free check of features, as in the SSL literature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.arrays import Doubles, Floats, Ints, as_common_codes, as_rows
from lookalike.evaluation.neighbors import top_k

BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Knn:
    """Accuracy by k, and the predicted class of each row for each k."""

    accuracy: dict[int, float]
    predicted: dict[int, Ints]

    def to_json(self) -> dict[str, Any]:
        return {"accuracy": {str(k): v for k, v in self.accuracy.items()}}


def weighted_knn(
    train: Any,
    train_labels: Any,
    test: Any,
    test_labels: Any,
    *,
    k: int | Sequence[int] = 20,
    temperature: float = 0.07,
) -> Knn:
    """Each test row takes the class with the largest sum of exp(score / temperature) over its k nearest train rows.

    Rows without a label are left out. Predictions are codes: the labels themselves when they are whole numbers,
    else places in the sorted list of all labels.
    """
    wanted = sorted({k} if isinstance(k, int) else set(k))
    known, asked = as_rows(train, "train rows"), as_rows(test, "test rows")
    codes, truth = as_common_codes(train_labels, test_labels, (len(known), len(asked)))
    known, codes = known[codes >= 0], codes[codes >= 0]
    asked, truth = asked[truth >= 0], truth[truth >= 0]
    if not len(known) or not len(asked) or wanted[0] < 1:
        raise LookalikeError("weighted_knn needs labeled train and test rows, and k from 1 up.")
    names, codes = np.unique(codes, return_inverse=True)
    scores, index = top_k(asked, known, min(wanted[-1], len(known)))
    predicted = {n: names[_vote(scores[:, :n], codes[index[:, :n]], len(names), temperature)] for n in wanted}
    return Knn({n: float((guess == truth).mean()) for n, guess in predicted.items()}, predicted)


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
