"""Signals against the specification's figures; the gate against collapse, exchanged classes and small gains."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.adapting import clusters, gate, signals


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_figures_of_the_specification() -> None:
    p = softmax(np.array([[1.0, 0, 0], [0, 2, 0]]))
    assert signals.nuclear(p) == pytest.approx(0.702804, abs=1e-6)
    assert signals.information(p) == pytest.approx(0.185749 / np.log(3), abs=2e-5)
    rows = np.array([(1, 0, 0, 0), (3, 1, 0, 0), (0, 1, 0, 0), (2, 1, 0, 1), (1, 1, 1, 0)], float)
    assert signals.density(rows) == pytest.approx(0.489970, abs=1e-6)


def test_signals_by_hand() -> None:
    predicted, near = np.array([0, 0, 1, 1]), np.array([[1], [0], [3], [0]])
    assert signals.kappa(predicted, near) == pytest.approx((0.75 - 0.5) / 0.5)
    assert signals.kappa(np.zeros(4, int), near) == 0.0
    sure = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55]])
    assert signals.agreement(np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]]), sure) == 0.5
    assert signals.divergence(sure, sure) == pytest.approx(0)
    assert signals.divergence(np.array([[1.0, 0]]), np.array([[0, 1.0]])) == pytest.approx(np.log(2))
    assert signals.lost(np.array([[1.0, 0], [1, 0]]), np.array([[1.0, 0], [0, 1]])) == 0.5


def bed(count: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(truth, logits of a fair model, the retriever's neighbours, noise)."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, count)
    logits = 1.5 * np.eye(classes)[truth] + rng.normal(0, 0.7, (count, classes))
    near = np.array([rng.choice(np.flatnonzero(truth == t), 5) for t in truth])
    return truth, logits, near, rng.normal(0, 0.1, (count, classes))


def test_a_better_model_passes_and_worse_ones_do_not() -> None:
    truth, logits, near, noise = bed()
    before, anchor = softmax(0.7 * logits), softmax(logits + noise)
    better = softmax(logits + 1.0 * np.eye(4)[truth])
    found = gate.without_labels(before, anchor, better, near)
    assert found.promoted and "not shown to be large" in found.sentence
    collapsed = softmax(np.tile([9.0, 0, 0, 0], (300, 1)) + noise)
    swapped = softmax((logits + np.eye(4)[truth])[:, [1, 0, 2, 3]])
    merged = better.copy()
    merged[:, 0] += merged[:, 1]
    merged[:, 1] = 0
    for worse, why in (
        (collapsed, "agrees with the anchor"),
        (swapped, "agrees with the anchor"),
        (merged, "class shares"),
    ):
        found = gate.without_labels(before, anchor, worse, near)
        assert not found.promoted and found.sentence.startswith("Kept the old model: ") and why in found.sentence
    assert not gate.without_labels(before, anchor, before, near).promoted, "no more information than before"
    assert "too few" in gate.without_labels(before[:50], anchor[:50], better[:50], near[:50] % 50).sentence
    assert "alarm" in gate.without_labels(before, anchor, better, near, alarm="alarm").sentence


def test_no_better_than_statistics_alone() -> None:
    _, logits, near, noise = bed()
    before, anchor = softmax(0.5 * logits), softmax(1.2 * logits)
    weaker = softmax(1.1 * logits + 0.1 * noise)
    assert "statistics alone" in gate.without_labels(before, anchor, weaker, near).sentence
    assert gate.without_labels(before, anchor, anchor, near, anchor_asked=True).promoted
    found = gate.measure(before, anchor, weaker, near)
    plain = gate.measure(before, anchor, anchor, near)
    assert (found["anchor_information"], found["anchor_kappa"]) == (plain["information"], plain["kappa"])


def test_labels_come_first() -> None:
    rng = np.random.default_rng(1)
    before = (rng.random(200) < 0.5).astype(float)
    after = np.maximum(before, rng.random(200) < 0.4)
    assert gate.by_labels(before, after).promoted
    assert "not surely better" in gate.by_labels(before, before).sentence
    assert "too few" in gate.by_labels(before[:10], after[:10]).sentence


def test_streams() -> None:
    rng = np.random.default_rng(2)
    mixed = [rng.integers(0, 5, 16) for _ in range(20)]
    one = [np.full(16, i // 4) for i in range(20)]
    assert gate.stream_alarm(mixed) is None
    assert "one at a time" in str(gate.stream_alarm(one))
    assert "too small" in str(gate.stream_alarm([b[:4] for b in mixed]))


def test_clusters_are_found_where_there_are_some() -> None:
    rng = np.random.default_rng(3)
    centres = clusters.unit(rng.normal(size=(8, 20)))
    rows = clusters.unit(np.repeat(centres, 20, 0) + 0.05 * rng.normal(size=(160, 20))).astype(np.float32)
    found = clusters.find(rows)
    assert found.centres is not None and len(found.centres) == 8
    assert (found.centres @ centres.T).max(0).min() > 0.98
    shuffled = found.centres[rng.permutation(8)]
    assert np.allclose(clusters.again(rows, shuffled), shuffled, atol=1e-5), "each in the place of its old one"
    noise = clusters.unit(rng.normal(size=(100, 300))).astype(np.float32)
    assert clusters.find(noise).centres is None and "do not fall into groups" in clusters.find(noise).why
    assert "too few" in clusters.find(rows[:20]).why
    friends = clusters.reciprocal(rows, 5)
    place = np.repeat(np.arange(8), 20)
    assert all(place[j] == place[i] for i, row in enumerate(friends) for j in row if j >= 0)
