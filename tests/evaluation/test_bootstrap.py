from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation.bootstrap import bootstrap_interval, paired_test, wilson_interval


def test_interval_of_a_proportion_is_the_normal_one():
    values = np.repeat([0.0, 1.0], [300, 700])
    result = bootstrap_interval(values)
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert result.value == pytest.approx(0.7)
    assert result.low == pytest.approx(0.7 - half, abs=0.004) and result.high == pytest.approx(0.7 + half, abs=0.004)


def test_interval_of_many_distinct_values_is_the_normal_one():
    values = np.random.default_rng(0).standard_normal(3000)
    result = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(3000)
    assert (result.high - result.low) / 2 == pytest.approx(half, rel=0.08)


def test_classes_that_move_together_widen_the_interval():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 40)
    values = (rng.random(30) < 0.5).astype(float)[groups]  # a class is all right or all wrong
    alone, together = bootstrap_interval(values), bootstrap_interval(values, groups=groups)
    assert together.high - together.low > 4 * (alone.high - alone.low)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        groups = np.repeat(np.arange(40), 5)
        values = (rng.standard_normal(40)[groups] + rng.standard_normal(200)) / 2
        result = bootstrap_interval(values, groups=groups, draws=400)
        covered += result.low <= 0 <= result.high
    assert 0.88 <= covered / 200 <= 0.99


def test_same_seed_same_numbers_and_one_group_is_no_group():
    values = np.random.default_rng(0).random(50)
    assert (
        bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    )
    assert bootstrap_interval(values, groups=np.zeros(50)) == bootstrap_interval(values)


def test_paired_sees_a_small_gain_that_single_intervals_hide():
    rng = np.random.default_rng(0)
    a = (rng.random(2000) < 0.6).astype(float)
    b = a.copy()
    b[rng.choice(np.flatnonzero(a == 0), 40, replace=False)] = 1
    result = paired_test(a, b)
    assert result.difference == pytest.approx(0.02) and result.better and not result.worse and result.p < 0.001
    assert bootstrap_interval(a).high > bootstrap_interval(b).low
    back = paired_test(b, a)
    assert back.difference == pytest.approx(-0.02) and back.worse and back.p < 0.001


def test_no_difference_has_p_one_and_p_is_uniform_otherwise():
    a = np.random.default_rng(0).random(100)
    assert paired_test(a, a).p == 1.0
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(20), 5)
    small = sum(paired_test(rng.random(100), rng.random(100), groups=groups, draws=300).p < 0.1 for _ in range(200))
    assert 8 <= small <= 36


def test_a_fraction_of_few_has_wilsons_interval():
    """The ends are where a share would lie just 1.96 of its own standard errors away."""
    for right, count in ((0, 5), (3, 7), (7, 7), (40, 100)):
        result = wilson_interval(right, count)
        assert result.value == right / count and 0 <= result.low <= result.value <= result.high <= 1
        for end in (result.low, result.high):
            if 0 < end < 1:
                assert abs(result.value - end) == pytest.approx(1.959964 * np.sqrt(end * (1 - end) / count), abs=1e-9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: bootstrap_interval([]), "no queries"),
        (lambda: bootstrap_interval([1.0, np.nan]), "finite"),
        (lambda: bootstrap_interval([1.0, 2.0], groups=[1]), "group labels"),
        (lambda: paired_test([1.0], [1.0, 2.0]), "same queries"),
    ],
)
def test_mistakes_give_one_line_errors(call, words):
    with pytest.raises(LookalikeError, match=words):
        call()
