from __future__ import annotations

import numpy as np
import pytest

from lookalike.evaluation.projection import project


def clusters(count=120, dim=20):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), count // 6)
    return (rng.standard_normal((6, dim))[labels] * 3 + rng.standard_normal((count, dim))).astype(np.float32), labels


@pytest.mark.parametrize("tsne", [False, True])
def test_the_same_rows_give_the_same_map(tsne):
    rows, labels = clusters()
    first, second = project(rows, tsne=tsne), project(rows, tsne=tsne)
    np.testing.assert_array_equal(first.places, second.places)
    assert first.places.shape == (120, 2) and np.isfinite(first.places).all()
    centers = np.stack([first.places[labels == c].mean(axis=0) for c in range(6)])
    inside = np.mean([first.places[labels == c].std() for c in range(6)])
    assert centers.std() > inside  # classes stand apart
    assert first.method in first.note or "sketch" in first.note


def test_tsne_keeps_more_neighbors_than_two_axes():
    rows, _ = clusters()
    assert project(rows, tsne=True).kept > project(rows, tsne=False).kept


def test_a_map_is_laid_over_another():
    rows, _ = clusters()
    flat = project(rows, tsne=False)
    turned = flat.places @ np.array([[0, -3.0], [3.0, 0]]) + 7
    again = project(rows, tsne=False, like=turned)
    np.testing.assert_allclose(again.places, turned, atol=1e-8)
    assert again.kept == pytest.approx(flat.kept)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_rows(count):
    assert project(np.eye(5, dtype=np.float32)[:count]).places.shape == (count, 2)
    assert project(np.ones((count, 1), np.float32)).places.shape == (count, 2)
