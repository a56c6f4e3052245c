"""The gate: signals against plain loops; collapse, exchanged classes, small gains, and what an expert sees."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.adaptation.conftest import small

from lookalike.adaptation import gate, target_classes
from lookalike.adaptation.gate import Thresholds
from lookalike.adaptation.settings import AdaptRequest, resolve
from lookalike.core.errors import LookalikeError
from lookalike.data import audit, read_table


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def simulation(count: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth, logits of a fair model, and an expert's vectors of the images."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, count)
    logits = 1.5 * np.eye(classes)[truth] + rng.normal(0, 0.7, (count, classes))
    expert = np.eye(8)[truth] + rng.normal(0, 0.15, (count, 8))
    return truth, logits, target_classes.normalize(expert).astype(np.float32)


# ---- signals -------------------------------------------------------------------------------------------


def test_neighbor_information_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(6)
    predicted, near = rng.integers(0, 6, 150), rng.integers(0, 150, (150, 5))

    def mutual(codes: np.ndarray) -> float:
        joint = np.zeros((6, 6))
        for i, row in enumerate(near):
            for j in row:
                joint[codes[i], codes[j]] += 1
                joint[codes[j], codes[i]] += 1
        joint /= joint.sum()
        own = joint.sum(0)
        return sum(
            joint[a, b] * np.log(joint[a, b] / own[a] / own[b]) for a in range(6) for b in range(6) if joint[a, b] > 0
        )

    information = gate.neighbor_information(predicted, near, 6, draws=1)
    random_codes = gate.numpy_rng(0, "shuffled predictions").permutation(predicted)
    assert information == pytest.approx((mutual(predicted) - mutual(random_codes)) / np.log(6))


def test_neighbor_information_is_zero_for_random_and_falls_when_classes_are_lost() -> None:
    rng = np.random.default_rng(4)
    truth = rng.permutation(200) % 20
    near = np.array([rng.choice(np.setdiff1d(np.flatnonzero(truth == t), i), 5) for i, t in enumerate(truth)])
    whole = gate.neighbor_information(truth, near, 20)
    assert whole > 0.7 and abs(gate.neighbor_information(rng.integers(0, 20, 200), near, 20)) < 0.02
    assert gate.neighbor_information(np.zeros(200, int), near, 20) == pytest.approx(0)
    merged = np.where(truth >= 10, truth - 10, truth)  # still always alike among neighbors
    assert gate.neighbor_information(merged, near, 20) < whole


def test_matching_finds_exchanged_classes_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 5, 200)
    assert gate.matching(old, old, 7) == 1.0, "classes that nobody predicts do not count"
    for a, b in itertools.combinations(range(5), 2):
        swapped = np.where(old == a, b, np.where(old == b, a, old))
        assert gate.matching(old, swapped, 7) == pytest.approx(3 / 5)
    noisy = np.where(rng.random(200) < 0.4, rng.integers(0, 5, 200), old)
    assert gate.matching(old, noisy, 7) == 1.0, "many changes, no exchange"
    assert gate.lost(old, np.zeros(200, int)) == pytest.approx(0.8)


def test_overlap_and_map_equal_plain_loops() -> None:
    rng = np.random.default_rng(2)
    one, two = (target_classes.normalize(rng.normal(size=(40, 5))).astype(np.float32) for _ in range(2))

    def near(rows: np.ndarray, i: int, k: int) -> list[int]:
        return sorted((j for j in range(len(rows)) if j != i), key=lambda j: -float(rows[i] @ rows[j]))[:k]

    stay = [len(set(near(one, i, 10)) & set(near(two, i, 10))) / 10 for i in range(40)]
    assert gate.overlap(one, two) == pytest.approx(np.mean(stay))
    codes, scores = rng.integers(0, 4, 40), []
    for i in range(40):
        size = int((codes == codes[i]).sum()) - 1
        hits = [codes[j] == codes[i] for j in near(one, i, size)]
        scores.append(sum(np.mean(hits[: n + 1]) for n in range(size) if hits[n]) / size)
    assert gate.map_by_codes(one, codes) == pytest.approx(np.mean(scores), abs=1e-6)
    assert gate.map_by_codes(one[:2], np.array([0, 1])) == 0.0
    assert gate.overlap(one[:1], two[:1]) == 0.0


# ---- classifiers ---------------------------------------------------------------------------------------


def test_a_better_classifier_passes_and_worse_ones_do_not() -> None:
    truth, logits, expert = simulation()
    before, better = softmax(logits), softmax(logits + 1.0 * np.eye(4)[truth])
    decision = gate.without_labels(before, better, expert, classifier=True)
    assert decision.promoted and "not shown to be large" in decision.message and "expert" in decision.evidence
    assert list(decision.headline.values()) == [decision.figures[key] for key in ("neighbors", "matching", "lost")]
    merged = better.copy()
    merged[:, 0] += merged[:, 1]
    merged[:, 1] = 0
    rng = np.random.default_rng(5)
    for worse, why in (
        (softmax(np.tile([9.0, 0, 0, 0], (300, 1))), "lost 75% of the classes"),
        (better[:, [1, 0, 2, 3]], "50% of the classes keep their meaning"),
        (merged, "lost 25% of the classes"),
        (before, "too little more about the expert's neighborhoods (+0.000"),
        (before[rng.permutation(300)], "too little more"),
    ):
        decision = gate.without_labels(before, worse, expert, classifier=True)
        assert not decision.promoted and decision.message.startswith("Kept the old model: ") and why in decision.message
    assert "too few" in gate.without_labels(before[:50], better[:50], expert[:50], classifier=True).message
    assert "alarm" in gate.without_labels(before, better, expert, classifier=True, alarm="alarm").message


def test_models_of_different_numbers_of_classes_are_each_measured_by_their_own() -> None:
    truth, logits, expert = simulation()
    merged, near = softmax(3 * np.eye(2)[truth // 2]), gate.nearest(expert, 5)
    signals = gate.classifier_signals(merged, softmax(3 * logits), expert)
    expected = [gate.neighbor_information(c, near, n) for c, n in ((truth // 2, 2), (logits.argmax(1), 4))]
    assert signals["neighbors"] == pytest.approx(expected[1] - expected[0])


# ---- embedders -----------------------------------------------------------------------------------------


def test_an_embedder_that_retrieves_more_of_the_experts_clusters_passes() -> None:
    rng = np.random.default_rng(0)
    truth, noise = rng.integers(0, 12, 520), rng.normal(size=(520, 16))
    centers = target_classes.normalize(rng.normal(size=(12, 16)))
    expert = target_classes.normalize(centers[truth] + 0.05 * rng.normal(size=(520, 16))).astype(np.float32)
    before, better, worse = (
        target_classes.normalize(centers[truth] + spread * noise).astype(np.float32) for spread in (0.3, 0.27, 0.33)
    )
    decision = gate.without_labels(before, better, expert, classifier=False)
    assert decision.promoted and list(decision.headline) == [gate.LABELS["cluster_map"], gate.LABELS["overlap"]]
    for rows, why in (
        (before, "MAP@R +0.000; more than +0.005"),
        (worse, "too little more within the expert's clusters (MAP@R −"),
        (target_classes.normalize(noise).astype(np.float32), "of the ten nearest images"),
        (expert, "of the ten nearest images"),
    ):
        decision = gate.without_labels(before, rows, expert, classifier=False)
        assert not decision.promoted and why in decision.message, why
    assert "too few" in gate.without_labels(before[:50], better[:50], expert[:50], classifier=False).message


@pytest.mark.parametrize(
    "good",
    [
        {"images": 100, "cluster_map": 0.02, "overlap": 0.7},
        {"images": 100, "neighbors": 0.03, "matching": 0.9, "lost": 0.0},
    ],
)
def test_every_threshold_decides(good: dict[str, float]) -> None:
    limits = Thresholds()
    assert not gate.reasons_to_keep(good)
    for name in good:
        step = 1e-6 if name == "lost" else -1e-6
        assert len(gate.reasons_to_keep({**good, name: getattr(limits, name) + step})) == 1, name
        assert len(gate.reasons_to_keep({**good, name: float("nan")})) == 1, "what is no number never passes"


# ---- labels --------------------------------------------------------------------------------------------


def test_labels_come_first() -> None:
    rng = np.random.default_rng(1)
    before = (rng.random(200) < 0.5).astype(float)
    after = np.maximum(before, rng.random(200) < 0.4)
    assert gate.by_labels(before, after).promoted
    decision = gate.by_labels(before, before, measure="MAP@R")
    assert "not surely better (MAP@R +0.0 to +0.0 points)" in decision.message
    assert list(decision.headline) == ["MAP@R before", "MAP@R after", "difference"]
    few = gate.by_labels(before[:10], after[:10])
    assert "too few" in few.message and few.headline == {}


def test_each_model_is_judged_by_its_own_list_of_classes(target: Path) -> None:
    table, now, other = audit(read_table(target), near=False).table, small(4), small(4)
    order = [2, 0, 3, 1]
    with torch.no_grad():
        other.classifier.weight.copy_(now.classifier.weight[order])  # type: ignore[union-attr]
        other.classifier.bias.copy_(now.classifier.bias[order])  # type: ignore[union-attr]
    other.card["classes"] = [now.card["classes"][i] for i in order]
    decision = gate.compare_by_labels(now, other, table, 0)
    assert decision.measure == "accuracy" and decision.figures["before"] == decision.figures["after"] > 0
    other.card["classes"] = ["class-00", "class-01", "class-02", "elsewhere"]
    assert gate.compare_by_labels(now, other, table, 0).measure == "MAP@R", "where one of them lacks a class"


# ---- the expert ----------------------------------------------------------------------------------------


def test_the_expert_has_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    model = small()
    monkeypatch.setattr(gate, "EXPERTS", ("efficientnet_lite2", "efficientnet_lite0"))
    monkeypatch.setattr(gate.Embedder, "from_pretrained", lambda name, device: loaded.append(str(name)) or name)
    for architecture, expected in (("test_efficientnet", "lite2"), ("tf_efficientnet_lite2", "lite0")):
        model.architecture = architecture
        assert str(gate.find_expert(model)).endswith(expected)
    assert gate.find_expert(model, "mine") == "mine"

    def missing(name: str, device: str) -> None:
        raise LookalikeError("no weights")

    monkeypatch.setattr(gate.Embedder, "from_pretrained", missing)
    with pytest.raises(LookalikeError, match="give --expert MODEL"):
        gate.find_expert(model)


def test_what_makes_promotion_impossible_is_known_before() -> None:
    settings = resolve(None)
    request = AdaptRequest(settings)
    with_classes, without = small(4), small(None)
    assert gate.obstacles(with_classes, with_classes, request, 100) == []
    assert "99 images are held out" in gate.obstacles(with_classes, with_classes, request, 99)[0]
    assert "names classes" in gate.obstacles(with_classes, without, request, 500)[0]
    assert gate.obstacles(with_classes, without, AdaptRequest(settings, judge="x"), 5) == []
    source = AdaptRequest(resolve(None, {"method": "source"}))
    assert gate.obstacles(without, without, source, 500) == ["`source` changes nothing"]


def test_streams() -> None:
    rng = np.random.default_rng(2)
    mixed = [rng.integers(0, 5, 16) for _ in range(20)]
    one = [np.full(16, i // 4) for i in range(20)]
    assert gate.stream_alarm(mixed) is None
    assert "one at a time" in str(gate.stream_alarm(one))
    assert "too small" in str(gate.stream_alarm([b[:4] for b in mixed]))


def test_clusters_are_detected_where_there_are_some() -> None:
    rng = np.random.default_rng(3)
    centers = target_classes.normalize(rng.normal(size=(8, 20)))
    rows = target_classes.normalize(np.repeat(centers, 20, 0) + 0.05 * rng.normal(size=(160, 20))).astype(np.float32)
    clusters, how = target_classes.find_clusters(rows)
    assert clusters is not None and len(clusters) == 8 and "8 clusters of the target" in how
    assert (clusters @ centers.T).max(0).min() > 0.98
    shuffled = clusters[rng.permutation(8)]
    assert np.allclose(target_classes.recluster(rows, shuffled), shuffled, atol=1e-5), (
        "each in the place of its old one"
    )
    noise = target_classes.normalize(rng.normal(size=(100, 300))).astype(np.float32)
    none, why = target_classes.find_clusters(noise)
    assert none is None and "do not fall into groups" in why
    assert "too few" in target_classes.find_clusters(rows[:20])[1]
    friends = target_classes.reciprocal(rows, 5)
    place = np.repeat(np.arange(8), 20)
    assert all(place[j] == place[i] for i, row in enumerate(friends) for j in row if j >= 0)
