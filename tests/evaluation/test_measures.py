"""Verification, NMI, weighted k-NN and the linear probe."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import pair_scores
from lookalike.evaluation.classification import weighted_knn
from lookalike.evaluation.clustering import kmeans, nmi
from lookalike.evaluation.probes import linear_probe
from lookalike.evaluation.retrieval import error_rates, sample_pairs, verify
from tests.naive import evaluation as naive


def clusters(seed=0, classes=6, each=30, dim=12, spread=0.6):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    rows = rng.standard_normal((classes, dim))[labels] + spread * rng.standard_normal((len(labels), dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def test_pair_scores_do_not_depend_on_their_company():
    rows = np.random.default_rng(0).standard_normal((40, 37)).astype(np.float32)
    rows[7] = rows[3]
    left, right = np.divmod(np.arange(1600), 40)
    many = pair_scores(rows, left, right).reshape(40, 40)
    alone = [[pair_scores(rows, np.array([i]), np.array([j]))[0] for j in range(40)] for i in range(40)]
    assert (many == alone).all() and (many == many.T).all() and (many[3] == many[7]).all()


def test_all_pairs_and_a_sample_of_them():
    labels = np.array([0, 0, 0, 1, 1, -1, 2])
    pairs = sample_pairs(labels)
    assert len(pairs.left) == 15 and pairs.complete and pairs.same.sum() == 4
    assert not (labels[np.concatenate([pairs.left, pairs.right])] < 0).any()
    big = np.repeat(np.arange(50), 20)
    some = sample_pairs(big, limit=3000)
    assert not some.complete and some.same.sum() == 1500 == (~some.same).sum()
    assert (some.left != some.right).all()
    positives = list(zip(some.left[some.same], some.right[some.same], strict=True))
    assert len(set(positives)) == 1500  # drawn without replacement
    assert set(big[some.left[some.same]]) == set(range(50))
    few = sample_pairs(big, limit=40_000)  # the 9,500 positives all fit
    assert len({frozenset(p) for p in zip(few.left[few.same], few.right[few.same], strict=True)}) == 9500


def test_pairs_of_equal_content_are_left_out():
    labels = np.array([0, 0, 0, 1])
    pairs = sample_pairs(labels, ids=np.array([5, 5, 6, -1]))
    assert (0, 1) not in zip(pairs.left, pairs.right, strict=True) and pairs.same.sum() == 2
    with pytest.raises(LookalikeError, match="one kind is missing"):
        sample_pairs(np.array([0, 0]))


@pytest.mark.parametrize("seed", range(5))
def test_error_rates_agree_with_the_loops(seed):
    rng = np.random.default_rng(seed)
    same = rng.random(200) < 0.4
    scores = np.round(rng.standard_normal(200) + same, 1)  # ties
    result = error_rates(scores, same)
    for threshold, far, frr in zip(result.thresholds, result.false_accept, result.false_reject, strict=True):
        assert (far, frr) == pytest.approx(naive.error_rates(scores, same, threshold))
    every = [naive.error_rates(scores, same, t) for t in [*np.unique(scores), np.inf]]
    assert result.accuracy == pytest.approx(1 - min(sum(rates) / 2 for rates in every))
    assert sum(naive.error_rates(scores, same, result.best_threshold)) / 2 == pytest.approx(1 - result.accuracy)
    assert min(max(rates) for rates in every) >= result.equal_error >= max(min(rates) for rates in every) - 1e-12


def test_verification_of_parted_and_of_equal_scores():
    parted = error_rates(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert parted.equal_error == 0 and parted.accuracy == 1 and 0.2 < parted.best_threshold <= 0.8
    equal = error_rates(np.zeros(4), np.array([False, True, False, True]))
    assert equal.accuracy == 0.5 and equal.equal_error == pytest.approx(0.5)


def test_verify_from_a_sample_is_near_all_pairs():
    rows, labels = clusters(classes=10, each=60)
    whole, part = verify(rows, labels), verify(rows, labels, max_pairs=20_000)
    assert whole.complete and not part.complete
    assert part.equal_error == pytest.approx(whole.equal_error, abs=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_nmi_agrees_with_the_loops(seed):
    rows, labels = clusters(seed, spread=1.5)
    initial = rows[numpy_rng(0, "k-means").choice(len(rows), size=6, replace=False)]
    assigned = kmeans(rows, initial).labels
    assert nmi(rows, labels) == pytest.approx(naive.nmi(assigned.tolist(), labels.tolist()))


def test_nmi_of_clear_classes_and_of_none():
    rows, labels = clusters(spread=0.05)
    assert nmi(rows, labels) > 0.9
    assert nmi(rows, np.random.default_rng(0).permutation(labels)) < 0.3
    assert nmi(rows, np.zeros(len(rows))) == 1.0
    assert nmi(rows, labels, seed=1) == nmi(rows, labels, seed=1)
    with pytest.raises(LookalikeError, match="there are none"):
        nmi(rows, np.full(len(rows), -1))


@pytest.mark.parametrize("spherical", [False, True])
def test_kmeans_leaves_no_cluster_empty(spherical):
    rows = np.repeat(np.eye(3, dtype=np.float32), [50, 1, 1], axis=0)
    assert len(set(kmeans(rows, rows[:3], spherical=spherical).labels.tolist())) == 3


def test_kmeans_agrees_with_scikit_learn():
    rows, _ = clusters(spread=1.5)
    ours = kmeans(rows, rows[:6], iterations=100)
    theirs = KMeans(6, init=rows[:6], n_init=1, max_iter=100, tol=0).fit(rows)
    np.testing.assert_array_equal(ours.labels, theirs.labels_)
    np.testing.assert_allclose(ours.centers, theirs.cluster_centers_, atol=1e-5)
    assert -ours.scores.sum() == pytest.approx(theirs.inertia_, rel=1e-4)
    around = kmeans(rows, rows[:6], spherical=True)
    np.testing.assert_allclose(np.linalg.norm(around.centers, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(around.labels, (rows @ around.centers.T).argmax(1))


@pytest.mark.parametrize("k", [1, 5, 20])
def test_weighted_knn_agrees_with_the_loops(k):
    rows, labels = clusters(spread=1.5)
    train, test = np.arange(0, 180, 2), np.arange(1, 180, 2)
    result = weighted_knn(rows[train], labels[train], rows[test], labels[test], k=(k, 3))
    expected = naive.weighted_knn(rows[train], labels[train].tolist(), rows[test], k, 0.07)
    assert result.predicted[k].tolist() == expected
    assert result.accuracy[k] == pytest.approx(np.mean(np.array(expected) == labels[test]))
    assert set(result.accuracy) == {k, 3}


def test_weighted_knn_takes_names_and_small_sets():
    names = np.array(["b", "a", "c"])
    result = weighted_knn(np.eye(3), names, np.eye(3)[:2], ["b", "zebra"], k=20)
    assert result.accuracy[20] == 0.5
    with pytest.raises(LookalikeError, match="k of at least 1"):
        weighted_knn(np.eye(3), names, np.eye(3), names, k=0)


def test_linear_probe_learns_what_is_linear():
    rows, labels = clusters(spread=0.9, each=60)
    train, test = np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)
    result = linear_probe(rows[train], labels[train], rows[test], labels[test])
    assert 0.7 < result.accuracy <= 1.0 and result.accuracy == pytest.approx(result.correct.mean())
    assert result.tried[result.weight_decay] == max(result.tried.values())
    sklearn = pytest.importorskip("sklearn.linear_model")
    x = (rows - rows[train].mean(axis=0)) / np.sqrt(np.square(rows[train] - rows[train].mean(axis=0)).mean())
    peer = sklearn.LogisticRegression(C=1 / (1e-3 * len(train)), max_iter=2000, tol=1e-8).fit(x[train], labels[train])
    ours = linear_probe(rows[train], labels[train], rows[test], labels[test], weight_decays=(1e-3,), iterations=500)
    assert np.mean(ours.correct == (peer.predict(x[test]) == labels[test])) > 0.98


def test_linear_probe_needs_two_classes():
    with pytest.raises(LookalikeError, match="at least 2 classes"):
        linear_probe(np.eye(3), [1, 1, 1], np.eye(3), [1, 1, 1])
