"""One-vs-rest SVMs and average precision in VOC07's manner."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.svm import average_precision, low_shot, svm


def naive_precision(scores, relevant):
    """For every relevant row the best precision at its place or any later one, averaged."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    precisions, hits = [], 0
    for place, i in enumerate(order, 1):
        hits += relevant[i]
        precisions.append(hits / place)
    places = [n for n, i in enumerate(order) if relevant[i]]
    return sum(max(precisions[n:]) for n in places) / len(places)


def test_average_precision():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, relevant = rng.normal(size=12), rng.random(12) < 0.4
        relevant[0] = True
        assert average_precision(scores, relevant) == pytest.approx(naive_precision(scores, relevant))
    assert average_precision([3, 2, 1], [True, True, False]) == 1
    assert average_precision([3, 2, 1], [False, True, True]) == pytest.approx(2 / 3)  # made non-increasing
    with pytest.raises(LookalikeError, match="nothing is relevant"):
        average_precision([1.0], [False])


def blobs(seed: int, count: int = 40):
    rng = np.random.default_rng(seed)
    members = rng.random((count, 3)) < 0.4  # an image may show several
    rows = members @ np.eye(3, 8) * 3 + rng.normal(size=(count, 8))
    return rows.astype(np.float32), members


def test_machines_learn_several_labels_and_lengths_do_not_matter():
    train, test = blobs(0, 120), blobs(1, 60)
    found = svm(*train, *test)
    assert set(found.precision) == {0, 1, 2} and found.map > 0.8
    longer = svm(train[0] * 7, train[1], test[0] * 3, test[1])
    assert longer.map == pytest.approx(found.map, abs=0.01)
    noise = np.random.default_rng(2).normal(size=train[0].shape).astype(np.float32)
    assert svm(noise, train[1], test[0], test[1]).map < found.map - 0.2


def test_it_is_scikit_learns_machine_with_the_papers_constants():
    from sklearn.svm import LinearSVC

    (x, y), (u, v) = blobs(0, 80), blobs(1, 40)
    unit, asked = (r / (np.linalg.norm(r, axis=1, keepdims=True) + 1e-5) for r in (x, u))
    machine = LinearSVC(C=0.5, class_weight={1: 2, 0: 1}, tol=1e-4, max_iter=2000, random_state=0).fit(unit, y[:, 1])
    wanted = naive_precision(machine.decision_function(asked), v[:, 1])
    assert svm(x, y, u, v).precision[1] == pytest.approx(wanted, abs=1e-6)


def test_few_shots():
    train, test = blobs(0, 200), blobs(1, 80)
    found = low_shot(*train, *test, shots=(1, 16))
    assert found[16] > found[1] and found == low_shot(*train, *test, shots=(1, 16))


def test_nothing_to_tell_apart():
    rows = np.ones((4, 2), np.float32)
    with pytest.raises(LookalikeError, match="images on both sides"):
        svm(rows, np.ones((4, 1), bool), rows, np.ones((4, 1), bool))
