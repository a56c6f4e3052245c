"""FID against SciPy's matrix root, Gaussians worked by hand, and fewer samples than dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.naive import shift as naive

from lookalike.core.seeds import numpy_rng
from lookalike.shift import fid


def gaussian(mean, covariance, count=50, seed=0):
    """Rows whose mean and covariance are just these."""
    rows = numpy_rng(seed, "rows").standard_normal((count, len(mean)))
    rows -= rows.mean(0)
    rows = rows @ np.linalg.inv(np.linalg.cholesky(np.cov(rows, rowvar=False))).T
    return rows @ np.linalg.cholesky(np.asarray(covariance, float)).T + mean


def rows(count, dim, seed, power=0.7):
    rng = numpy_rng(seed, count, dim)
    return rng.standard_normal((count, dim)) * np.arange(1, dim + 1) ** -power + rng.standard_normal(dim) * 0.3


BOTH = [fid.frechet_distance, lambda x, y: fid.moments_distance(fid.moments(x), fid.moments(y))]


@pytest.mark.parametrize("way", BOTH)
def test_gaussians_computed_by_hand(way):
    assert way(np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])) == pytest.approx(6, abs=1e-12)
    result = way(gaussian([0, 0], np.diag([1, 4])), gaussian([3, 4], np.diag([9, 16]), seed=1))
    assert result == pytest.approx(33, abs=1e-10)
    result = way(gaussian([1, 1], [[2, 1], [1, 2]]), gaussian([1, 1], np.diag([1, 4]), seed=2))
    assert result == pytest.approx(9 - 2 * np.sqrt(10 + 2 * np.sqrt(12)), abs=1e-10)
    x, y = np.array([[0.0, 0, 0], [2, 0, 0]]), np.array([[0.0, 0, 0], [0, 2, 0]])
    assert way(x, y) == pytest.approx(6, abs=1e-12)  # the authors' 1e-8 on the diagonal would give 5.9994343


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("first", "second"), [(60, 80), (21, 200), (200, 22)])
def test_same_as_scipy(way, first, second):
    x, y = rows(first, 20, 1), rows(second, 20, 2)
    assert way(x, y) == pytest.approx(naive.fid(x, y), rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(5, 7), (5, 64), (30, 100), (300, 12), (64, 65), (2, 2)])
def test_fewer_samples_than_dimensions(first, second):
    """All ways agree, also with the eigenvalues of the small product XᵀY YᵀX, and beyond what `sqrtm` can do."""
    x, y = rows(first, 64, 3), rows(second, 64, 4)
    a, b = (z - z.mean(0) for z in (x, y))
    a, b = a / np.sqrt(first - 1), b / np.sqrt(second - 1)
    gap = x.mean(0) - y.mean(0)
    exact = gap @ gap + (a * a).sum() + (b * b).sum() - 2 * np.linalg.svd(a @ b.T, compute_uv=False).sum()
    for way in BOTH:
        assert way(x, y) == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(naive.fid(x, y), rel=1e-4)


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("count", [40, 8])
def test_properties(way, count):
    x, y = rows(count, 12, 5), rows(count + 3, 12, 6)
    turn = np.linalg.qr(numpy_rng(0, "turn").standard_normal((12, 12)))[0]
    value = way(x, y)
    assert value > 0
    assert way(y, x) == pytest.approx(value, rel=1e-10)
    assert way(x, x) == pytest.approx(0, abs=1e-9)
    assert way(x @ turn + 7, y @ turn + 7) == pytest.approx(value, rel=1e-9)
    assert way(3 * x, 3 * y) == pytest.approx(9 * value, rel=1e-10)


@pytest.mark.parametrize("way", BOTH)
def test_dead_and_repeated_dimensions(way):
    """A network's dead channels make the covariance singular though there are rows enough."""
    x, y = rows(90, 10, 7), rows(80, 10, 8)
    plain = fid.frechet_distance(x, y)
    dead = [np.hstack([z, np.zeros((len(z), 4))]) for z in (x, y)]
    assert way(*dead) == pytest.approx(plain, rel=1e-10)
    twice = [np.hstack([z, z]) for z in (x, y)]
    assert way(*twice) == pytest.approx(2 * plain, rel=1e-10)


def test_far_from_the_origin():
    x, y = rows(50, 8, 9), rows(60, 8, 10)
    far = 1e6
    assert fid.frechet_distance(x + far, y + far) == pytest.approx(fid.frechet_distance(x, y), rel=1e-6)


def test_moments_add_and_rows_are_exchanged():
    x, y = rows(30, 6, 11), rows(20, 6, 12)
    center = np.concatenate([x, y]).mean(0)
    a, b = fid.moments(x, center), fid.moments(y, center)
    whole = fid.moments(np.concatenate([x, y]))
    assert np.allclose((a + b).covariance(), whole.covariance(), rtol=0, atol=1e-13)
    assert np.allclose((a + b).mean, whole.mean)
    other = (a + b).exchanged(x[:2] + 1, y)
    expected = fid.moments(np.concatenate([x, x[:2] + 1]), center)
    assert other.count == expected.count == 32
    assert np.allclose(other.total, expected.total, atol=1e-12)
    assert np.allclose(other.scatter, expected.scatter, atol=1e-12)
    assert np.allclose((a + b).covariance(), whole.covariance(), rtol=0, atol=1e-13), "the old ones are as they were"
    with pytest.raises(ValueError, match="different centers"):
        a + fid.moments(y)


@pytest.mark.parametrize("way", BOTH)
def test_images_that_are_all_alike(way):
    x, y = np.zeros((9, 3)), np.full((8, 3), 2.0)
    assert way(x, y) == pytest.approx(12)
    spread = rows(9, 3, 1)
    assert way(x, spread) == pytest.approx(spread.mean(0) @ spread.mean(0) + np.trace(np.cov(spread.T)))


def test_one_row_is_refused():
    with pytest.raises(ValueError, match="at least 2 rows"):
        fid.frechet_distance(np.zeros((1, 3)), np.zeros((5, 3)))
