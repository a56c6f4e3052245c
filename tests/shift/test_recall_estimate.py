"""CV+ intervals: against loops, their coverage, and why folds must not share classes."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from tests.naive import placing as naive

from lookalike.core.seeds import numpy_rng
from lookalike.shift.graded_folders import random_halves
from lookalike.shift.recall_estimate import (
    CurvePoint,
    Estimator,
    GradedFolder,
    cv_plus,
    expit,
    grouped_interval,
    independent,
    logistic,
)


@pytest.mark.parametrize("count", [9, 10, 37])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_cv_plus_is_what_the_loops_say(count, level):
    rng = numpy_rng(count, "cv")
    centers, residuals = rng.standard_normal((2, count))
    assert cv_plus(centers, residuals, level) == pytest.approx(naive.cv_plus(centers, residuals, level))


@pytest.mark.parametrize("count", [9, 37, 200])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_the_pooled_interval_is_what_the_loops_say(count, level):
    rng = numpy_rng(count, "pooled")
    centers, residuals = rng.standard_normal((2, count))
    groups = rng.integers(0, 25, count)
    found = grouped_interval(centers, residuals, groups, level)
    assert found == pytest.approx(naive.grouped_interval((centers + residuals).tolist(), groups.tolist(), level))


def test_too_few_points_give_no_bounds():
    assert cv_plus(np.zeros(8), np.ones(8), 0.9) == grouped_interval(*np.zeros((3, 8))) == (-math.inf, math.inf)
    assert cv_plus(np.zeros(9), np.ones(9), 0.9) == (-1.0, 1.0)


def test_every_group_counts_the_same():
    """A large group cannot outvote the others; of 40 groups one may be left out on each side, of 18 none."""
    said = np.concatenate([np.zeros(1000), np.arange(1.0, 40.0)])
    groups = np.concatenate([np.zeros(1000), np.arange(1, 40)])
    none = np.zeros(len(said))
    assert grouped_interval(said, none, groups) == (1.0, 38.0)
    assert grouped_interval(said, none, np.arange(len(said)))[1] == 0.0
    few = groups < 18
    assert grouped_interval(said[few], none[few], groups[few]) == (0.0, 17.0)


def test_halves_share_no_class_and_lose_none():
    names = np.arange(11)
    for one, two in random_halves(names, 6, numpy_rng(0, "halves")):
        assert not set(one) & set(two)
        assert sorted([*one, *two]) == names.tolist()


def test_folders_that_cannot_judge_each_other_give_no_bounds():
    folder = world(numpy_rng(0, "one class"))
    fit = Estimator.fit([folder([0]) for _ in range(12)])
    found, nothing = fit.predict(folder([1]).features, 400), fit.predict_baseline(400)
    assert (found.low, found.high) == (nothing.low, nothing.high) == (0.0, 1.0)
    assert 0 < found.value < 1 and 0 < nothing.value < 1


def test_logistic_regression_finds_the_slopes_it_was_drawn_from():
    rng = numpy_rng(0, "logistic")
    x = np.hstack([rng.standard_normal((20000, 2)), np.ones((20000, 1))])
    y = (rng.uniform(size=20000) < expit(x @ [1.0, -2.0, 0.5])).astype(float)
    slopes = logistic(x, y, np.ones(20000), np.zeros(3), 12)
    assert slopes == pytest.approx([1.0, -2.0, 0.5], abs=0.08)
    p = expit(x @ slopes)  # where the penalized likelihood is flat
    assert x.T @ (y - p) - 20 * slopes * [1, 1, 0] == pytest.approx(np.zeros(3), abs=1e-4)


def world(rng, classes=24, noise=0.3, own=0.5):
    """An image's hit depends on what it tells and on its class, of which it tells nothing."""
    quirk = own * rng.standard_normal(classes)

    def folder(chosen, look="plain"):
        level = rng.standard_normal() + noise * rng.standard_normal()
        told = np.stack([level + rng.standard_normal(400), rng.standard_normal(400)], axis=1)
        found = rng.uniform(size=400) < expit(0.3 + told[:, 0] + quirk[chosen].mean())
        point = CurvePoint(1.0, float(found.mean()), 400, look, tuple(map(int, chosen)))
        return GradedFolder(point, told, found, np.ones(400, bool))

    return folder


def learned(rng, folder, names, per_half=8):
    points = []
    for half in (h for pair in random_halves(names, 6, rng) for h in pair):
        points += [folder(rng.permutation(half)[:4]) for _ in range(per_half)]
    return points


def test_the_interval_covers_what_it_promises_on_unseen_classes():
    covered, widths, blind = [], [], []
    for trial in range(30):
        rng = numpy_rng(trial, "world")
        folder = world(rng, classes=36)
        points = learned(rng, folder, np.arange(24))
        fit = Estimator.fit(points)
        for _ in range(4):
            new = folder(24 + rng.permutation(12)[:4])
            found, wide = fit.predict(new.features, 400), fit.predict_baseline(400)
            covered.append(found.low <= new.point.recall <= found.high)
            widths.append(found.high - found.low)
            blind.append(wide.high - wide.low)
            assert found.low <= found.value <= found.high
    assert 0.85 <= np.mean(covered) <= 0.98
    assert np.mean(widths) < 0.8 * np.mean(blind)


def test_what_judges_a_folder_has_nothing_in_common_with_it():
    rng = numpy_rng(3, "apart")
    points = []
    for half in (h for pair in random_halves(np.arange(12), 6, rng) for h in pair):
        for look in ("plain", "gray"):
            for size in (1, 3, 6):
                classes = tuple(int(k) for k in rng.permutation(half)[:size])
                points += [CurvePoint(1.0, 0.5, 100, look, classes)] * 3
    for own, others in zip(points, independent(points), strict=True):
        assert others.any()
        for other in (points[k] for k in np.flatnonzero(others)):
            assert not set(own.classes) & set(other.classes)
            assert other.style == "plain" or other.style != own.style


def test_a_folder_that_nothing_can_judge_is_not_counted():
    rng = numpy_rng(0, "nothing")
    folder = world(rng)
    points = [folder([k % 2]) for k in range(24)]
    assert len(Estimator.fit([*points, folder([0, 1])]).residuals) == 24


def test_what_does_not_vary_says_nothing():
    rng = numpy_rng(0, "flat")
    folder = world(rng)
    folders = [folder([k % 2]) for k in range(24)]
    flat = [GradedFolder(f.point, np.hstack([f.features, np.ones((400, 1))]), f.hits, f.is_query) for f in folders]
    one, two = Estimator.fit(folders), Estimator.fit(flat)
    told = folders[0].features
    found, wanted = two.predict(np.hstack([told, np.full((400, 1), 7.0)]), 400), one.predict(told, 400)
    # Another number of columns adds in another order: the last digit may differ.
    assert asdict(found) == pytest.approx(asdict(wanted), rel=1e-9)


def test_of_known_classes_another_look_judges():
    points = [CurvePoint(1.0, 0.5, 100, look, ()) for look in ("plain", "gray", "blur") for _ in range(4)]
    for own, others in zip(points, independent(points), strict=True):
        assert {points[k].style for k in np.flatnonzero(others)} == {"plain", "gray", "blur"} - {own.style}
