"""A retriever's score: majority of neighbors, k chosen on known images alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.classification import retriever_knn


def samples(spread: float = 0.7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 240)
    rows = np.eye(8)[labels] + spread * rng.normal(size=(240, 8)) / np.sqrt(2)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows, labels, np.arange(240) < 160


def test_it_is_a_plain_majority() -> None:
    rows, labels, known = samples()
    result = retriever_knn(rows, labels, known, ~known)
    right = []
    for i in np.flatnonzero(~known):
        near = sorted(np.flatnonzero(known), key=lambda j: -float(rows[j] @ rows[i]))[: result.k]
        votes = Counter(labels[near].tolist())
        most = {c for c, n in votes.items() if n == max(votes.values())}
        alike = {c: sum(float(rows[j] @ rows[i]) for j in near if labels[j] == c) for c in most}
        right.append(max(alike, key=lambda c: alike[c]) == labels[i])
    assert result.accuracy.value == pytest.approx(np.mean(right))
    assert result.accuracy.low <= result.accuracy.value <= result.accuracy.high


def test_k_is_chosen_without_the_query_images() -> None:
    rows, labels, known = samples()
    other = labels.copy()
    other[~known] = (other[~known] + 1) % 4
    one, two = retriever_knn(rows, labels, known, ~known), retriever_knn(rows, other, known, ~known)
    assert one.k == two.k and one.tried == two.tried
    assert one.accuracy.value > 0.6 > two.accuracy.value
    assert one.tried[one.k] == max(one.tried.values()) and max(one.tried) == 100
    with pytest.raises(LookalikeError, match="at least 2"):
        retriever_knn(rows, labels, np.arange(240) == 0, ~known)
