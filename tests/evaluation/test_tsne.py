from __future__ import annotations

import numpy as np
import pytest

from lookalike.evaluation import tsne
from lookalike.evaluation.projection import measure, principal
from tests.naive import tsne as naive


def unit(n: int, dim: int = 16, groups: int = 8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((groups, dim))[rng.integers(0, groups, n)] + 0.5 * rng.standard_normal((n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_forces_are_those_of_the_definition(scale):
    rows = unit(60)
    graph = tsne.near_graph(rows, 5)
    y = scale * np.random.default_rng(1).standard_normal((60, 2))
    p = tsne.affinities(graph)
    pull, push = naive.forces(naive.affinities(graph.tolist()), y.tolist())
    np.testing.assert_allclose(p.toarray(), naive.affinities(graph.tolist()), atol=1e-12)
    at = np.repeat(np.arange(60), np.diff(p.indptr))
    np.testing.assert_allclose(tsne.attraction(p, at, y), pull, atol=1e-12)
    size = np.abs(push).max()
    np.testing.assert_allclose(tsne.repulsion(y), push, atol=1e-12)
    np.testing.assert_allclose(tsne.on_grid(y, 0.15), push, atol=6e-3 * size)


def test_the_grid_is_near_the_sum_over_pairs(monkeypatch):
    y = 15 * np.random.default_rng(2).standard_normal((3000, 2))
    grid = tsne.repulsion(y)
    monkeypatch.setattr(tsne, "FEW", 3000)
    true = tsne.repulsion(y)
    assert np.linalg.norm(grid - true) < 0.1 * np.linalg.norm(true)


def test_neighbors_by_cells_are_nearly_all_true():
    rows = unit(6000, groups=60)
    graph = tsne.near_graph(rows, 10)
    scores = rows[:200] @ rows.T
    scores[np.arange(200), np.arange(200)] = -np.inf
    true = np.argsort(-scores, axis=1)[:, :10]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(graph[:200], true, strict=True)]) / 10 > 0.9
    assert not (graph == np.arange(6000)[:, None]).any()


def test_many_rows_by_landmarks(monkeypatch):
    rows = unit(800, groups=12)
    whole = measure(rows, tsne.layout(rows, principal(rows, 2)))
    monkeypatch.setattr(tsne, "LANDMARKS", 250)
    steps: list[float] = []
    places = tsne.layout(rows, principal(rows, 2), progress=steps.append)
    again = tsne.layout(rows, principal(rows, 2))
    np.testing.assert_array_equal(places, again)
    kept = measure(rows, places)
    assert kept[1] > 0.75 * whole[1] > measure(rows, principal(rows, 2))[1]
    assert steps == sorted(steps) and steps[-1] == pytest.approx(1.0)


def test_points_without_a_place_come_between_their_neighbors():
    places = np.array([[0.0, 0], [2, 0], [np.nan, np.nan], [np.nan, np.nan]])
    tsne.between(places, np.array([[1, 2], [0, 2], [0, 1], [2, 3]]))
    np.testing.assert_array_equal(places, [[0, 0], [2, 0], [1, 0], [1, 0]])


def test_a_warm_start_stays_near(monkeypatch):
    rows = unit(300)
    first = tsne.layout(rows, principal(rows, 2))
    warm = tsne.layout(rows, first, warm=True)
    cold = np.linalg.norm(first[None] - first[:, None], axis=2).mean()
    assert np.linalg.norm(warm - first, axis=1).mean() < 0.3 * cold
