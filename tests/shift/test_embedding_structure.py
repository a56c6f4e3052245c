"""Structural measures: worked by hand, against a slow twin, and what they say of plain cases."""

from __future__ import annotations

import numpy as np
import pytest
from tests.naive import shift as naive

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.shift import embedding_structure as measures
from lookalike.shift.embedding_structure import structure


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_as_the_slow_twin(monkeypatch):
    monkeypatch.setattr(measures, "BLOCK", 7)  # several blocks
    rng = numpy_rng(0, "x")
    x, labels = unit(rng.standard_normal((30, 6))), rng.integers(5, size=30)
    labels[0] = 9  # a class of one
    result = structure(x, labels)
    for name, value in naive.structure(x, labels).items():
        assert result[name] == pytest.approx(value, rel=1e-9), name
    assert result["zero_singular_values"] == 0


def test_computed_by_hand():
    assert measures.spectral_decay(np.array([3.0, 1.0])) == pytest.approx(0.1438410, abs=1e-7)
    assert measures.spectral_decay(np.array([3.0, 1.0]), reverse=True) == pytest.approx(0.1308120, abs=1e-7)
    assert measures.uniformity(np.array([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-8)
    assert measures.effective_rank(np.array([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert measures.power_law(np.arange(1.0, 101) ** -1.5) == pytest.approx(1.5)


def test_collapsed_embeddings_are_named_as_such():
    labels = np.repeat(np.arange(4), 5)
    x = np.eye(6)[labels]
    result = structure(x, labels)
    assert result["within"] == pytest.approx(0, abs=1e-12)
    assert result["between"] == pytest.approx(1)
    assert result["alignment"] == pytest.approx(0, abs=1e-12)
    assert result["zero_singular_values"] == 2
    assert np.isfinite(list(result.values())).all()
    spread = structure(unit(numpy_rng(0, "y").standard_normal((200, 6))), np.arange(200) % 4)
    assert spread["spectral_decay"] < 0.01 < result["spectral_decay"]
    assert spread["effective_rank"] > result["effective_rank"]


def test_one_class_is_refused():
    with pytest.raises(LookalikeError, match="at least 2 classes"):
        structure(np.eye(3), np.zeros(3, np.int64))


def test_embeddings_that_are_not_finite_are_refused():
    vectors = np.eye(4)
    vectors[1, 2] = np.nan
    with pytest.raises(LookalikeError, match="not finite"):
        structure(vectors, np.array([0, 0, 1, 1]))
