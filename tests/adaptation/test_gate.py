"""Signals against the specification's figures; the gate against collapse, exchanged classes and small gains."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.adaptation import gate, signals, target_classes


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
    # Pairs of classes 00, 00, 11, 10: either may be asked first, so 01 and 10 are an eighth each.
    joint = np.array([[1 / 2, 1 / 8], [1 / 8, 1 / 4]])
    told = (joint * np.log(joint / np.outer(joint.sum(0), joint.sum(0)))).sum()
    assert signals._mutual(predicted, near, 2) == pytest.approx(told)
    sure = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55]])
    assert signals.agreement(np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]]), sure) == 0.5
    assert signals.divergence(sure, sure) == pytest.approx(0)
    assert signals.divergence(np.array([[1.0, 0]]), np.array([[0, 1.0]])) == pytest.approx(np.log(2))
    assert signals.lost(np.array([[1.0, 0], [1, 0]]), np.array([[1.0, 0], [0, 1]])) == 0.5


def test_neighbors_tell_nothing_by_chance_and_less_when_classes_are_lost() -> None:
    rng = np.random.default_rng(4)
    truth = rng.permutation(200) % 20
    near = np.array([rng.choice(np.setdiff1d(np.flatnonzero(truth == t), i), 5) for i, t in enumerate(truth)])
    assert signals.shared(truth, near, 20) > 0.7
    guessed = rng.integers(0, 20, 200)  # many classes, few images: what is counted is far above 0
    assert signals._mutual(guessed, near, 20) / np.log(20) > 0.05 > 0.02 > abs(signals.shared(guessed, near, 20))
    assert signals.shared(np.zeros(200, int), near, 20) == pytest.approx(0)
    merged = np.where(truth >= 10, truth - 10, truth)  # still always alike among neighbors
    assert signals.shared(np.zeros(200, int), near, 1) == signals.information(np.ones((200, 1))) == 0, "one class"
    assert signals.kappa(merged, near) == 1.0 and signals.shared(merged, near, 20) < signals.shared(truth, near, 20)


def test_the_worst_class_is_the_one_given_away() -> None:
    anchor = np.repeat(np.eye(4), 20, 0) * 0.7 + 0.075
    anchor[:10, 0] -= 0.1  # the less sure half of the first class
    candidate = anchor.copy()
    candidate[:10] = [0, 1, 0, 0]
    assert signals.worst_class(candidate, anchor) == (1.0, 1.0), "what the anchor was unsure of may change"
    candidate[10:14] = [0, 1, 0, 0]
    assert signals.worst_class(candidate, anchor) == (pytest.approx(0.6), 1.0)
    assert signals.worst_class(anchor[:, [0, 1, 3, 2]], anchor) == (0.0, 1.0)
    assert signals.worst_class(anchor[:, [0, 1, 3, 2]][:45], anchor[:45]) == (1.0, 40 / 45), "five are not asked"


def test_signals_equal_plain_loops() -> None:
    rng = np.random.default_rng(6)
    candidate, anchor = softmax(2 * rng.normal(size=(150, 6))), softmax(2 * rng.normal(size=(150, 6)))
    near, told = rng.integers(0, 150, (150, 5)), candidate.argmax(1)
    joint = np.zeros((6, 6))
    for i, row in enumerate(near):
        for j in row:
            joint[told[i], told[j]] += 1
            joint[told[j], told[i]] += 1
    joint /= joint.sum()
    own = joint.sum(0)
    wanted = sum(
        joint[a, b] * np.log(joint[a, b] / own[a] / own[b]) for a in range(6) for b in range(6) if joint[a, b] > 0
    )
    assert signals._mutual(told, near, 6) == pytest.approx(wanted)
    shares = []
    for code in range(6):
        rows = sorted((i for i in range(150) if anchor[i].argmax() == code), key=lambda i: -anchor[i, code])
        if len(rows) >= 10:
            sure = rows[: (len(rows) + 1) // 2]
            shares.append(sum(candidate[i].argmax() == code for i in sure) / len(sure))
    assert signals.worst_class(candidate, anchor)[0] == pytest.approx(min(shares))


def test_classes_too_small_to_be_asked_must_agree_nearly_all() -> None:
    """15 classes of 8 images, three of them exchanged in a ring: no class is large enough to show it."""
    truth = np.repeat(np.arange(15), 8)
    before = softmax(3 * np.eye(15)[truth])
    near = np.array([[j for j in range(120) if truth[j] == truth[i] and j != i][:5] for i in range(120)])
    ring = [1, 2, 0, *range(3, 15)]
    found = gate.without_labels(before, before, softmax(4 * np.eye(15)[truth])[:, ring], near)
    assert not found.promoted and "too small to be asked" in found.sentence
    assert "agreement, worst class" not in found.headline
    assert gate.without_labels(before, before, softmax(4 * np.eye(15)[truth]), near).promoted


def test_models_of_different_numbers_of_classes_are_each_measured_by_their_own() -> None:
    truth, logits, near, _ = bed(classes=4)
    merged = softmax(3 * np.eye(2)[truth // 2])
    found = gate.measure(merged, softmax(logits), softmax(3 * logits), near)
    told = softmax(3 * logits).argmax(1)
    assert found["neighbors"] == pytest.approx(signals.shared(told, near, 4) - signals.shared(truth // 2, near, 2))


def bed(count: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(truth, logits of a fair model, the retriever's neighbors, noise)."""
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
    assert list(found.headline.values()) == [found.figures[key] for key in ("agreement", "worst_class", "neighbors")]
    collapsed = softmax(np.tile([9.0, 0, 0, 0], (300, 1)) + noise)
    swapped = softmax((logits + np.eye(4)[truth])[:, [1, 0, 2, 3]])
    merged = better.copy()
    merged[:, 0] += merged[:, 1]
    merged[:, 1] = 0
    for worse, why in (
        (collapsed, "agrees with the anchor"),
        (swapped, "agrees with the anchor"),
        (merged, "of one class"),
    ):
        found = gate.without_labels(before, anchor, worse, near)
        assert not found.promoted and found.sentence.startswith("Kept the old model: ") and why in found.sentence
    assert "nothing says" in gate.without_labels(before, before, before, near).sentence
    rng = np.random.default_rng(5)
    astray = before[rng.permutation(len(before))]
    some = np.argsort(-before.max(1))[150:]  # what it was sure of stays, the rest is guessed
    found = gate.without_labels(before, before, np.where(np.isin(np.arange(300), some)[:, None], astray, before), near)
    assert not found.promoted and "the retriever's neighbors" in found.sentence
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
    assert (found["anchor_information"], found["anchor_neighbors"]) == (plain["information"], plain["neighbors"])


def test_labels_come_first() -> None:
    rng = np.random.default_rng(1)
    before = (rng.random(200) < 0.5).astype(float)
    after = np.maximum(before, rng.random(200) < 0.4)
    assert gate.by_labels(before, after).promoted
    found = gate.by_labels(before, before, measure="recall@1")
    assert "not surely better (recall@1 +0.0 to +0.0 points)" in found.sentence
    assert list(found.headline) == ["recall@1 before", "recall@1 after", "difference"]
    few = gate.by_labels(before[:10], after[:10])
    assert "too few" in few.sentence and few.headline == {}


def test_streams() -> None:
    rng = np.random.default_rng(2)
    mixed = [rng.integers(0, 5, 16) for _ in range(20)]
    one = [np.full(16, i // 4) for i in range(20)]
    assert gate.stream_alarm(mixed) is None
    assert "one at a time" in str(gate.stream_alarm(one))
    assert "too small" in str(gate.stream_alarm([b[:4] for b in mixed]))


def test_clusters_are_found_where_there_are_some() -> None:
    rng = np.random.default_rng(3)
    centers = target_classes.normalize(rng.normal(size=(8, 20)))
    rows = target_classes.normalize(np.repeat(centers, 20, 0) + 0.05 * rng.normal(size=(160, 20))).astype(np.float32)
    found = target_classes.find_clusters(rows)
    assert found.centers is not None and len(found.centers) == 8
    assert (found.centers @ centers.T).max(0).min() > 0.98
    shuffled = found.centers[rng.permutation(8)]
    assert np.allclose(target_classes.recluster(rows, shuffled), shuffled, atol=1e-5), (
        "each in the place of its old one"
    )
    noise = target_classes.normalize(rng.normal(size=(100, 300))).astype(np.float32)
    assert (
        target_classes.find_clusters(noise).centers is None
        and "do not fall into groups" in target_classes.find_clusters(noise).why
    )
    assert "too few" in target_classes.find_clusters(rows[:20]).why
    friends = target_classes.reciprocal(rows, 5)
    place = np.repeat(np.arange(8), 20)
    assert all(place[j] == place[i] for i, row in enumerate(friends) for j in row if j >= 0)
