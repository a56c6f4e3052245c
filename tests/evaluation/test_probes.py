"""SVMs, average precision, and fine-tuning: which images, the schedules of the paper, and an unchanged model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import progress_listener
from lookalike.data import read_table
from lookalike.evaluation import probes
from lookalike.evaluation.probes import average_precision, linear_svm, low_shot_svm
from lookalike.models import Embedder
from tests import helpers


def test_a_fraction_of_every_class_at_least_one():
    labels = np.repeat([0, 1, 2, -1], [200, 50, 3, 40])
    rows = probes.sample_labels(labels, 0.1, 0)
    assert [int((labels[rows] == code).sum()) for code in (0, 1, 2, -1)] == [20, 5, 1, 0]
    assert np.array_equal(rows, probes.sample_labels(labels, 0.1, 0))
    assert not np.array_equal(rows, probes.sample_labels(labels, 0.1, 1))
    with pytest.raises(LookalikeError, match="at least 2 classes"):
        probes.sample_labels(np.zeros(5, np.int64), 0.1, 0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = helpers.make_images(tmp_path_factory.mktemp("few") / "shelf", classes=6, images=8, width=40, height=40)
    return read_table(folder)


@pytest.mark.parametrize(
    ("schedule", "fraction", "labeled", "expected"),
    [
        (probes.FEW_LABELS, 0.5, 18, {0: (0.002, 0.5), 11: (0.002, 0.5), 12: (0.0004, 0.1), 16: (8e-5, 0.02)}),
        (probes.LINEAR, 1.0, 36, {0: (0, 0.3), 59: (0, 0.3), 60: (0, 0.03), 80: (0, 0.003)}),
    ],
)
def test_the_schedules_are_the_papers_and_the_model_stays(schedule, fraction, labeled, expected, table, monkeypatch):
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    before, rates, moved = model.fingerprint(), [], []
    usual = torch.optim.SGD.step

    def watch(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        assert all(group["momentum"] == 0.9 for group in self.param_groups)
        moved.append(any(p.grad is not None for p in self.param_groups[0]["params"]))
        return usual(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", watch)
    labels = table.labels()[0]
    known = np.arange(len(table)) % 8 < 6
    sides = table.take(known), labels[known], table.take(~known), labels[~known]
    stages = {}
    with progress_listener(lambda bar: stages.update({bar.what: bar.done == bar.total})):
        result = probes.fine_tune(model, *sides, fraction=fraction, schedule=schedule, progress=True)
    assert stages.get("Training a linear classifier" if result.linear else f"Fine-tuning on {100 * fraction:g} %")
    assert result.labeled == labeled and 0 <= result.top1 <= result.top5 <= 1 and result.top5 > 0.5
    assert {epoch: tuple(rates[epoch]) for epoch in expected} == {e: pytest.approx(r) for e, r in expected.items()}
    assert len(rates) == schedule.epochs and model.fingerprint() == before
    assert any(moved) != result.linear  # a linear classifier leaves the network alone


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
    with pytest.raises(LookalikeError, match="at least one relevant"):
        average_precision([1.0], [False])


def blobs(seed: int, count: int = 40):
    rng = np.random.default_rng(seed)
    members = rng.random((count, 3)) < 0.4  # an image may show several
    rows = members @ np.eye(3, 8) * 3 + rng.normal(size=(count, 8))
    return rows.astype(np.float32), members


def mean_precision(result: dict[int, float]) -> float:
    return float(np.mean(list(result.values())))


def test_machines_learn_several_labels_and_lengths_do_not_matter():
    train, test = blobs(0, 120), blobs(1, 60)
    result = linear_svm(*train, *test)
    assert set(result) == {0, 1, 2} and mean_precision(result) > 0.8
    longer = linear_svm(train[0] * 7, train[1], test[0] * 3, test[1])
    assert mean_precision(longer) == pytest.approx(mean_precision(result), abs=0.01)
    noise = np.random.default_rng(2).normal(size=train[0].shape).astype(np.float32)
    assert mean_precision(linear_svm(noise, train[1], test[0], test[1])) < mean_precision(result) - 0.2


def test_it_is_scikit_learns_machine_with_the_papers_constants():
    from sklearn.svm import LinearSVC

    (x, y), (u, v) = blobs(0, 80), blobs(1, 40)
    unit, queries = (r / (np.linalg.norm(r, axis=1, keepdims=True) + 1e-5) for r in (x, u))
    machine = LinearSVC(C=0.5, class_weight={1: 2, 0: 1}, tol=1e-4, max_iter=2000, random_state=0).fit(unit, y[:, 1])
    expected = naive_precision(machine.decision_function(queries), v[:, 1])
    assert linear_svm(x, y, u, v)[1] == pytest.approx(expected, abs=1e-6)


def test_few_shots():
    train, test = blobs(0, 200), blobs(1, 80)
    result = low_shot_svm(*train, *test, shots=(1, 16))
    assert result[16] > result[1] and result == low_shot_svm(*train, *test, shots=(1, 16))


def test_nothing_to_tell_apart():
    rows = np.ones((4, 2), np.float32)
    with pytest.raises(LookalikeError, match="images on both sides"):
        linear_svm(rows, np.ones((4, 1), bool), rows, np.ones((4, 1), bool))
