"""Counting and listing must give the same ranks, also where sampling and giving up play their part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lookalike.evaluation._ranking import counting, ranks, screening
from lookalike.evaluation._ranking.ranks import RankingTask


def task(count=3000, dim=24, classes=700, depth=20, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=count)
    rows = rng.standard_normal((classes, dim))[labels] + 1.4 * rng.standard_normal((count, dim))
    rows[rng.integers(count, size=200)] = rows[rng.integers(count, size=200)]  # copies, also across classes
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    everyone = np.arange(count)
    return RankingTask(rows, labels, everyone, everyone, depth=depth, top=depth)


@pytest.mark.parametrize("screen", [screening.Screen, screening.HalfScreen])
@pytest.mark.parametrize("sides", ["one", "two"])
def test_counting_gives_what_listing_gives(screen, sides, monkeypatch):
    monkeypatch.setattr(counting, "choose_screen", screen)
    monkeypatch.setattr(counting, "SAMPLE", 256)
    monkeypatch.setattr(counting, "ROWS", 128)
    monkeypatch.setattr(counting, "COLUMNS", 256)
    monkeypatch.setenv("LOOKALIKE_THREADS", "3")
    seen = []
    finish = counting.Tally.finish
    monkeypatch.setattr(counting.Tally, "finish", lambda self: (seen.append(self), finish(self))[1])
    ranking_task = task()
    if sides == "two":
        order = np.random.default_rng(1).permutation(3000)
        ranking_task = replace(ranking_task, query=order[:1400], gallery=order[1000:])  # some are on both sides
    counted, unproved = ranks.ranks_by_counting(ranking_task)
    listed = ranks.ranks_by_lists(ranking_task)
    queries = ~unproved & (listed.relevant > 0)
    assert unproved.sum() <= 2
    for name in ("relevant", "first", "precision", "precision_r", "hits_r", "authors"):
        np.testing.assert_allclose(
            getattr(counted, name)[queries], getattr(listed, name)[queries], rtol=1e-12, err_msg=name
        )
    gone = seen[0].active < seen[0].slots.relevant
    assert gone.mean() > 0.3  # most queries have a hopeless item, and this was noticed


def test_scores_too_close_to_count_are_listed(monkeypatch):
    monkeypatch.setattr(counting, "CROWD_FROM", 10_000)
    monkeypatch.setattr(counting, "ROWS", 64)
    monkeypatch.setattr(ranks, "MANY_PAIRS", 0)
    rng = np.random.default_rng(0)
    rows, labels = (1 + 1e-5 * rng.standard_normal((600, 8))).astype(np.float32), rng.integers(0, 150, size=600)
    everyone = np.arange(600)
    ranking_task = RankingTask(rows, labels, everyone, everyone, top=50, depth=50)
    assert ranks.ranks_by_counting(ranking_task)[1].all()
    np.testing.assert_allclose(ranks.find_ranks(ranking_task).precision, ranks.ranks_by_lists(ranking_task).precision)


def test_the_ranks_do_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((800, 24)).astype(np.float32), rng.integers(0, 150, size=800)
    order, everyone = rng.permutation(800), np.arange(800)
    first, _ = ranks.ranks_by_counting(RankingTask(rows, labels, everyone, everyone, depth=700, top=700))
    other, _ = ranks.ranks_by_counting(RankingTask(rows[order], labels[order], everyone, everyone, depth=700, top=700))
    np.testing.assert_allclose(other.precision, first.precision[order], rtol=1e-12)


@pytest.mark.parametrize("kind", [screening.Screen, screening.HalfScreen])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_a_screen_keeps_its_promise(kind, scale):
    rng = np.random.default_rng(0)
    left = (rng.standard_normal((60, 96)) * scale).astype(np.float32)
    right = np.abs(rng.standard_normal((40, 96)) * scale).astype(np.float32)  # sums of one sign are the worst case
    left[:10] = right[:10]
    screen = kind(left, right)
    exact = left.astype(np.float64) @ right.astype(np.float64).T
    block = screen.product(slice(0, 60), slice(0, 40), screen.block(60, 40))
    keys = screen.keys(block)  # in order, since nothing else was announced
    values = screen.values(keys.reshape(-1)).reshape(60, 40).astype(np.float64)
    assert (np.abs(values - exact) <= screen.slack[:, None] + screen.rounding * np.abs(values)).all()
    low, high = screen.band(exact, screen.slack[:, None])
    assert ((low <= values) & (values <= high)).all()
    flat = np.argsort(values, axis=None)
    assert (np.diff(keys.reshape(-1)[flat].astype(np.int64)) >= 0).all() if keys.dtype != np.float32 else True


@pytest.mark.parametrize("kind", [screening.Screen, screening.HalfScreen])
def test_floors_never_hide_what_lies_above_them(kind):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 8)).astype(np.float32)
    screen = kind(rows, rows)
    keys = screen.keys(screen.product(slice(0, 200), slice(0, 200), screen.block(200, 200))).copy()
    values = screen.values(keys.reshape(-1)).reshape(200, 200)
    for levels in (rng.standard_normal(200), values[0], np.zeros(200), np.full(200, np.inf)):
        levels = levels.astype(np.float32)
        assert ((keys > screen.floors(levels)[:, None]) >= (values > levels[:, None])).all()
        assert ((keys > screen.floors(levels, up=True)[:, None]) <= (values > levels[:, None])).all()


def test_keys_of_positive_floors_are_left_as_they_are():
    rows = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    screen = screening.HalfScreen(rows, rows)
    floors = screen.floors(np.full(50, 0.5, np.float32))
    screen.expect(floors)
    block = screen.product(slice(0, 50), slice(0, 50), screen.block(50, 50))
    values = block.float().numpy().copy()
    np.testing.assert_array_equal(screen.keys(block) > floors[:, None], values > 0.5)


def test_single_products():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 30, 16)).astype(np.float32)
    row = np.sort(rng.integers(30, size=100))
    column = rng.integers(30, size=100)
    result = screening.single_products(left, right, row, column)
    np.testing.assert_allclose(result, (left[row] * right[column]).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_tiles_cover_every_pair_once():
    for symmetric in (False, True):
        met = np.zeros((1300, 1300), int)
        for i, j, both in counting.tiles(1300, 1300, symmetric):
            met[i, j] += 1
            if both:
                met[j, i] += 1
        assert (met == 1).all()


def test_the_trial_of_bfloat16_is_made_once():
    assert screening.bfloat16_is_faster() in (True, False)
    assert screening.bfloat16_is_faster.cache_info().currsize == 1
