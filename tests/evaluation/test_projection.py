from __future__ import annotations

import numpy as np
import pytest

from lookalike.evaluation import projection
from lookalike.evaluation.projection import neighbor_preservation, pca, project
from tests.naive import tsne as naive


def clusters(count=120, dim=20):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), count // 6)
    return (rng.standard_normal((6, dim))[labels] * 3 + rng.standard_normal((count, dim))).astype(np.float32), labels


@pytest.mark.parametrize("tsne", [False, True])
def test_the_same_rows_give_the_same_map(tsne):
    rows, labels = clusters()
    first, second = project(rows, use_tsne=tsne), project(rows, use_tsne=tsne)
    np.testing.assert_array_equal(first.places, second.places)
    assert first.places.shape == (120, 2) and np.isfinite(first.places).all()
    centers = np.stack([first.places[labels == c].mean(axis=0) for c in range(6)])
    inside = np.mean([first.places[labels == c].std() for c in range(6)])
    assert centers.std() > inside  # classes stand apart
    assert first.method in first.note


def test_tsne_keeps_more_neighbors_than_two_axes():
    rows, _ = clusters()
    assert project(rows, use_tsne=True).preserved > project(rows, use_tsne=False).preserved


def test_a_map_is_laid_over_another():
    rows, _ = clusters()
    flat = project(rows, use_tsne=False)
    rotated = flat.places @ np.array([[0, -3.0], [3.0, 0]]) + 7
    again = project(rows, use_tsne=False, like=rotated)
    np.testing.assert_allclose(again.places, rotated, atol=1e-8)
    assert again.preserved == pytest.approx(flat.preserved)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_rows(count):
    assert project(np.eye(5, dtype=np.float32)[:count]).places.shape == (count, 2)
    assert project(np.ones((count, 1), np.float32)).places.shape == (count, 2)


def unit(n: int, dim: int = 16, groups: int = 8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((groups, dim))[rng.integers(0, groups, n)] + 0.5 * rng.standard_normal((n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_forces_are_those_of_the_definition(scale):
    rows = unit(60)
    graph = projection.neighbor_graph(rows, 5)
    y = scale * np.random.default_rng(1).standard_normal((60, 2))
    p = projection.affinities(graph)
    pull, push = naive.forces(naive.affinities(graph.tolist()), y.tolist())
    np.testing.assert_allclose(p.toarray(), naive.affinities(graph.tolist()), atol=1e-12)
    at = np.repeat(np.arange(60), np.diff(p.indptr))
    np.testing.assert_allclose(projection.attraction(p, at, y), pull, atol=1e-12)
    size = np.abs(push).max()
    np.testing.assert_allclose(projection.repulsion(y), push, atol=1e-12)
    np.testing.assert_allclose(projection.grid_repulsion(y, 0.15), push, atol=6e-3 * size)


def test_the_grid_is_near_the_sum_over_pairs(monkeypatch):
    y = 15 * np.random.default_rng(2).standard_normal((3000, 2))
    grid = projection.repulsion(y)
    monkeypatch.setattr(projection, "FEW", 3000)
    true = projection.repulsion(y)
    assert np.linalg.norm(grid - true) < 0.1 * np.linalg.norm(true)


def test_neighbors_by_cells_are_nearly_all_true():
    rows = unit(6000, groups=60)
    graph = projection.neighbor_graph(rows, 10)
    scores = rows[:200] @ rows.T
    scores[np.arange(200), np.arange(200)] = -np.inf
    true = np.argsort(-scores, axis=1)[:, :10]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(graph[:200], true, strict=True)]) / 10 > 0.9
    assert not (graph == np.arange(6000)[:, None]).any()


def test_many_rows_by_landmarks(monkeypatch):
    rows = unit(800, groups=12)
    monkeypatch.setattr(projection, "EARLY", 150)
    monkeypatch.setattr(projection, "LATE", 150)
    whole = neighbor_preservation(rows, projection.tsne(rows, pca(rows, 2)))
    monkeypatch.setattr(projection, "LANDMARKS", 250)
    steps: list[float] = []
    places = projection.tsne(rows, pca(rows, 2), progress=steps.append)
    again = projection.tsne(rows, pca(rows, 2))
    np.testing.assert_array_equal(places, again)
    preserved = neighbor_preservation(rows, places)
    assert preserved[1] > 0.75 * whole[1] > neighbor_preservation(rows, pca(rows, 2))[1]
    assert steps == sorted(steps) and steps[-1] == pytest.approx(1.0)


def test_points_without_a_place_come_between_their_neighbors():
    places = np.array([[0.0, 0], [2, 0], [np.nan, np.nan], [np.nan, np.nan]])
    projection.place_between(places, np.array([[1, 2], [0, 2], [0, 1], [2, 3]]))
    np.testing.assert_array_equal(places, [[0, 0], [2, 0], [1, 0], [1, 0]])


def test_a_warm_start_stays_near(monkeypatch):
    rows = unit(150)
    first = projection.tsne(rows, pca(rows, 2))
    warm = projection.tsne(rows, first, warm=True)
    cold = np.linalg.norm(first[None] - first[:, None], axis=2).mean()
    assert np.linalg.norm(warm - first, axis=1).mean() < 0.3 * cold
