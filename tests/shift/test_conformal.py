"""CV+ intervals: against loops, their coverage, and why folds must not share classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.naive import placing as naive

from lookalike.core.seeds import numpy_rng
from lookalike.shift.conformal import cv_plus, halvings, wilson
from lookalike.shift.estimate import Estimator, Point, Ridge, apart, expit


@pytest.mark.parametrize("count", [9, 10, 37])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_cv_plus_is_what_the_loops_say(count, level):
    rng = numpy_rng(count, "cv")
    centres, residuals = rng.standard_normal(count), rng.standard_normal(count)
    assert cv_plus(centres, residuals, level) == pytest.approx(naive.cv_plus(centres, residuals, level))


def test_too_few_points_give_no_bounds():
    assert cv_plus(np.zeros(8), np.ones(8), 0.9) == (-math.inf, math.inf)
    assert cv_plus(np.zeros(9), np.ones(9), 0.9) == (-1.0, 1.0)


def test_halves_share_no_class_and_lose_none():
    names = np.arange(11)
    for one, two in halvings(names, 6, numpy_rng(0, "halves")):
        assert not set(one) & set(two)
        assert sorted([*one, *two]) == names.tolist()


def test_wilson_by_hand():
    low, high = wilson(85, 100)
    assert (low, high) == pytest.approx((0.7672, 0.9069), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def test_ridge_without_penalty_is_least_squares():
    rng = numpy_rng(0, "ridge")
    x, w = rng.standard_normal((40, 3)), np.array([1.0, -2.0, 0.5])
    weights = rng.uniform(0.5, 2, 40)
    fit = Ridge.fit(x, x @ w + 4, weights, penalty=0.0)
    assert [fit.at(row) for row in x] == pytest.approx(x @ w + 4)
    flat = Ridge.fit(np.hstack([x, np.ones((40, 1))]), x @ w, weights, penalty=1e-6)
    assert flat.at(np.array([0.0, 0, 0, 5])) == pytest.approx(0.0, abs=1e-3)  # a constant signal says nothing


def world(rng, classes=24, noise=0.15, own=0.5):
    """Recall of a class set depends on a signal and on the classes themselves, which the signal does not see."""
    quirk = own * rng.standard_normal(classes)

    def folder(chosen, look="plain"):
        signal = rng.standard_normal()
        value = expit(0.3 + signal + quirk[chosen].mean() + noise * rng.standard_normal())
        signals = {"a": signal, "b": rng.standard_normal()}
        return Point(signals, float(value), 400, look, tuple(map(int, chosen)))

    return folder


def learnt(rng, folder, names, per_half=8):
    points = []
    for half in (h for pair in halvings(names, 6, rng) for h in pair):
        points += [folder(rng.permutation(half)[:4]) for _ in range(per_half)]
    return points


def test_the_interval_covers_what_it_promises_on_unseen_classes():
    covered, widths, blind = [], [], []
    for trial in range(60):
        rng = numpy_rng(trial, "world")
        folder = world(rng, classes=36)
        points = learnt(rng, folder, np.arange(24))
        fit, nothing = Estimator(points, ["a", "b"]), Estimator(points, [])
        for _ in range(4):
            new = folder(24 + rng.permutation(12)[:4])
            found, wide = fit.at(new.signals, 400), nothing.at({}, 400)
            covered.append(found.low <= new.recall <= found.high)
            widths.append(found.high - found.low)
            blind.append(wide.high - wide.low)
            assert found.low <= found.value <= found.high
    assert 0.85 <= np.mean(covered) <= 0.98
    assert np.mean(widths) < 0.8 * np.mean(blind)


def test_what_judges_a_folder_has_nothing_in_common_with_it():
    rng = numpy_rng(3, "apart")
    points = []
    for half in (h for pair in halvings(np.arange(12), 6, rng) for h in pair):
        for look in ("plain", "grey"):
            for size in (1, 3, 6):
                classes = tuple(int(k) for k in rng.permutation(half)[:size])
                points += [Point({"a": 1.0}, 0.5, 100, look, classes)] * 3
    for own, others in zip(points, apart(points), strict=True):
        assert others.any()
        for other in (points[k] for k in np.flatnonzero(others)):
            assert not set(own.classes) & set(other.classes)
            assert other.look == "plain" or other.look != own.look


def test_a_folder_that_nothing_can_judge_is_not_counted():
    points = [Point({"a": float(k % 3)}, 0.5, 100, "plain", (k % 2,)) for k in range(24)]
    whole = Point({"a": 1.0}, 0.9, 100, "plain", (0, 1))
    assert len(Estimator([*points, whole], ["a"]).residuals) == 24


def test_of_known_classes_another_look_judges():
    points = [Point({"a": 1.0}, 0.5, 100, look, ()) for look in ("plain", "grey", "blur") for _ in range(4)]
    for own, others in zip(points, apart(points), strict=True):
        assert {points[k].look for k in np.flatnonzero(others)} == {"plain", "grey", "blur"} - {own.look}
