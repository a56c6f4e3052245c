from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.calibration import (
    Calibration,
    RandomPairScores,
    _monotone,
    calibrate,
    hit_pairs,
    labels_are_albums,
    random_pair_scores,
)
from lookalike.evaluation.verdicts import hit_verdict, percent_text, query_verdict


def make_images(seed=0, classes=60, each=12, dim=24):
    """Classes of unequal tightness around unequally crowded places: a score alone does not say enough."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    crowd = rng.standard_normal((6, dim))[np.arange(classes) % 6] * (np.arange(classes) % 2)[:, None] * 1.5
    centers = crowd + rng.standard_normal((classes, dim)) * 0.8
    rows = centers[labels] + rng.uniform(0.2, 1.0, classes)[labels, None] * rng.standard_normal((len(labels), dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture(scope="module")
def fitted():
    result, why = calibrate(*make_images())
    assert result is not None and why == ""
    return result


def test_percentages_hold_on_other_classes(fitted):
    rows, labels = make_images(seed=1)
    pairs = hit_pairs(rows, labels, hits=20)
    p, low, high = fitted.probability(pairs.scores, pairs.level)
    assert abs(p.mean() - pairs.same.mean()) < 0.05
    for edge in (0.2, 0.5, 0.8):
        near = np.abs(p - edge) < 0.1
        assert near.sum() > 50 and abs(pairs.same[near].mean() - p[near].mean()) < 0.12
    assert ((low <= p) & (p <= high)).all() and (p > 0).all() and (p < 1).all()
    assert fitted.checked["ece"] < 0.08
    assert fitted.in_range(pairs.level).mean() > 0.9
    assert not fitted.in_range(-0.9)


def test_the_level_is_that_of_the_edge(fitted):
    pairs = hit_pairs(*make_images(seed=1), hits=60, neighbors=50)
    np.testing.assert_array_equal(fitted.level(pairs.scores), pairs.level)
    assert fitted.level([0.9, 0.5]) == 0.5  # fewer hits than that: the last one known
    np.testing.assert_array_equal(fitted.probability(pairs.scores)[0], fitted.probability(pairs.scores, pairs.level)[0])


def test_p_rises_with_the_score_and_the_neighborhood_matters(fitted):
    scores = np.linspace(-1, 1, 200)
    curves = [fitted.probability(scores[:, None], np.full(200, level))[0][:, 0] for level in (0.2, 0.6)]
    assert all((np.diff(curve) >= 0).all() for curve in curves)
    assert (curves[0] >= curves[1]).all() and (curves[0] > curves[1]).any()


def test_it_beats_the_score_alone_where_neighborhoods_differ(fitted):
    rows, labels = make_images(seed=2)
    pairs = hit_pairs(rows, labels)
    p = np.clip(fitted.probability(pairs.scores, pairs.level)[0], 1e-6, 1 - 1e-6)
    flat = np.clip(np.full(p.shape, pairs.same.mean()), 1e-6, 1 - 1e-6)

    def loss(q):
        return -np.where(pairs.same, np.log(q), np.log(1 - q)).mean()

    assert loss(p) < 0.75 * loss(flat)


def test_json_there_and_back(fitted):
    document = json.loads(json.dumps(fitted.to_json()))
    again = Calibration.from_json(document)
    scores = np.array([[0.9, 0.7, 0.2]])
    np.testing.assert_array_equal(again.probability(scores), fitted.probability(scores))
    with pytest.raises(LookalikeError, match="calibrate again"):
        Calibration.from_json({"weights": [1]})
    with pytest.raises(LookalikeError, match="damaged"):
        Calibration.from_json({**document, "p": document["p"][:-1]})


def test_what_was_checked_adds_up(fitted):
    checked = fitted.checked
    assert sum(row["count"] for row in checked["bins"]) == fitted.pairs
    assert sum(row["count"] for row in checked["hits"].values()) == fitted.pairs
    assert sum(row["count"] for row in checked["queries"].values()) == 720
    assert checked["hits"]["Very likely the same"]["wrong"] < 0.25 < checked["hits"]["Similar look only"]["wrong"]
    assert all(row["low"] <= row["observed"] <= row["high"] for row in checked["bins"])
    for row in (*checked["hits"].values(), *checked["queries"].values()):
        assert row["count"] == 0 or 0 <= row["low"] <= row["wrong"] <= row["high"] <= 1
        assert row["count"] == 0 or row["high"] > row["low"], "no share is certain"
    assert 0 <= checked["ece_low"] <= checked["ece"] <= checked["ece_high"] < 0.2


def test_the_interval_of_the_error_is_that_of_whole_classes_drawn_anew():
    """Against plain loops: every draw of classes computed as the definition says."""
    from lookalike.core.seeds import numpy_rng
    from lookalike.evaluation.calibration import _ece_interval

    rng = np.random.default_rng(0)
    groups, place = rng.integers(7, size=300), rng.integers(5, size=300)
    p, same = rng.random(300), rng.random(300) < 0.4
    low, high = _ece_interval(p - same, place, groups, 0, draws=60)
    errors = []
    for times in numpy_rng(0, "calibration error").multinomial(7, np.full(7, 1 / 7), size=60):
        rows = [i for i in range(300) for _ in range(times[groups[i]])]
        error = 0.0
        for number in range(5):
            chosen = [i for i in rows if place[i] == number]
            if chosen:
                gap = np.mean([p[i] for i in chosen]) - np.mean([same[i] for i in chosen])
                error += len(chosen) / len(rows) * abs(gap)
        errors.append(error)
    assert [low, high] == pytest.approx(np.quantile(errors, [0.025, 0.975]).tolist(), abs=1e-12)


def test_a_verdict_that_was_never_wrong_is_not_called_certain():
    from lookalike.evaluation.calibration import _error_rate

    none = _error_rate(np.zeros(10, bool), np.arange(10), 0)
    assert none["wrong"] == none["low"] == 0 and 0.2 < none["high"] < 0.35
    assert _error_rate(np.zeros(0, bool), np.zeros(0, int), 0) == {"count": 0, "wrong": None, "low": None, "high": None}


def test_too_little_is_reported_and_not_guessed():
    rows, labels = make_images(classes=3, each=4)
    result, why = calibrate(rows, labels)
    assert result is None and "200 are needed" in why
    result, why = calibrate(np.ones((30, 2)), np.zeros(30))
    assert result is None and "wrong hits" in why


def test_classes_that_cannot_be_checked_by_others_give_no_percentages():
    """Without the one class of which there are pairs nothing is right, without the others nothing is wrong."""
    rng = np.random.default_rng(0)
    tight = np.array([1.0, 0, 0, 0]) + 0.01 * rng.standard_normal((30, 4))
    far = np.array([[-1.0, 0, 0, 0], [0, -1.0, 0, 0], [0, 0, -1.0, 0]])
    for alone in (1, 3):  # with three, some folds can be judged: but not the class that nearly all pairs are of
        rows, labels = np.concatenate([tight, far[:alone]]), [0] * 30 + list(range(1, 1 + alone))
        pairs = hit_pairs(rows, labels)
        assert pairs.same.sum() == 600 and np.isfinite(pairs.scores).sum() == 600 + 20 * alone
        result, why = calibrate(rows, labels)
        assert result is None and "too few classes" in why


def test_one_class_that_asks_gives_no_percentages():
    rows, labels = make_images(classes=2, each=40, dim=4)
    queries = labels == 0
    pairs = hit_pairs(rows, labels, query=queries)
    assert 200 <= pairs.same.sum() < np.isfinite(pairs.scores).sum()
    result, why = calibrate(rows, labels, query=queries)
    assert result is None and "too few classes" in why


def test_same_content_is_no_hit():
    rows, labels = make_images(classes=8, each=6)
    rows, labels = np.concatenate([rows, rows]), np.concatenate([labels, labels])
    ids = np.tile(np.arange(48), 2)
    pairs = hit_pairs(rows, labels, ids=ids, hits=5)
    assert pairs.scores.max() < 0.99999 and pairs.scores.shape == (96, 5)
    assert hit_pairs(rows, labels, hits=5).scores.min(axis=1).max() <= 1.0001
    assert (hit_pairs(rows, labels, hits=5).scores[:, 0] > 0.99999).all()


def test_fewer_hits_than_requested():
    result, _ = calibrate(
        *make_images(classes=40, each=6), query=np.arange(0, 240, 2), gallery=np.arange(1, 240, 2), hits=500
    )
    assert result is not None and result.pairs == 120 * 120
    assert result.probability(np.array([[0.5]]))[0].shape == (1, 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_monotone_curve_is_the_isotonic_one(seed):
    isotonic = pytest.importorskip("sklearn.isotonic").IsotonicRegression
    rng = np.random.default_rng(seed)
    pairs = rng.integers(1, 30, 25).astype(float)
    hits = rng.binomial(pairs.astype(int), np.clip(np.linspace(-0.2, 1.1, 25), 0, 1)).astype(float)
    share = (hits + 0.5) / (pairs + 1)
    expected = isotonic().fit_transform(np.arange(25), share, sample_weight=pairs + 1)
    np.testing.assert_allclose(_monotone(hits, pairs), expected, atol=1e-12)


def test_words():
    assert [hit_verdict(p) for p in (0.8, 0.79, 0.5, 0.49)] == [
        "Very likely the same",
        "Possibly",
        "Possibly",
        "Similar look only",
    ]
    assert query_verdict(0.9, 0.8) == "Very likely found" and query_verdict(0.9, 0.79) == "Possibly found"
    assert query_verdict(0.4, 0.3) == "No good match"
    assert percent_text(0.94, 0.92, 0.96) == "94 %" and percent_text(0.94, 0.85, 0.96) == "about 95 %"
    assert percent_text(0.995, 0.9, 1.0) == "over 99 %" and percent_text(0.001, 0, 0.1) == "under 1 %"
    assert percent_text(0.02, 0.0, 0.3) == "about 5 %"


def test_background_of_random_pairs():
    rows, _ = make_images()
    result = random_pair_scores(rows, pairs=20_000)
    assert result is not None and random_pair_scores(rows[:1]) is None
    again = RandomPairScores(**json.loads(json.dumps(asdict(result))))
    assert again.fraction_below(2.0) == 1 and again.fraction_below(-2.0) == 0
    rng = np.random.default_rng(0)
    left, right = rng.integers(720, size=5000), rng.integers(720, size=5000)
    scores = np.einsum("ij,ij->i", rows[left], rows[right])[left != right]
    assert abs((scores < np.interp(0.9, np.linspace(0, 1, 1001), result.quantiles)).mean() - 0.9) < 0.02


def test_albums_are_no_classes_however_many_there_are():
    rows, labels = make_images()
    assert not labels_are_albums(rows, labels)
    rng = np.random.default_rng(0)
    for albums in (2, 12, 100):
        assert labels_are_albums(rows, rng.integers(albums, size=len(rows)))
    assert labels_are_albums(rows, np.where(rng.random(len(rows)) < 0.9, 0, labels + 1)), "one album holds nearly all"
    fine = rng.standard_normal((400, 24)) + 0.35 * rng.standard_normal((100, 24)).repeat(4, axis=0)
    fine = (fine / np.linalg.norm(fine, axis=1, keepdims=True)).astype(np.float32)
    assert not labels_are_albums(fine, np.arange(100).repeat(4)), "hard classes are classes"
    assert not labels_are_albums(rows[:3], [None] * 3)
    copies = np.repeat(np.eye(24, dtype=np.float32)[:12], 2, axis=0)
    assert labels_are_albums(copies, np.repeat(np.arange(6), 4), ids=np.repeat(np.arange(12), 2))
