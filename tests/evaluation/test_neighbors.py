from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation._ranking import ranks
from lookalike.evaluation.neighbors import top_k, top_k_scores
from tests.naive import evaluation as naive


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block", [1, 32 << 20])
@pytest.mark.parametrize("large", [1, 16_384])
def test_agrees_with_the_loops(seed, block, large, monkeypatch):
    monkeypatch.setattr(ranks, "BLOCK_BYTES", block)
    monkeypatch.setattr(ranks, "LARGE", large)
    monkeypatch.setenv("LOOKALIKE_THREADS", "2")
    rng = np.random.default_rng(seed)
    gallery = (rng.integers(-3, 4, size=(50, 4)) / 4).astype(np.float32)  # many ties
    queries, own = gallery[10:30], np.arange(10, 30)
    own[::3] = -1
    scores, index = top_k(queries, gallery, 7, exclude=own)
    for row, expected in enumerate(naive.top_k(queries, gallery, 7, own)):
        assert index[row].tolist() == [place for _, place in expected]
        np.testing.assert_allclose(scores[row], [score for score, _ in expected], atol=1e-6)


@pytest.mark.parametrize("large", [1, 16_384])
def test_equal_rows_tie_whatever_the_product_does(large, monkeypatch):
    monkeypatch.setattr(ranks, "LARGE", large)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 37)).astype(np.float32)
    gallery = rows[np.tile(np.arange(40), 25)]  # every row 25 times
    _, index = top_k(rows, gallery, 25)
    np.testing.assert_array_equal(index, np.arange(40)[:, None] + 40 * np.arange(25))


def test_scores_too_close_to_screen(monkeypatch):
    rng = np.random.default_rng(0)
    rows = (1 + 1e-6 * rng.standard_normal((3000, 8))).astype(np.float32)
    expected = top_k(rows[:20], rows, 5)
    monkeypatch.setattr(ranks, "LARGE", 1)
    made = []
    doubles = ranks._DoubleProducts
    monkeypatch.setattr(ranks, "_DoubleProducts", lambda *sides: made.append(1) or doubles(*sides))
    result = top_k(rows[:20], rows, 5)
    assert made
    np.testing.assert_array_equal(result[1], expected[1])


def test_equal_rows_are_neighbors():
    rows = np.array([[1, 0], [2, 3], [1, -0.0], [2, 3], [3, 2]], np.float32)
    copies, originals = ranks.equal_rows(rows)
    assert copies.tolist() == [2, 3] and originals.tolist() == [0, 1]


def test_more_requested_than_there_is():
    scores, index = top_k(np.ones((2, 3)), np.ones((2, 3)), 4, exclude=[0, -1])
    assert index.tolist() == [[1, -1, -1, -1], [0, 1, -1, -1]]
    assert np.isneginf(scores[index < 0]).all()


def test_nothing_to_search_by_and_nowhere_to_search():
    assert top_k(np.empty((0, 3)), np.ones((4, 3)), 2)[1].shape == (0, 2)
    assert top_k(np.ones((2, 3)), np.empty((0, 3)), 2)[1].tolist() == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    "queries, gallery, k, words",
    [
        (np.full((1, 2), np.nan), np.ones((2, 2)), 1, "NaN"),
        (np.ones((1, 2)), np.ones((2, 3)), 1, "dimensions"),
        (np.ones((1, 2)), np.ones((2, 2)), 0, "at least 1"),
    ],
)
def test_mistakes_give_one_line_errors(queries, gallery, k, words):
    with pytest.raises(LookalikeError, match=words):
        top_k(queries, gallery, k)


@pytest.mark.parametrize("k", [1, 4, 9, 12])
def test_entries_of_a_matrix(k):
    scores = np.random.default_rng(k).integers(0, 4, size=(30, 9)).astype(np.float32)  # many ties
    values, columns = top_k_scores(scores, k)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(columns, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, 1))
    assert top_k_scores(np.empty((3, 0)), 2)[1].shape == (3, 0)
